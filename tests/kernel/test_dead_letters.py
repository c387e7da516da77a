"""What a dead letter says about a record that will never be delivered (contract, section 5)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from tests.kernel.feeding import parsed
from tests.kernel.test_wire import GOOD, with_


def letter_of(value: bytes, limits: Limits | None = None) -> dict[str, Any]:
    kernel = Holdback(order="total", limits=limits)
    kernel.receive(value, b"g", 3, 41, 1234)
    (letter,) = parsed(kernel.dead)
    assert isinstance(letter, dict)
    return letter


def test_a_dead_letter_has_the_fields_of_the_contract_and_no_others() -> None:
    value = with_(sender="a", epoch=2, seq=5, colour="red")
    letter = letter_of(value)
    assert letter.pop("reason").endswith(".")
    assert letter == {
        "code": "malformed",
        "group": "g",
        "sender": "a",
        "epoch": 2,
        "seq": 5,
        "partition": 3,
        "offset": 41,
        "arrived_ms": 1234,
        "value": value.decode(),
    }


@pytest.mark.parametrize(
    ("value", "readable"),
    [
        (b"nonsense", (None, None, None, None)),
        (with_(seq=1.0), ("g", "a", 0, None)),
        (with_(seq=0), ("g", "a", 0, None)),
        (with_(epoch="1"), ("g", "a", None, 1)),
        (with_(sender=""), ("g", None, None, 1)),
        (with_(group=7), (None, "a", 0, 1)),
        (with_(v=2), ("g", "a", 0, 1)),
        (b'{"group":"g","kind":"abandon"}', ("g", None, None, None)),
    ],
)
def test_what_cannot_be_read_of_the_id_is_null(value: bytes, readable: tuple[Any, ...]) -> None:
    letter = letter_of(value)
    assert (letter["group"], letter["sender"], letter["epoch"], letter["seq"]) == readable


def test_a_value_that_is_not_utf_8_is_carried_in_base64() -> None:
    value = GOOD[:-1] + b"\xff}"
    letter = letter_of(value)
    assert "value" not in letter
    assert base64.b64decode(letter["value_base64"]) == value


def test_a_long_value_is_cut_at_64_kib() -> None:
    value = with_(data="x" * 70_000, colour="red")
    letter = letter_of(value)
    assert letter["truncated"] is True
    assert letter["value"] == value[: 64 * 1024].decode()
    assert "truncated" not in letter_of(b"x" * 64 * 1024)


def test_a_long_key_is_cut_at_64_kib_for_kafka_may_not_take_it_back() -> None:
    kernel = Holdback(order="total")
    kernel.receive(b"x", b"k" * 3_000_000, 3, 41, 1234)
    assert kernel.dead_keys == [b"k" * 64 * 1024]


@pytest.mark.parametrize("shift", range(5))
def test_the_cut_never_splits_a_character(shift: int) -> None:
    value = b"x" * shift + "😀".encode() * 20_000
    letter = letter_of(value)
    assert letter["truncated"] is True
    whole = (64 * 1024 - shift) // 4
    assert letter["value"] == "x" * shift + "😀" * whole


def test_a_long_value_that_is_not_utf_8_is_cut_too() -> None:
    value = b"\xff" * 70_000
    letter = letter_of(value)
    assert letter["truncated"] is True
    assert base64.b64decode(letter["value_base64"]) == value[: 64 * 1024]


def test_bad_bytes_after_the_cut_still_make_the_value_base64() -> None:
    letter = letter_of(b"x" * 70_000 + b"\xff")
    assert base64.b64decode(letter["value_base64"]) == b"x" * 64 * 1024
