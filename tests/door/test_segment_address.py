"""The address of a segment, and its key: what is read, and what is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from precede.ingest.segment.address import DEFAULT_URL, read_address, read_addresses
from precede.ingest.segment.link import read_segment_key
from precede.streaming.settings import load
from precede.udfs.errors import Refused


def test_an_address_is_a_multicast_address_a_port_and_perhaps_an_interface() -> None:
    plain = read_address("udp://239.255.70.80:17080")
    assert plain == ("239.255.70.80", 17080, None)
    assert read_address("udp://239.255.70.80:17080%eth0") == ("239.255.70.80", 17080, "eth0")
    assert read_address("udp://[ff15:0::7080]:17080%lo") == ("ff15::7080", 17080, "lo")
    assert read_address(DEFAULT_URL) == plain


def test_peers_with_other_interfaces_call_the_segment_by_one_name() -> None:
    names = {read_address(f"udp://[{host}]:5%{face}").name for host in ("ff15::1", "FF15:0::1") for face in "ab"}
    assert names == {"udp://[ff15::1]:5"}
    assert str(read_address("udp://[ff15::1]:5%a")) == "udp://[ff15::1]:5%a"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("239.255.70.80:17080", "is not the address of a segment: write it as udp://239.255.70.80:17080%eth0"),
        ("tcp://239.255.70.80:17080", "is not the address of a segment"),
        ("udp://239.255.70.80", "is not the address of a segment"),
        ("udp://239.255.70.80:17080%", "is not the address of a segment"),
        ("udp://239.255.70.80:17080%eth0/x", "is not the address of a segment"),
        ("udp://ff15::1:17080", "is not the address of a segment"),
        ("udp://[239.255.70.80]:17080", "only IPv6 stands in brackets"),
        ("udp://travel.example:17080", "travel.example in .* is not an IP address"),
        ("udp://239.255.70.300:17080", "is not an IP address"),
        ("udp://192.0.2.1:17080", "is not a multicast address: take one from 239.0.0.0"),
        ("udp://[fe80::1]:17080", "is not a multicast address"),
        ("udp://239.255.70.80:0", "must lie between 1 and 65535"),
        ("udp://239.255.70.80:70000", "must lie between 1 and 65535"),
        ("", "is not the address of a segment"),
    ],
)
def test_what_is_no_address_is_refused_in_a_sentence(url: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read_address(url)


def test_several_segments_stand_with_commas_between_them() -> None:
    found = read_addresses("udp://239.255.70.80:1%a, udp://239.255.70.80:1%b")
    assert [one.interface for one in found] == ["a", "b"]
    with pytest.raises(Refused, match="is named twice"):
        read_addresses("udp://239.255.70.80:1,udp://239.255.70.80:1")


def test_the_setting_is_checked_when_it_is_read() -> None:
    assert load({}, {"PRECEDE_SEGMENT": "udp://239.1.2.3:9%lo"}).segment == "udp://239.1.2.3:9%lo"
    with pytest.raises(Refused, match="is not a multicast address"):
        load({"segment": "udp://10.0.0.1:9"}, {})


def test_a_segment_key_is_hexadecimal_and_its_owner_s_alone(tmp_path: Path) -> None:
    file = tmp_path / "segment.key"
    file.write_text("00ff" * 8 + "\n")
    file.chmod(0o600)
    assert read_segment_key(file) == bytes([0, 255] * 8)
    file.chmod(0o644)
    with pytest.raises(Refused, match="can be read by other users: chmod 600"):
        read_segment_key(file)


@pytest.mark.parametrize("text", [b"", b"secret", b"00ff", b"0" * 130, b"0" * 33, b"\xff" * 40])
def test_what_is_no_segment_key_is_refused_and_not_shown(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "segment.key"
    file.write_bytes(text)
    file.chmod(0o600)
    with pytest.raises(Refused, match="contains no segment key, which is 32 to 128 hexadecimal digits") as refused:
        read_segment_key(file)
    assert not text.strip() or text.decode(errors="replace") not in str(refused.value).replace(str(file), "")


def test_a_segment_key_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read: No such file"):
        read_segment_key(tmp_path / "none")
