"""Records the job itself writes: requests for repair, outcomes of gaps, raw records and sentences for the operator.

The kernel decides on them from the log alone, when it reads a record that lets time pass. So the same log gives the
same records, however it is cut into batches. They take effect when they are read: no timer ever changes a group.
"""

from typing import Literal

import msgspec

from precede.udfs.records.messages import Id

VERSION = 1

Topic = Literal["raw", "control", "person"]
"""A Kafka topic, or the person who watches the job and gets a sentence."""

_encode = msgspec.json.Encoder().encode


class JobRecord(msgspec.Struct, array_like=True, gc=False):
    """One record that the job writes, and the raw offset at which the kernel decided on it."""

    topic: Topic
    key: bytes
    value: bytes
    offset: int


class GapRecord(msgspec.Struct, kw_only=True, gc=False):
    """The state of a gap in topic `precede.control`: requested, or how it ended. The newest record is complete."""

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
    """Write the record that abandons missing messages of a group."""
    return _encode({"group": group, "kind": "abandon", "ids": [[name, epoch, first, last]]})


def encode_evict(group: str, name: str, epoch: int, cut: int) -> bytes:
    """Write the record that evicts a silent member, so that its group can go on."""
    return _encode({"group": group, "kind": "evict", "member": [name, epoch], "cut": cut})


def encode_sentence(sentence: str) -> bytes:
    """Write a sentence for the operator."""
    return _encode(sentence)
