"""Whether the own join of a group counts yet.

Under orders by clocks every present member must have answered it: each has then taken it into account, and delivers
nothing above the joiner's next time before the joiner has spoken. In the other orders a join counts at once.
"""

from precede.udfs.peers.notes import JoinAnswer

AGAIN_MS = 500.0
"""A join that is not answered by all is repeated this often."""


class OwnJoin:
    """The own standing in one group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.joined = False
        self.left = False
        self.answers: dict[str, int] = {}
        """Who has answered the own join, and the time that it told."""
        self.named: set[str] = set()
        """The members that those who answered know: they have to answer, too."""
        self.record: bytes | None = None
        self.again_ms: float | None = None
        """When to repeat the join."""

    @property
    def is_in(self) -> bool:
        """Whether this peer is a member, or becomes one: then it answers those that join."""
        return not self.left and (self.joined or self.record is not None)

    @property
    def waits(self) -> bool:
        """Whether the own join is said and does not count yet."""
        return self.record is not None and not self.joined

    def begin(self, record: bytes, now_ms: float) -> None:
        """The own join goes out."""
        self.record = record
        self.again_ms = now_ms + AGAIN_MS
        self.joined = self.left = False
        self.answers.clear()
        self.named.clear()

    def end(self) -> None:
        self.left, self.joined, self.record, self.again_ms = True, False, None, None

    def receive_answer(self, answer: JoinAnswer, epoch: int) -> bool:
        """A member answers; returns whether that is for the own join."""
        if answer.joiner != self.name or answer.epoch != epoch or self.record is None:
            return False
        self.answers[answer.name] = answer.time
        self.named.update(answer.members)
        return True

    def counts_now(self, waits_for: set[str] | None) -> bool:
        """Whether the join counts from now on, where these must have answered; None if that is not known yet."""
        if self.joined or self.record is None or waits_for is None or waits_for - {self.name} - self.answers.keys():
            return False
        self.joined, self.again_ms = True, None
        return True

    def is_due(self, now_ms: float) -> bool:
        """Whether to repeat the join now."""
        if self.again_ms is None or self.again_ms > now_ms:
            return False
        self.again_ms = now_ms + AGAIN_MS
        return True
