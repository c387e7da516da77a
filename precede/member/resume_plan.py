"""Decides how a member resumes: where it begins to read, what it is handed over first, under which epoch, and whether
it joins.

Everything here is pure: each decision is a function of what was read, without I/O and without a clock.
`startup.py` reads what the decisions need and carries them out.
"""

from collections import deque
from typing import Any, Literal, NamedTuple

from precede.ingest.follower_token import VERSION, FollowerToken
from precede.ingest.sender_state import KnownSender
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.records.messages import EPOCH_MAX, LogRecord

History = Literal["all", "none"] | int
"""How much of the past a newcomer is handed: everything, nothing, or the last n messages."""

Found = tuple[LogRecord, dict[str, Any]]
"""A record of the ordered topic, and its fields."""


class Reading(NamedTuple):
    """Where the ordered topic is read from, decided before anything is read."""

    offsets: dict[int, int]
    last: int | None
    """The position that was handed over last; None if `history` decides where to begin."""
    resumes: bool
    """Whether the member goes on where its state file says, so that it needs nothing older."""


class Start(NamedTuple):
    """Where the member begins."""

    offsets: dict[int, int]
    """The next offset of each partition of the ordered topic."""
    position: int
    """The last position that is not handed over."""
    from_delta: tuple[int, int] | None
    """The first and last position that are handed over from Delta before the topic is read on."""

    def token(self, topic: str, group: str, name: str) -> FollowerToken:
        """What a follower resumes from."""
        last = [(group, None, self.position), (group, name, self.position)]
        return FollowerToken(v=VERSION, topic=topic, offsets=self.offsets, group=group, last=last)


def plan_reading(beginnings: dict[int, int], kept: FollowerToken | None, since: int | None, name: str) -> Reading:
    """Read from the kept offsets on, unless the application names the position itself or nothing is kept.

    `beginnings` has only the group's own partition; tokens of older releases name all of them.
    """
    if since is not None or kept is None:
        return Reading(beginnings, since, resumes=False)
    last = max((last for _, destination, last in kept.last if destination in (None, name)), default=0)
    offsets = {partition: kept.offsets.get(partition, first) for partition, first in beginnings.items()}
    return Reading(offsets, last, resumes=True)


class StartPlan:
    """Splits the group's records in the ordered topic into those the member only learns from, and those it is handed.

    Add the records in the order of the topic, and then ask for `start`.
    """

    def __init__(self, reading: Reading, history: History, name: str) -> None:
        self._name = name
        self._last = reading.last
        self._resumes = reading.resumes
        self._history: History = "all" if reading.last is not None else history
        self._offsets = dict(reading.offsets)
        self._position = reading.last or 0
        self.first: int | None = None
        """The first position that the topic still has."""
        self.end = 0
        """The last position that the topic has."""
        self._newest: deque[Found] = deque()
        """The last records, which hold no more messages than `history` allows."""
        self._messages = 0

    @property
    def topic_has_records(self) -> bool:
        """Whether the topic still has any record for this member."""
        return self.first is not None

    @property
    def lacks_beginning(self) -> bool:
        """Whether a newcomer must learn from Delta who belonged to the group before the topic begins."""
        return not self._resumes and self.first != 1

    def add(self, found: Found) -> list[Found]:
        """Add the next record; the result is what now turns out not to be handed over."""
        fields = found[1]
        if fields.get("destination") not in (None, self._name):
            return []
        self.first = self.first or fields["position"]
        self.end = fields["position"]
        skipped: list[Found] = []
        if self._last is not None:
            skipped = [found] if fields["position"] <= self._last else []
        elif self._history == "none":
            skipped = [found]
        elif self._history != "all":
            self._newest.append(found)
            self._messages += _is_message(fields)
            while self._messages > self._history:
                skipped.append(self._newest.popleft())
                self._messages -= _is_message(skipped[-1][1])
        for record, skipped_fields in skipped:
            self._position = skipped_fields["position"]
            self._offsets[record.partition] = record.offset + 1
        return skipped

    def start(self, *, has_delta: bool, delta_last: int = 0) -> Start:
        """Where to begin; `delta_last` is the last position in Delta, which only matters if the topic has no records.

        If the topic begins later than this place, the member meets a hole there and fills it from Delta.
        """
        position, history, from_delta = self._position, self._history, None
        if has_delta and self.first is None:
            if history != "all":
                position = max(position, delta_last - (0 if history == "none" else history))
            from_delta = position + 1, delta_last
        elif has_delta and self.first is not None and self.lacks_beginning and isinstance(history, int):
            position = max(position, self.first - 1 - max(0, history - self._messages))
        return Start(self._offsets, position, from_delta)


def needs_new_epoch(known: KnownSender, knowledge: Knowledge, *, is_new: bool, seq_in_log: int) -> bool:
    """Whether the kept epoch has ended or cannot be trusted; `seq_in_log` is the largest seq that the log shows."""
    has_ended = knowledge.is_out(known.sender, known.epoch) or known.epoch > EPOCH_MAX
    return is_new or has_ended or known.doubled or seq_in_log > known.seq


def awaits_admission(knowledge: Knowledge, name: str) -> bool:
    """Whether only the group's service can let this member in, and has not done so yet."""
    return knowledge.has_keys and knowledge.closed and name not in knowledge.keys


class JoinPlan(NamedTuple):
    """What a member does about its membership when it is opened."""

    action: Literal["none", "refuse", "only listen", "join"]
    brings_key: bool = False
    """Whether the join carries the member's public key."""


def plan_join(
    known: KnownSender, knowledge: Knowledge, *, by_clocks: bool, public_key: str | None, why_forged: str | None
) -> JoinPlan:
    """Join if the group expects it; `why_forged` is why the group would not accept what this member signs."""
    if why_forged is not None and by_clocks:
        return JoinPlan("refuse")  # it could not tell the others that it hears them, so all would wait for it
    brings_key = public_key is not None and bool(knowledge.keys) and known.sender not in knowledge.keys
    is_expected = knowledge.closed or by_clocks or brings_key
    if not is_expected or known.joined or knowledge.is_in(known.sender, known.epoch):
        return JoinPlan("none")
    return JoinPlan("join", brings_key) if why_forged is None else JoinPlan("only listen")


def _is_message(fields: dict[str, Any]) -> bool:
    return fields.get("kind", "message") == "message" and bool(fields["status"] == "delivered")
