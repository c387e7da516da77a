"""The answer of `precede why`: what became of one message. Its fields are stable; `str()` tells it in words."""

import datetime
from collections.abc import Iterator
from typing import Literal

import msgspec

from precede.inspect.findings import Copy, FoundRefusal
from precede.udfs.engine.inspection import AwaitedAt, AwaitedGap, AwaitedMember
from precede.udfs.orders import has_destinations
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
DATED_FROM_MS = 30 * DAY
"""What is longer ago than this is named by its date."""

_UNITS = ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"))


def lasting(ms: float) -> str:
    """A duration, for example `12 s` or `3 minutes`."""
    if ms < 1:
        return "less than 1 ms"
    if ms < SECOND:
        return f"{round(ms)} ms"
    if ms < 2 * MINUTE:
        return f"{round(ms / SECOND)} s"
    unit_ms, unit = next((size, name) for size, name in _UNITS if ms >= 2 * size)
    return f"{round(ms / unit_ms)} {unit}s"


def ago(then_ms: int, now_ms: float) -> str:
    """When something happened, for example `3 minutes ago`."""
    past_ms = now_ms - then_ms
    if past_ms < SECOND:
        return "just now"
    if past_ms >= DATED_FROM_MS:
        return f"on {date(then_ms)}"
    return f"{lasting(past_ms)} ago"


def ahead(then_ms: int, now_ms: float) -> str:
    """When something will happen, for example `in 14 minutes`."""
    return "with the next tick" if then_ms - now_ms < SECOND else f"in {lasting(then_ms - now_ms)}"


