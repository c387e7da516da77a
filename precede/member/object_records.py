"""The records of the object-based protocol: what an ordered record says, and what its data hold."""

from typing import Any, Literal

import msgspec

from precede.udfs.member.objects import ObjectMessage, Vector
from precede.udfs.records.messages import Id, ObjectStamp


class Payload(msgspec.Struct, omit_defaults=True):
    """What the messages of this protocol carry as their data."""

    no: int
    vector: Vector
    arguments: list[Any] = []
    answer: bool = True
    """Of a request: whether it is answered; if not, it is one-way."""
    asynchronous: bool = False
    """Of a request: whether its caller goes on meanwhile."""
    transaction: Id | None = None
    """Of a request: the first one of the same transaction, if this is not it."""
    answers: Id | None = None
    """Of a response: its request."""
    result: Any = None
    error: str | None = None
    undecided: bool = False
    """Of a response: whether what was done can still be undone."""
    about: Id | None = None
    """Of data: the request that the two instances have in common."""
    value: Any = None
    outcome: Literal["commit", "abort"] | None = None
    """Of the end of an instance: what becomes of the requests in `of`."""
    of: list[Id] = []


class _Wire(msgspec.Struct):
    """The fields of an ordered record that this protocol reads."""

    sender: str
    seq: int
    object: ObjectStamp
    data: Payload
    epoch: int = 0
    status: str = "delivered"
    after: list[Id] = []
    to: list[str] = []


def read_object_record(record: bytes) -> tuple[ObjectMessage, Payload] | None:
    """A delivered message of this protocol and its data, or None for any other record."""
    try:
        wire = msgspec.json.decode(record, type=_Wire)
        message = _as_message(wire)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return (message, wire.data) if wire.status == "delivered" else None


def _as_message(wire: _Wire) -> ObjectMessage:
    stamp = wire.object
    if not (isinstance(stamp.instance, tuple) and isinstance(stamp.op, str) and isinstance(stamp.type, str)):
        raise ValueError("a message of this protocol names its instance, its method and its type")
    oid, name = stamp.instance
    if not isinstance(name, str):
        raise ValueError("an object of this protocol has a name, and not a number")
    return ObjectMessage(
        id=(wire.sender, wire.epoch, wire.seq),
        source=wire.sender,
        to=tuple(wire.to),
        instance=(int(oid), name),
        no=wire.data.no,
        op=stamp.op,
        sender_op=stamp.sender_op if isinstance(stamp.sender_op, str) else "",
        type=stamp.type,
        vector=wire.data.vector,
        after=tuple(wire.after),
    )
