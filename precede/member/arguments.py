"""Checks what an application passes to a member: an argument that cannot mean anything is a ValueError."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from precede.reading.delivery import Delivery
from precede.udfs.records.identifiers import MessageId, checked_id, parse_id
from precede.udfs.records.messages import META_BYTES_MAX, Id

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


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
    if isinstance(after, Delivery | str) or _looks_like_id(after) or not isinstance(after, Iterable):
        return [as_id(after)]
    return [as_id(one) for one in after]


def _looks_like_id(value: Any) -> bool:
    """Whether these are the parts of an id; three ids as text are not."""
    return (
        isinstance(value, tuple | list) and len(value) == 3 and isinstance(value[0], str) and value[1].__class__ is int
    )


def as_id(value: Any) -> MessageId:
    """The id of a message, given as the message, as text (`ann:2`), or in its parts."""
    if isinstance(value, Delivery):
        if value.id is None:
            raise ValueError(f"a {value.kind} has no id, so nothing can answer it")
        return value.id
    if isinstance(value, str):
        return parse_id(value)
    if not _looks_like_id(value) or value[2].__class__ is not int:
        raise ValueError(f'an id must be text such as "ann:2", or (sender, epoch, seq), not {value!r}')
    return checked_id(*value)


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


def as_meta(meta: Any) -> bytes | None:
    """What goes with the data, as JSON."""
    if meta is None:
        return None
    if not isinstance(meta, dict):
        raise ValueError(f"meta must be a dictionary, not {type(meta).__name__}")
    text = as_json(meta)
    if len(text) > META_BYTES_MAX:
        raise ValueError(f"meta may have {META_BYTES_MAX:,} bytes as JSON, and this has {len(text):,}")
    return text
