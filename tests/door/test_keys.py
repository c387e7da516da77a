"""`precede key`, and the files it writes."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from precede.ingest.signing import load_key, make_key, public_text
from precede.udfs.errors import Refused
from precede.udfs.records.signatures import is_signed_by, read_key, sign, signature_in
from tests.door.command import precede
from tests.signing import private, public


def test_a_key_pair_is_made_and_signs_what_the_kernel_takes(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "ann.key"
    done = precede("key", file)
    assert done.returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = read_key(done.stdout.decode().strip())
    assert key is not None
    record = sign(b'{"group":"g"}', load_key(file))
    signature = signature_in(record)
    assert signature is not None
    assert is_signed_by(key, signature, record)
    assert precede("key", "--show", file).stdout == done.stdout


def test_two_keys_are_two(tmp_path: Path) -> None:
    assert public_text(make_key(tmp_path / "a")) != public_text(make_key(tmp_path / "b"))


def test_a_key_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "ann.key"
    precede("key", file)
    before = file.read_bytes()
    done = precede("key", file)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"is there already" in done.stderr
    assert file.read_bytes() == before


def test_the_private_key_is_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "ann.key"
    told = precede("key", file), precede("key", "--show", file), precede("key", file)
    secret = file.read_bytes().splitlines()[1]
    assert len(secret) == 64
    for done in told:
        assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "ann.key"
    before = os.umask(umask)
    try:
        make_key(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_that_others_can_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "ann.key"
    make_key(file)
    file.chmod(0o640)
    with pytest.raises(Refused, match=f"chmod 600 {file}"):
        load_key(file)


def test_what_is_no_key_is_refused_in_a_sentence_that_does_not_show_it(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for text in (b"s3cret", b"", b"-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----\n", other, b"\xff"):
        file = tmp_path / "some.key"
        file.write_bytes(text)
        file.chmod(0o600)
        with pytest.raises(Refused, match="`precede key` makes one") as refused:
            load_key(file)
        assert "s3cret" not in str(refused.value)
    with pytest.raises(Refused, match="cannot be read"):
        load_key(tmp_path / "nowhere")


def test_a_public_key_is_printed_as_a_create_names_it() -> None:
    assert public_text(private("A")) == public("A")


def test_send_looks_at_the_key_before_it_asks_kafka(tmp_path: Path) -> None:
    done = precede("send", "g", "ann", "hello", "--key", tmp_path / "nowhere", "--bootstrap", "localhost:1")
    assert done.returncode == 1
    assert done.stderr == f"The key file {tmp_path}/nowhere cannot be read: No such file or directory.\n".encode()