def date(ms: int) -> str:
    """A moment as a date with its time, in UTC."""
    return datetime.datetime.fromtimestamp(ms / SECOND, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def times(count: int) -> str:
    """How often, for example `twice`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


End = Literal["delivered", "held", "refused", "abandoned", "missing", "unseen"]


class Cause(msgspec.Struct, kw_only=True):
    """The raw record that let a message go, or gave it up."""

    kind: str | None
    """`message`, `tick`, `abandon`, ...; None where the raw topic no longer has the record."""
    sender: str | None = None
    id: Id | None = None
    """Of a message."""
    given_up: list[tuple[str, int, int, int]] = []
    """Of an `abandon`: sender, epoch, first and last seq of each range."""


class PlaceInSequence(msgspec.Struct, kw_only=True):
    """One place in the sequence; in `causal_p2p` there is one for each destination."""

    position: int
    destination: str | None
    status: str
    """`delivered`, or `abandoned` for the record that stands for the message."""
    partition: int
    """With `offset` the place in the raw topic: of the message, or of the `abandon` that gave it up."""
    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int
    cause: Cause
    """The record at `released_offset`."""
    is_published: bool
    """Whether the job has written it to the ordered topic already."""


class Answer(msgspec.Struct, kw_only=True):
    """What became of one message."""

    group: str
    sender: str
    epoch: int
    seq: int
    end: End
    order: str | None
    """The order of the group; None where nothing of it was ever accepted."""
    deliveries: list[PlaceInSequence] = []
    arrived_ms: int | None = None
    """Where it is held: when it arrived, and at which offset of the raw topic."""
    offset: int | None = None
    waits: list[AwaitedAt] = []
    """Where it is held: what for."""
    behind: Id | None = None
    """Where it is held: the held message that has to go before it."""
    gaps: list[AwaitedGap] = []
    """Where it is held: what is missing. Where it is missing: the gap it lies in, with the messages that wait."""
    gives_up_ms: int | None = None
    """Where it is held: when the job abandons it; None where that does not come by itself."""
    refusals: list[FoundRefusal] = []
    """Its dead letters, by offset."""
    copies: list[Copy] = []
    """Its copies behind the horizon, which were dropped."""
    highest: int = 0
    """The largest seq seen of this sender and epoch; 0 where none was."""
    fence: int | None = None
    """No seq of this sender and epoch above this counts."""
    partition: int
    """The raw partition of the group."""
    next_offset: int
    """The answer takes all raw records of the partition below this offset into account."""
    behind_job: int = 0
    """How many raw records the job has not published yet."""
    looked_ms: int
    """When this was answered, by the clock of this machine."""

    @property
    def id(self) -> Id:
        return self.sender, self.epoch, self.seq

    def __str__(self) -> str:

        return text(self, self.looked_ms)


NAMED_MAX = 3
"""How many ids are named in one sentence; --json names all."""


def text(answer: Answer, now_ms: float) -> str:
    """The whole answer, a sentence or more a line."""
    return "\n".join(_Telling(answer, now_ms).lines())


class _Telling:
    """Tells one answer at one moment."""

    def __init__(self, answer: Answer, now_ms: float) -> None:
        self.answer = answer
        self.now_ms = now_ms
        self.name = f"{id_text(answer.id)} in {answer.group}"

    def lines(self) -> Iterator[str]:
        tell = {
            "delivered": self._delivered,
            "held": self._held,
            "refused": self._refused,
            "abandoned": self._abandoned,
            "missing": self._missing,
            "unseen": self._unseen,
        }
        yield from tell[self.answer.end]()
        if self.answer.end != "refused":
            yield from self._refusals()
        for copy in self.answer.copies:
            yield f"An exact copy came {self._ago(copy.arrived_ms)} {self._at(copy.offset)} and was dropped."
        unpublished = [one for one in self.answer.deliveries if not one.is_published]
        if unpublished:
            records = _count(self.answer.behind_job, "raw record")
            yield f"The job has not written this to the ordered topic yet; it is {records} behind."

    # ── the ends ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _delivered(self) -> Iterator[str]:
        deliveries = [one for one in self.answer.deliveries if one.status != "abandoned"]
        if not deliveries and has_destinations(self.answer.order):
            yield (
                f"{self.name} is settled: it was sent to no member, or its records are not in the ordered topic any "
                "more, and not in the Delta tables, if there are any here (--delta)."
            )
        elif not deliveries:
            yield (
                f"{self.name} was delivered, but its record is not in the ordered topic any more, and not in the Delta "
                "tables, if there are any here (--delta)."
            )
        for one in deliveries:
            yield f"{self.name} was delivered{self._where(one)}, {self._ago(one.released_ms)}. {self._waited(one)}"

    def _held(self) -> Iterator[str]:
        answer = self.answer
        for one in answer.deliveries:
            yield f"{self.name} was delivered{self._where(one)}, {self._ago(one.released_ms)}. {self._waited(one)}"
        assert answer.arrived_ms is not None
        since = lasting(self.now_ms - answer.arrived_ms)
        yield f"{self.name} has been held for {since} (it came {self._at(answer.offset)})."
        for wait in answer.waits:
            yield from self._wait(wait)
        yield from self._gaps()
        if answer.gives_up_ms is not None:
            yield f"If nothing changes, it is given up {ahead(answer.gives_up_ms, self.now_ms)}."

    def _refused(self) -> Iterator[str]:
        yield from self._refusals(self.name)
        if not self.answer.refusals:
            yield f"{self.name} was refused for ever, but its dead letter is not in the topic any more."
        yield from self._awaited()

    def _abandoned(self) -> Iterator[str]:
        answer = self.answer
        stands = [one for one in answer.deliveries if one.status == "abandoned"]
        for one in [one for one in answer.deliveries if one.status != "abandoned"]:
            yield f"{self.name} was delivered{self._where(one)}, {self._ago(one.released_ms)}. {self._waited(one)}"
        for one in stands[:1]:
            by = f"by an abandon record {self._at(one.offset)}"
            yield f"{self.name} was given up {self._ago(one.arrived_ms)}, {by}."
            yield f"A record without data stands in its place{self._where(one)}."
        if not stands and answer.arrived_ms is not None:
            by = f"by an abandon record {self._at(answer.offset)}"
            yield f"{self.name} was given up {self._ago(answer.arrived_ms)}, {by}."
            yield "The record that stands in its place still waits for its turn."
        elif not stands:
            yield f"{self.name} was given up. When, the topics do not say any more."

    def _missing(self) -> Iterator[str]:
        yield f"{self.name} has not come."
        yield from self._awaited()
        yield from self._fence()

    def _unseen(self) -> Iterator[str]:
        answer = self.answer
        yield f"No record of {self.name} has come, and nothing waits for it."
        who = f"{answer.sender}" + (f" (epoch {answer.epoch})" if answer.epoch else "")
        if answer.order is None:
            yield f"Nothing of the group {answer.group} was ever accepted."
        elif answer.highest == 0:
            yield f"Nothing of {who} was ever accepted in {answer.group}."
        elif answer.highest < answer.seq:
            yield f"The highest seq seen of {who} is {answer.highest}."
        else:
            yield f"Later messages of {who} have come, up to seq {answer.highest}."
        yield from self._fence()

    # ── parts of them ─────────────────────────────────────────────────────────────────────────────────────────────

    def _where(self, one: PlaceInSequence) -> str:
        to = "" if one.destination is None else f" to {one.destination}"
        place = "" if one.status == "abandoned" else f" (partition {one.partition}, offset {one.offset})"
        return f"{to} at position {one.position}{place}"

    def _waited(self, one: PlaceInSequence) -> str:
        held_ms = one.released_ms - one.arrived_ms
        if one.released_offset == one.offset:
            return "It did not have to wait."
        return f"It had waited {lasting(held_ms)} for {_cause(one.cause, one.released_offset)}."

    def _wait(self, wait: AwaitedAt) -> Iterator[str]:
        place = "It waits" if wait.destination is None else f"For {wait.destination} it waits"
        if wait.missing:
            yield f"{place} for {_ids(wait.missing)}."
        for name in wait.joins:
            yield f"{place} for {name} to join: the group is closed."
        for member in wait.silent:
            yield self._silent(place, member)
        if not (wait.missing or wait.joins or wait.silent):
            behind = "held messages" if self.answer.behind is None else f"{id_text(self.answer.behind)}, which is held"
            yield f"{place} for {behind}; nothing that it waits for is missing."

    def _silent(self, place: str, member: AwaitedMember) -> str:
        said = f"{place} for a word of {member.sender}"
        if member.since_ms is not None:
            said += f", silent for {lasting(self.now_ms - member.since_ms)}"
        if member.evicted_ms is not None:
            said += f" and put out of the group {ahead(member.evicted_ms, self.now_ms)} if that goes on"
        return f"{said}."

    def _gaps(self) -> Iterator[str]:
        for gap in self.answer.gaps[:NAMED_MAX]:
            for_since = lasting(self.now_ms - gap.since_ms)
            missing = id_text((gap.sender, gap.epoch, gap.first)) + (f" to {gap.last}" if gap.last > gap.first else "")
            yield f"{missing} has been missing for {for_since}; {self._asked(gap)} {self._hope(gap)}"
        more = len(self.answer.gaps) - NAMED_MAX
        if more > 0:
            yield f"{_count(more, 'more gap')} hold it back; --json names them all."

    def _awaited(self) -> Iterator[str]:
        """Who waits for a message that did not come, or not as a good one."""
        for gap in self.answer.gaps:
            waited = _ids(gap.waited) if gap.waited else "Others"
            verb = "has" if len(gap.waited) == 1 else "have"
            since = lasting(self.now_ms - gap.since_ms)
            yield f"{waited} {verb} waited for it for {since}; {self._asked(gap)} {self._hope(gap)}"

    def _asked(self, gap: AwaitedGap) -> str:
        if gap.asked_ms is None or not gap.asked:
            return "it was not asked for yet."
        last = ", the last time " if gap.asked > 1 else ", "
        return f"it was asked for {times(gap.asked)}{last}{self._ago(gap.asked_ms)}."

    def _hope(self, gap: AwaitedGap) -> str:
        if gap.gives_up_ms is None:
            return "It is never given up by itself."
        return f"If it does not come, it is given up {ahead(gap.gives_up_ms, self.now_ms)}."

    def _refusals(self, name: str = "A record with this id") -> Iterator[str]:
        for refusal in self.answer.refusals:
            to = "" if refusal.destination is None else f" for {refusal.destination}"
            was = f"{name} was refused{to} as {refusal.code}"
            yield f"{was}; it came {self._ago(refusal.arrived_ms)} {self._at(refusal.offset)}. {refusal.reason}"

    def _fence(self) -> Iterator[str]:
        fence = self.answer.fence
        if fence is not None and self.answer.seq > fence:
            epoch = f"{self.answer.sender} in epoch {self.answer.epoch}"
            above = f"above seq {fence} " if fence else ""
            yield f"If it comes, it is refused as fenced: nothing {above}of {epoch} counts any more."

    def _ago(self, then_ms: int) -> str:
        return ago(then_ms, self.now_ms)

    def _at(self, offset: int | None) -> str:
        return f"at partition {self.answer.partition}, offset {offset}"


def _cause(cause: Cause, offset: int) -> str:
    """What let a message go."""
    match cause.kind:
        case None:
            return f"the record at offset {offset}, which the raw topic no longer has"
        case "message" if cause.id is not None:
            return id_text(cause.id)
        case "tick":
            return "time to pass"
        case "abandon":
            given_up = [(*one[:2], seq) for one in cause.given_up for seq in range(one[2], one[3] + 1)[: NAMED_MAX + 1]]
            which = "that" if len(given_up) > NAMED_MAX else _ids(given_up)
            return f"{which} to be given up"
        case "heartbeat":
            return f"a heartbeat of {cause.sender}"
        case "join":
            return f"{cause.sender} to join"
        case "leave":
            return f"{cause.sender} to leave"
        case kind:
            return f"the record at offset {offset} ({kind})"


def _ids(ids: list[Id]) -> str:
    named = [id_text(id_) for id_ in ids]
    if len(named) > NAMED_MAX:
        return f"{', '.join(named[:NAMED_MAX])} and {len(named) - NAMED_MAX} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
