"""Checks what an application passes to a member: an argument that cannot mean anything is a ValueError."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from precede.reading.delivery import Delivery
from precede.udfs.records.messages import EPOCH_MAX, NAME_BYTES_MAX, SEQ_MAX, Id

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def as_name(what: str, name: Any) -> str:
    """The name of a group or a member."""
    try:
        size = len(name.encode())
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{what} must be text that UTF-8 can encode, not {name!r}") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise ValueError(f"{what} must have 1 to {NAME_BYTES_MAX} bytes, not {size}")
    return str(name)


def check_start(history: Any, since: Any) -> None:
    """Check where a member wants to begin."""
    if history not in ("all", "none") and (history.__class__ is not int or history < 0):
        raise ValueError(f'history must be "all", "none" or the number of last messages to get, not {history!r}')
    if since is not None and (since.__class__ is not int or since < 0):
        raise ValueError(f"since must be the position handed over last, 0 or more, or None, not {since!r}")


def check_seconds(what: str, seconds: Any) -> None:
    """Check a duration; None means without limit."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"{what} must be a number of seconds above 0, or None, not {seconds!r}")


def as_ids(after: Any) -> list[Id]:
    """The ids of what a message answers: nothing, one message or its id, or several of them."""
    if after is None:
        return []
    if isinstance(after, Delivery) or _looks_like_id(after) or not isinstance(after, Iterable):
        return [as_id(after)]
    return [as_id(one) for one in after]


def _looks_like_id(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 3 and isinstance(value[0], str)


def as_id(value: Any) -> Id:
    """The id of a message, given as the message or as its id."""
    if isinstance(value, Delivery):
        value = value.id
    if not _looks_like_id(value):
        raise ValueError(f"an id must be (sender, epoch, seq), not {value!r}")
    sender, epoch, seq = value
    as_name("the sender of an id", sender)
    if epoch.__class__ is not int or not 0 <= epoch <= EPOCH_MAX or seq.__class__ is not int or not 1 <= seq <= SEQ_MAX:
        raise ValueError(
            f"in an id the epoch must be 0 to {EPOCH_MAX} and the seq 1 to {SEQ_MAX}, not {epoch!r} and {seq!r}"
        )
    return sender, epoch, seq


def as_json(data: Any) -> bytes:
    """The value as JSON that every reader accepts: no NaN, and nothing that only Python has; msgspec.Raw is JSON."""
    if isinstance(data, msgspec.Raw):
        return bytes(data)
    try:
        return _to_json(data).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"data must be a JSON value (text, numbers, lists, objects, true, false, null): {error}"
        ) from error
