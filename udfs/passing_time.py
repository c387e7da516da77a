"""What time does to a group, on reading a `tick`: the log's clock advances even where no messages come.

First the clocks let go what they can. Then gaps and silent members are looked after, in the state that this leaves.
All of it goes by the time that the log gave the tick, and looks at nothing but the group: the same log asks, abandons
and evicts at the same places, in any batches.

**Gaps** are requested, again and again, until what is missing comes or the group gives up. A gap is a stretch of seqs
of one sender and epoch that held messages wait for and that are not here. Younger than `ask_after_ms` it is only
disorder on the way. Older, it is noticed: the sender is asked to publish it again, then any member that has it, with
pauses that double. When the group gives up, an `abandon` goes into the log, and acts when it is read there.

**Silent members** are evicted where messages wait for every member, in `lamport` and `two_clock`. In every other order
silence holds nothing back. A member is silent when three things are true: the message that has waited longest waits for
its word; nothing of it is known to be missing (otherwise that is a gap); and since that message came it gave no sign of
life for `silent_ms` of the log's time. Then an `evict` goes into the log, with the last seq up to which everything is
here.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from msgspec.structs import replace

from precede.udfs.engine.abandon import most_at_once
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.inspection import (
    Gap,
    ask_after_ms,
    first_opened_ms,
    gaps_of,
    give_up_after_ms,
    is_here,
    strangers,
)
from precede.udfs.engine.repair_timers import NO_TIMERS, NOTICED_MAX, NoticedGap
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.search import LISTED_MAX, Look
from precede.udfs.engine.senders import SenderRuns, sender_key
from precede.udfs.engine.signers import believes_the_job, is_service, say_which_key_is_missing
from precede.udfs.engine.state import by_arrival, first_of
from precede.udfs.limits import ASK_AGAIN_MS_MAX, Patience
from precede.udfs.records.messages import SEQ_MAX, Id, Who
from precede.udfs.records.published import GapRecord, encode_abandon, encode_evict, encode_gap


def deadline_ms(group: Group, patience: Patience) -> int | None:
    """The time of the log from which a tick may do something here; None where no tick ever will.

    It is looked up once and kept until a record changes what is held or waited for, because ticks may come as often as
    they like. What is delivered at once shows in the position; whatever else happens forgets the deadline.
    """
    known = group.deadline
    if known is None or known[0] != group.position:
        known = group.deadline = group.position, _look_for_deadline_ms(group, patience)
    return known[1]


def _look_for_deadline_ms(group: Group, patience: Patience) -> int | None:
    if not group.held and group.repair_timers is None:
        return None
    release_ms = group.release.deadline_ms()
    deadlines = release_ms, _gaps_due_ms(group, patience), _silence_due_ms(group, patience)
    return min((due_ms for due_ms in deadlines if due_ms is not None), default=None)


def pass_time(group: Group, patience: Patience, offset: int, now_ms: int) -> None:
    """One step: the log took a tick at this time."""
    if _is_due(group.release.deadline_ms(), now_ms):
        group.release.pass_time(offset, now_ms)
    if _is_due(_gaps_due_ms(group, patience), now_ms):
        _look_after_gaps(group, patience, offset, now_ms)
    _evict_silent(group, patience, offset, now_ms)
    group.deadline = None


def _is_due(due_ms: int | None, now_ms: int) -> bool:
    return due_ms is not None and due_ms <= now_ms


# ── what is due ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _gaps_due_ms(group: Group, patience: Patience) -> int | None:
    """The time of the log from which there is something to do about a gap; None where there never will be."""
    timers = group.repair_timers or NO_TIMERS
    noticed, joins, circles = timers.gaps, timers.joins, timers.circles
    due = [0 if _has_ended(group, gap.key) else gap.next_ms for gap in noticed.values()]
    if len(noticed) < NOTICED_MAX and group.held:
        after = ask_after_ms(group, patience)
        unnoticed_ms = first_opened_ms(group, noticed)
        if unnoticed_ms is not None:
            due.append(unnoticed_ms + after)
        look = Look(group)
        for one in group.release.queued():
            if not all(_is_noticed(id_, noticed) for id_ in group.release.missing(one, look)):
                due.append(one.arrived_ms + after)
                break
    given_up_ms = give_up_after_ms(group, patience)
    if given_up_ms is not None:
        due += [
            first_of(one).arrived_ms + given_up_ms if who not in joins else joins[who] for who, one in strangers(group)
        ]
        due += [circles.get(one.id, one.arrived_ms + given_up_ms) for one in group.release.closing_messages()]
    return min(due, default=None)


def _is_noticed(id_: Id, noticed: dict[Id, NoticedGap]) -> bool:
    name, epoch, seq = id_
    return any((gap.name, gap.epoch) == (name, epoch) and gap.first <= seq <= gap.last for gap in noticed.values())


def _has_ended(group: Group, id_: Id) -> bool:
    """Whether a gap is known to be over; where one message waits for several ids, that may take until the next look."""
    return is_here(group, id_) or not group.held or (group.order.waits_once and id_ not in group.waiting)


# ── what is done ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _look_after_gaps(group: Group, patience: Patience, offset: int, now_ms: int) -> None:
    """What a tick does about the gaps of one group: tell which ended, notice new ones, ask, abandon."""
    _GapPass(group, patience, offset, now_ms).run()


class _GapPass:
    """The work on the gaps of a group at one record of the log."""

    def __init__(self, group: Group, patience: Patience, offset: int, now_ms: int) -> None:
        self.group = group
        self.offset = offset
        self.now_ms = now_ms
        self.ask_after_ms = ask_after_ms(group, patience)
        self.give_up_after_ms = give_up_after_ms(group, patience)
        self.may_decide = is_service(group, patience.service_key)
        self.is_told = False
        """Whether this look has said already that the job may not decide."""

    def run(self) -> None:
        gaps = gaps_of(self.group)
        before = (self.group.repair_timers or NO_TIMERS).gaps
        noticed: list[NoticedGap] = []
        in_place = sorted(gap[:4] for gap in gaps)
        for known in before.values():
            noticed += self._still(known, in_place)
        waiting: dict[Id, list[HeldMessage]] = {}
        for gap in gaps:
            key = (gap.name, gap.epoch, gap.last)
            waiting[key] = gap.waiting
            overdue = gap.opened_ms + self.ask_after_ms <= self.now_ms
            if overdue and key not in before and len(noticed) < NOTICED_MAX and not _overlaps(gap, noticed):
                noticed.append(self._notice(gap))
        for known in noticed:
            if known.next_ms <= self.now_ms:
                self._act(known, waiting.get(known.key, []))
        if noticed or before:
            self.group.timers_to_write().gaps = {known.key: known for known in noticed}
        self._abandon_unjoined()
        self._abandon_circles()

    def _notice(self, gap: Gap) -> NoticedGap:
        waited = [one.id for one in gap.waiting[:LISTED_MAX] if one.value is not None]
        return NoticedGap(
            name=gap.name,
            epoch=gap.epoch,
            first=gap.first,
            last=gap.last,
            opened_ms=gap.opened_ms,
            next_ms=self.now_ms,
            waited=waited,
        )

    def _still(self, gap: NoticedGap, in_place: list[tuple[str, int, int, int]]) -> Iterator[NoticedGap]:
        """What is left of a gap, in as many parts as it fell into; how the rest ended is told."""
        who = gap.name, gap.epoch
        following = gap.first
        at = max(0, bisect_left(in_place, (*who, gap.first + 1, 0)) - 1)  # no gap overlaps another
        while at < len(in_place) and in_place[at][:3] <= (*who, gap.last):
            first, last = max(in_place[at][2], gap.first), min(in_place[at][3], gap.last)
            if in_place[at][:2] == who and first <= last:
                self._tell_end(gap, following, first - 1)
                following = last + 1
                yield replace(gap, first=first, last=last)
            at += 1
        self._tell_end(gap, following, gap.last)

    def _tell_end(self, gap: NoticedGap, first: int, last: int) -> None:
        """These seqs are no longer missing: each was abandoned, or came, or nothing waits for it any more."""
        if first > last:
            return
        sender = self.group.senders.get(sender_key(gap.name, gap.epoch))
        following = first
        if sender is not None and sender.abandoned is not None:
            for low, high in sender.abandoned.covered(first, last):
                self._tell_other_end(gap, following, low - 1)
                self._tell(gap, low, high, "abandoned")
                following = high + 1
        self._tell_other_end(gap, following, last)

    def _tell_other_end(self, gap: NoticedGap, first: int, last: int) -> None:
        if first <= last:
            here = is_here(self.group, (gap.name, gap.epoch, last))
            self._tell(gap, first, last, "filled" if here else "dropped")

    def _tell(
        self, gap: NoticedGap, first: int, last: int, kind: Literal["ask", "filled", "abandoned", "dropped"]
    ) -> None:
        group = self.group
        record = GapRecord(
            kind=kind,
            group=group.name,
            sender=gap.name,
            epoch=gap.epoch,
            first=first,
            last=last,
            to=self._whom(gap) if kind == "ask" else None,
            asked=gap.asked,
            opened_ms=gap.opened_ms,
            asked_ms=gap.asked_ms,
            closed_ms=None if kind == "ask" else self.now_ms,
            waited=gap.waited,
            partition=group.partition,
            offset=self.offset,
        )
        group.outbox.say("control", group.key, encode_gap(record), self.offset)

    def _whom(self, gap: NoticedGap) -> str | None:
        """The sender is asked first, unless it is known to be gone; then any member that has it."""
        epoch, is_in = self.group.members.get(gap.name, (gap.epoch, True))
        return gap.name if gap.asked == 1 and is_in and epoch == gap.epoch else None

    def _act(self, gap: NoticedGap, waiting: list[HeldMessage]) -> None:
        """Ask, or abandon."""
        sender = self.group.senders.get(sender_key(gap.name, gap.epoch))
        fenced = sender is not None and gap.last > sender.fence  # it would be refused if it came
        gives_up_at_ms = SEQ_MAX if self.give_up_after_ms is None else gap.opened_ms + self.give_up_after_ms
        gives_up = self.give_up_after_ms is not None and (fenced or (gap.asked and self.now_ms >= gives_up_at_ms))
        if gives_up:
            self._abandon_gap(gap, sender, waiting)
        if gives_up and (fenced or self.may_decide):
            gap.next_ms = self.now_ms + ASK_AGAIN_MS_MAX  # the log may refuse it, or take long to reach it
        elif fenced:
            gap.next_ms = SEQ_MAX
        else:
            pause_ms = min(max(1, self.ask_after_ms) << min(gap.asked, 30), ASK_AGAIN_MS_MAX)
            gap.asked += 1
            gap.asked_ms = self.now_ms
            gap.next_ms = self.now_ms + pause_ms
            if gives_up_at_ms > self.now_ms:
                gap.next_ms = min(gap.next_ms, gives_up_at_ms)
            self._tell(gap, gap.first, gap.last, "ask")

    def _abandon_gap(self, gap: NoticedGap, sender: SenderRuns | None, waiting: list[HeldMessage]) -> None:
        """Abandon what is missing, or what waits for it where the missing is further off than the window allows."""
        highest = 0 if sender is None else sender.highest
        if gap.last <= highest + self.group.window:
            most = most_at_once(self.group, gap.name, gap.epoch)
            self._abandon(gap.name, gap.epoch, gap.first, min(gap.last, gap.first + most - 1))
            return
        for one in waiting[:NOTICED_MAX]:
            if one.value is not None:
                self._abandon(*one.id, one.id[2])

    def _abandon(self, name: str, epoch: int, first: int, last: int) -> None:
        if not self.may_decide:
            if not self.is_told:
                say_which_key_is_missing(self.group, self.offset)
            self.is_told = True
            return
        value = encode_abandon(self.group.name, name, epoch, first, last)
        self.group.outbox.say("raw", self.group.key, value, self.offset)

    def _abandon_unjoined(self) -> None:
        """In a closed group, abandon the messages of senders that did not join in time."""
        before = (self.group.repair_timers or NO_TIMERS).joins
        after: dict[Who, int] = {}
        for who, watchers in [] if self.give_up_after_ms is None else strangers(self.group):
            waiting = Runs()
            for one in by_arrival(watchers):
                if one.arrived_ms + self.give_up_after_ms <= self.now_ms:  # type: ignore[operator]
                    waiting.add(one.id[2])
            if waiting.run_count() and before.get(who, 0) <= self.now_ms:
                for first, last in islice(waiting.runs(), NOTICED_MAX):
                    self._abandon(*who, first, last)
                after[who] = self.now_ms + ASK_AGAIN_MS_MAX
            elif who in before:
                after[who] = before[who]
        if before or after:
            self.group.timers_to_write().joins = after

    def _abandon_circles(self) -> None:
        """Of messages that wait for each other, abandon the one that closed the circle."""
        before = (self.group.repair_timers or NO_TIMERS).circles
        after: dict[Id, int] = {}
        for one in [] if self.give_up_after_ms is None else self.group.release.closing_messages()[:NOTICED_MAX]:
            due_ms = before.get(one.id, one.arrived_ms + self.give_up_after_ms)  # type: ignore[operator]
            if due_ms <= self.now_ms:
                self._abandon(*one.id, one.id[2])
                due_ms = self.now_ms + ASK_AGAIN_MS_MAX
            if one.id in before or due_ms > one.arrived_ms + self.give_up_after_ms:  # type: ignore[operator]
                after[one.id] = due_ms
        if before or after:
            self.group.timers_to_write().circles = after


def _overlaps(gap: Gap, noticed: list[NoticedGap]) -> bool:
    return any(
        (known.name, known.epoch) == (gap.name, gap.epoch) and known.first <= gap.last and gap.first <= known.last
        for known in noticed
    )


def _silence_due_ms(group: Group, patience: Patience) -> int | None:
    """The time of the log from which a member is silent too long; None where no member is waited for."""
    if not patience.silent_ms or not believes_the_job(group):
        return None
    return min((since_ms + patience.silent_ms for _, since_ms in group.release.awaited()), default=None)


def _evict_silent(group: Group, patience: Patience, offset: int, now_ms: int) -> None:
    """Put an `evict` into the log for each member that is silent too long."""
    if not patience.silent_ms or not believes_the_job(group):
        return
    silent = [who for who, since_ms in group.release.awaited() if since_ms + patience.silent_ms <= now_ms]
    may_decide = is_service(group, patience.service_key)
    if silent and not may_decide:
        say_which_key_is_missing(group, offset)
    for name, epoch in silent:
        if may_decide:
            cut = group.release.entered_up_to(name, epoch)
            group.outbox.say("raw", group.key, encode_evict(group.name, name, epoch, cut), offset)
        group.note_sign_of_life(name, epoch, now_ms)  # not again before as long a time has passed once more
