"""What the job itself says: requests for repair and how gaps ended, records of its own, sentences for who runs it.

The kernel decides on them when it reads a record that lets time pass, from the log alone, so the same log gives the
same ones in any batches. They act when they are read: no timer ever changes a group.
"""

from typing import Literal

import msgspec

from precede.udfs.records.messages import Id

VERSION = 1

Topic = Literal["raw", "control", "person"]
"""One of Kafka's, or whoever watches the job, who is told a sentence."""

_encode = msgspec.json.Encoder().encode


class Own(msgspec.Struct, array_like=True, gc=False):
    """One record of the job's own, and the raw offset at which it was decided on."""

    topic: Topic
    key: bytes
    value: bytes
    offset: int


class GapRecord(msgspec.Struct, kw_only=True, gc=False):
    """What topic `precede.control` says of a gap: that it shall be filled, or how it ended; the newest says all."""

    v: int = VERSION
    kind: Literal["ask", "filled", "abandoned", "dropped"]
    group: str
    sender: str
    epoch: int
    first: int
    last: int
    to: str | None = None
    asked: int
    opened_ms: int
    asked_ms: int | None
    closed_ms: int | None = None
    waited: list[Id]
    partition: int
    offset: int


def encode_gap(record: GapRecord) -> bytes:
    """Write one record of the control topic."""
    return _encode(record)


def encode_abandon(group: str, name: str, epoch: int, first: int, last: int) -> bytes:
    """Write the record by which a group gives up on missing messages."""
    return _encode({"group": group, "kind": "abandon", "ids": [[name, epoch, first, last]]})


def encode_evict(group: str, name: str, epoch: int, cut: int) -> bytes:
    """Write the record by which a group goes on without a member that fell silent."""
    return _encode({"group": group, "kind": "evict", "member": [name, epoch], "cut": cut})


def encode_sentence(sentence: str) -> bytes:
    """Write what the job shall say to a person."""
    return _encode(sentence)
