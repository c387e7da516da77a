"""What `Member` and `Peer` have in common, so that a program that is written for one runs on the other.

What an application passes is checked at once: an argument that cannot mean anything is a ValueError.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import msgspec

from precede.reading.delivery import IDLE_S, DeliveredMessage, Delivery
from precede.udfs.orders import ORDERS, has_destinations
from precede.udfs.records.identifiers import MessageId, as_name, checked_id, parse_id
from precede.udfs.records.messages import META_BYTES_MAX, Id


class GroupMember(ABC):
    """One name in one group: it iterates over what is delivered."""

    group: str
    name: str
    _patience_s: float | None
    _records: bool
    _own: bool

    @property
    @abstractmethod
    def order(self) -> str:
        """The group's order."""

    @abstractmethod
    def poll(self, timeout_s: float) -> DeliveredMessage | None:
        """The next message, or None if none came in that time.

        With `records` it may also be an `Abandoned` or a `View`, which has no id: `isinstance` tells.
        """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DeliveredMessage:
        while True:
            delivery = self.poll(IDLE_S if self._patience_s is None else self._patience_s)
            if delivery is not None:
                return delivery
            if self._patience_s is not None:
                raise StopIteration

    def _is_wanted(self, delivery: Delivery) -> bool:
        if not self._own and delivery.sender == self.name and delivery.kind == "message":
            return False
        return self._records or delivery.__class__ is DeliveredMessage

    def _destinations(self, to: Iterable[str] | None) -> list[str] | None:
        order = self.order
        if to is None:
            if has_destinations(order):
                raise ValueError(f"in {order} a message needs `to`, the members it is for")
            return None
        if order in ORDERS and not ORDERS[order].takes_to:
            raise ValueError(f"in {order} every message is for the whole group: leave `to` out")
        if isinstance(to, str):
            raise ValueError(f"`to` is a list of members: write [{to!r}]")
        return [as_name("a member in `to`", name) for name in to]


# ── what an application passes to a member ────────────────────────────────────────────────────────────────────────────

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


def as_json(data: Any, what: str = "data") -> bytes:
    """The value as JSON that every reader accepts: no NaN, and nothing that only Python has; msgspec.Raw is JSON."""
    if isinstance(data, msgspec.Raw):
        return bytes(data)
    try:
        return _to_json(data).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{what} must be a JSON value (text, numbers, lists, objects, true, false, null): {error}"
        ) from error


def as_meta(meta: Any) -> bytes | None:
    """What goes with the data, as JSON."""
    if meta is None:
        return None
    if not isinstance(meta, dict):
        raise ValueError(f"meta must be a dictionary, not {type(meta).__name__}")
    text = as_json(meta, "meta")
    if len(text) > META_BYTES_MAX:
        raise ValueError(f"meta may have {META_BYTES_MAX:,} bytes as JSON, and this has {len(text):,}")
    return text
