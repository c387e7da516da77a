"""Reading only the needed fields of records, whatever the other fields contain."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.records.published import DeadLetter, OrderedRecord, lenient_reader

DEEP = b"[" * 1_000 + b"]" * 1_000
ORDERED = (
    b'{"group":"g","sender":"A","seq":1,"after":[],"data":%b,"position":7,"order":"s_b","status":"delivered",'
    b'"partition":0,"offset":1,"arrived_ms":2,"released_offset":1,"released_ms":2}'
)


class Head(msgspec.Struct):
    """A few fields, as a reader declares them."""

    kind: str = "message"
    time: int = 0
    after: list[tuple[str, int, int]] = []


read_head = lenient_reader(Head)


@pytest.mark.parametrize("data", [b'"\\ud800"', b'{"\\udc00":1e400}', DEEP, b"9" * 5_000], ids=lambda data: data[:9])
def test_what_the_contract_lets_pass_in_data_hinders_no_reader_of_the_other_fields(data: bytes) -> None:
    record = lenient_reader(OrderedRecord)(ORDERED % data)
    assert (record.group, record.sender, record.seq, record.position) == ("g", "A", 1, 7)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"kind":"\xff"}',
        b'{"\xff":1,"kind":"\xff"}',
        b'{"time":' + DEEP + b"}",
        b'{"after":' + DEEP + b"}",
        b'{"data":' + b"[" * 100_000,
        b'{"kind":"\\ud800"}',
    ],
    ids=lambda value: value[:12],
)
def test_what_is_no_such_record_is_refused_in_one_way(value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_head(value)


@given(st.binary(max_size=200) | st.builds(lambda data: b'{"kind":"message","data":"' + data + b'"}', st.binary()))
def test_no_bytes_raise_anything_else(value: bytes) -> None:
    for read in (read_head, lenient_reader(DeadLetter), lenient_reader(OrderedRecord)):
        with suppress(msgspec.DecodeError):
            read(value)
