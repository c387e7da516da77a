"""The form of a signature, and what verification must reject on every machine."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode

import pytest

from precede.udfs.records.signatures import is_signed_by, read_key, sign, signature_in
from tests.signing import private, public

RECORD = b'{"group":"g","sender":"A","seq":1}'
SIGNED = sign(RECORD, private("A"))
KEY = private("A").public_key().public_bytes_raw()

# RFC 8032, section 7.1, test 1: the key pair, and its signature of the empty message.
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
RFC_SIGNATURE = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)

ORDER = 2**252 + 27742317777372353535851937790883648493
ONE, MINUS_ONE = "01" + "00" * 31, "ec" + "ff" * 30 + "7f"
SMALL_KEYS = [
    "00" * 32,
    ONE,
    MINUS_ONE,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


def signed(record: bytes, key: bytes = KEY) -> bool:
    signature = signature_in(record)
    return signature is not None and is_signed_by(key, signature, record)


def test_a_signature_stands_last_and_signs_the_bytes_before_it() -> None:
    assert signed(SIGNED)
    fields = json.loads(SIGNED)
    assert list(fields) == ["group", "sender", "seq", "signature"]
    before = SIGNED.partition(b',"signature":')[0]
    assert b64encode(private("A").sign(before)).decode() == fields["signature"]


def test_the_vector_of_the_rfc_verifies() -> None:
    assert is_signed_by(RFC_PUBLIC, RFC_SIGNATURE, b',"signature":"' + b64encode(RFC_SIGNATURE) + b'"}')


def test_signing_twice_gives_the_same_bytes() -> None:
    assert sign(RECORD, private("A")) == SIGNED


def test_every_single_changed_byte_is_noticed() -> None:
    for at in range(len(SIGNED)):
        for other in (SIGNED[at] ^ 1, SIGNED[at] ^ 0x20):
            assert not signed(SIGNED[:at] + bytes((other,)) + SIGNED[at + 1 :]), f"byte {at}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b',"signature":"', b', "signature":"'),
        (b',"signature":"', b',"signature" :"'),
        (b',"signature":"', b',"signature": "'),
        (b',"signature":"', b',"signat\\u0075re":"'),
        (b'"}', b'" }'),
        (b'=="}', b'"}'),
        (b'=="}', b'\\u003d="}'),
        (b'"}', b'","data":1}'),
    ],
)
def test_a_signature_written_in_another_way_is_none(old: bytes, new: bytes) -> None:
    head, mark, tail = SIGNED.rpartition(old)
    assert mark
    assert signature_in(head + new + tail) is None


def test_spare_bits_of_the_base64_make_no_second_signature() -> None:
    last = SIGNED[-5:-4]
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = letters[letters.index(last) ^ 1 : (letters.index(last) ^ 1) + 1]
    assert signature_in(SIGNED[:-5] + twin + SIGNED[-4:]) is None


def test_a_signature_with_a_number_not_reduced_is_none() -> None:
    signature = signature_in(SIGNED)
    assert signature is not None
    larger = int.from_bytes(signature[32:], "little") + ORDER
    twin = signature[:32] + larger.to_bytes(32, "little")
    assert signature_in(SIGNED[:-90] + b64encode(twin) + b'"}') is None


@pytest.mark.parametrize(("number", "lawful"), [(ORDER - 1, True), (ORDER, False), (2**256 - 1, False), (0, True)])
def test_the_number_of_a_signature_ends_below_the_order(number: int, lawful: bool) -> None:
    signature = b64encode(bytes(32) + number.to_bytes(32, "little"))
    assert (signature_in(SIGNED[:-90] + signature + b'"}') is not None) == lawful


def test_a_signature_inside_the_data_is_not_the_record_s() -> None:
    inner = SIGNED.decode()
    assert signature_in(json.dumps({"group": "g", "data": inner}, separators=(",", ":")).encode()) is None
    assert signature_in(b'{"group":"g","data":' + SIGNED + b"}") is None


@pytest.mark.parametrize("key", SMALL_KEYS, ids=str)
@pytest.mark.parametrize("sign_bit", [0, 128])
def test_a_key_of_small_order_is_no_key(key: str, sign_bit: int) -> None:
    raw = bytes.fromhex(key)
    raw = raw[:-1] + bytes((raw[-1] | sign_bit,))
    assert read_key(b64encode(raw).decode()) is None
    if not (sign_bit and key in (ONE, MINUS_ONE)):  # no library reads these two spellings
        # The reason: the point at infinity and 0 sign many messages under such a key.
        nothing = (1).to_bytes(32, "little") + bytes(32)
        tail = b',"signature":"' + b64encode(nothing) + b'"}'
        assert any(is_signed_by(raw, nothing, b"%d" % number + tail) for number in range(200))


@pytest.mark.parametrize("y", [2**255 - 19, 2**255 - 18, 2**255 - 1])
def test_a_key_written_in_a_second_way_is_no_key(y: int) -> None:
    assert read_key(b64encode(y.to_bytes(32, "little")).decode()) is None


@pytest.mark.parametrize("text", ["", "x", "ä", public("A")[:-1], public("A") + "=", " " + public("A"), "A" * 43, 5])
def test_what_is_not_the_base64_of_32_bytes_is_no_key(text: object) -> None:
    assert read_key(text) is None


def test_a_key_is_read_as_it_was_printed() -> None:
    assert read_key(public("A")) == KEY


def test_who_has_no_groups_with_keys_does_not_load_the_library() -> None:
    program = "import sys, precede; precede.Holdback().receive(b'{}'); print('cryptography' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"False\n"
