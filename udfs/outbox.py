"""Where the kernel puts what it decided: ordered records and dead letters, as bytes, in order."""


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

    def clear(self) -> None:
        """Forget what was taken."""
        self.ordered.clear()
        self.ordered_keys.clear()
        self.dead.clear()
        self.dead_keys.clear()
