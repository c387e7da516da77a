"""A held message, inside the kernel and as the outside sees it."""

import msgspec

from udfs.messages import Id, Message

Watch = tuple[str, int, int] | tuple[str, int]
"""What a held message waits for: a message's id, or the join of (sender, epoch)."""


class HeldMessage:
    """A message, or the stand-in of one given up on (no value), on its way through the hold-back loop."""

    __slots__ = ("arrived_ms", "id", "message", "offset", "rank", "value", "watch")

    def __init__(self, id_: Id, message: Message | None, value: bytes | None, offset: int, arrived_ms: int) -> None:
        self.id = id_
        self.message = message
        self.value = value
        self.offset = offset
        self.arrived_ms = arrived_ms
        self.rank = 0
        """The place among the stand-ins of one `abandon` record; 0 for a message."""
        self.watch: Watch | None = None


class Held(msgspec.Struct, kw_only=True):
    """One held message, as `--held` and `precede held` name it (contract, section 7)."""

    group: str
    destination: str | None = None
    sender: str
    epoch: int
    seq: int
    partition: int
    offset: int
    since_ms: int
    missing: list[Id]
    silent: list[str]
