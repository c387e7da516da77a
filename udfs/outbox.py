"""Where the kernel puts what it decided: ordered records and dead letters, as bytes, in order."""

from udfs.codes import Refusal
from udfs.messages import Identity
from udfs.wire import DeadLetter, encode_dead_letter


class Outbox:
    """Parallel lists of keys and values; whoever drives the kernel takes them and clears."""

    __slots__ = ("dead", "dead_keys", "duplicates", "held_growth", "ordered", "ordered_keys")

    def __init__(self) -> None:
        self.ordered: list[bytes] = []
        self.ordered_keys: list[bytes] = []
        self.dead: list[bytes] = []
        self.dead_keys: list[bytes | None] = []
        self.duplicates = 0
        self.held_growth = 0
        """By how much the number of held messages has grown since created; less than 0 where it shrank."""

    def refuse(
        self,
        refusal: Refusal,
        identity: Identity,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        offset: int,
        arrived_ms: int,
    ) -> None:
        """Write the dead letter of one record."""
        letter = DeadLetter(
            code=refusal.code,
            reason=refusal.reason,
            group=identity.group,
            sender=identity.sender,
            epoch=identity.epoch,
            seq=identity.seq,
            partition=partition,
            offset=offset,
            arrived_ms=arrived_ms,
        )
        self.dead.append(encode_dead_letter(letter, value))
        self.dead_keys.append(key)

    def clear(self) -> None:
        """Forget what was taken."""
        self.ordered.clear()
        self.ordered_keys.clear()
        self.dead.clear()
        self.dead_keys.clear()
