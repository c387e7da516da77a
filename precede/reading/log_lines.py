"""Feeds a log given as lines of text to the kernel: the input of `precede replay`.

A line is a raw record as a gateway would publish it, or a dumped log line: an object with the key, partition, offset
and time that the log gave to its `value`. All fields of a dumped line except `value` are optional. The defaults are
those of a raw record: partition 0, the line's number as offset, time 0, and the record's own group as key. `key` may
be null, as in the log.
"""

import os
from collections.abc import Callable, Iterator
from typing import Annotated, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from precede.udfs.holdback import OWN_KEY, OwnKey

BLOCK_BYTES = 1 << 15  # so small that a block and its output stay in the cache until written


class _Named(msgspec.Struct, gc=False):
    """Shows whether a line has a top-level `value`."""

    value: msgspec.Raw | UnsetType = UNSET


class _Dumped(msgspec.Struct, forbid_unknown_fields=True):
    """A dumped log line; any other line with a `value` is a raw record with an extra field."""

    value: str | None  # null is a tombstone, which the kernel refuses with a sentence
    key: str | UnsetType | None = UNSET
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType = UNSET
    timestamp_ms: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0


_decode_dumped = msgspec.json.Decoder(_Dumped).decode
_WANTED = {
    "value": "a string `value`, or null",
    "key": "a string `key`, or null",
    "partition": "an integer `partition` from 0 to 2^31-1",
    "offset": "an integer `offset` from 0 to 2^63-1",
    "timestamp_ms": "an integer `timestamp_ms`",
}
"""What each field of a dumped line must be, for the error sentence."""
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(_Dumped)}
_NOT_READABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_VALUE = b'"value"'
_names_value = msgspec.json.Decoder(_Named).decode


def blocks(file: int, read: Callable[[int, int], bytes] = os.read) -> Iterator[bytes]:
    """Blocks of whole lines, as many as one read of the file returns; a last line without a line end counts too."""
    parts: list[bytes] = []
    while block := read(file, BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if end == 0:
            parts.append(block)
            continue
        yield b"".join([*parts, block[:end]])
        parts = [block[end:]]
    rest = b"".join(parts)
    if rest:
        yield rest + b"\n"


class Receiver(Protocol):
    """Takes the records of a log: the kernel, or a trace that keeps them for it."""

    def receive(
        self, value: bytes | None, key: bytes | OwnKey | None, partition: int, offset: int, timestamp_ms: int, /
    ) -> None:
        """Take one record."""


class PartitionError(ValueError):
    """A dumped line names a partition that the log does not have."""


class LogLines:
    """Passes lines to the kernel, and counts them: an empty line is skipped but numbered.

    A dumped line with a field of the wrong type goes to `refuse` with its offset and a sentence. Without `refuse` it
    counts as a raw record with an extra field. With a number of `partitions`, a dumped line from any other raises
    PartitionError.
    """

    def __init__(
        self,
        receiver: Receiver,
        refuse: Callable[[bytes, str, int], None] | None = None,
        partitions: int | None = None,
    ) -> None:
        self._receiver = receiver
        self._refuse = refuse
        self._partitions = partitions
        self.count = 0

    def feed(self, block: bytes) -> None:
        """Take whole lines."""
        receive = self._receiver.receive
        may_be_dumped = _VALUE in block
        number = self.count - 1
        if b"\r" in block:  # Windows line ends are not part of a record and do not count towards its size
            block = block.replace(b"\r\n", b"\n")
        for number, text in enumerate(block[:-1].split(b"\n"), self.count):
            if may_be_dumped and _VALUE in text and _is_dumped(text):
                self._receive_dumped(text, number)
            elif text:
                receive(text, OWN_KEY, 0, number, 0)
        self.count = number + 1

    def _receive_dumped(self, text: bytes, number: int) -> None:
        try:
            dumped = _decode_dumped(text)
            value = None if dumped.value is None else dumped.value.encode()
            key = OWN_KEY if dumped.key is UNSET else None if dumped.key is None else dumped.key.encode()
        except _NOT_READABLE:
            wanted = None if self._refuse is None else _what_is_wrong(text)
            if self._refuse is None or wanted is None:
                self._receiver.receive(text, OWN_KEY, 0, number, 0)
            else:
                self._refuse(text, f"A dumped log line needs {wanted}.", number)
            return
        if self._partitions is not None and dumped.partition >= self._partitions:
            raise PartitionError(
                f"Line {number + 1} is from partition {dumped.partition}, and a log of {self._partitions} partitions "
                f"has only 0 to {self._partitions - 1}: give the number of partitions that the dumped topic has."
            )
        offset = number if dumped.offset is UNSET else dumped.offset
        self._receiver.receive(value, key, dumped.partition, offset, dumped.timestamp_ms)


def _is_dumped(text: bytes) -> bool:
    try:
        return _names_value(text).value is not UNSET
    except _NOT_READABLE:
        return False


def _what_is_wrong(text: bytes) -> str | None:
    """What a dumped line lacks; None if it is not a dumped line, or a duplicate field hides what is wrong."""
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if not fields.keys() <= _WANTED.keys():
        return None
    for name, raw in fields.items():
        try:
            msgspec.json.decode(raw, type=_FIELDS[name])
        except _NOT_READABLE:
            return _WANTED[name]
    return None


def one_line_each(records: list[bytes]) -> bytes:
    """Records as lines. A line break inside a record can only be white space, so it becomes a space."""
    text = b"\n".join(records)
    if text.count(b"\n") != len(records) - 1 or b"\r" in text:
        text = b"\n".join([record.translate(_BREAKS_TO_SPACES) for record in records])
    return text + b"\n"


_BREAKS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
