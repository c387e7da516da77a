"""Gaps: what is missing is asked for, again and again, until it comes or hope ends.

A gap is a run of seqs of one sender and epoch that held messages wait for and that are not here. Younger than
`ask_after_ms` it is but disorder on the way; older, it is noticed: the sender is asked to publish it again, then
whoever has it, with pauses that double. When hope ends an `abandon` goes into the log, and acts when it is read there.

All this happens on reading a `tick`, by the time the log gave it, and looks at nothing but the group: the same log asks
and gives up at the same places, in any batches.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from precede.udfs.engine.circles import closing_messages
from precede.udfs.engine.held import LISTED_MAX, HeldMessage
from precede.udfs.engine.missing import (
    Run,
    by_arrival,
    first_of,
    first_opened_ms,
    held_for_destinations,
    is_here,
    longest_queued,
    missing_runs,
    strangers,
)
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.membership.abandon import most_at_once
from precede.udfs.membership.keyring import believes_the_job, is_service, tell_which_key_lacks
from precede.udfs.records.job_records import GapRecord, encode_abandon, encode_gap
from precede.udfs.records.messages import SEQ_MAX, Id, Who
from precede.udfs.ticks.patience import ASK_AGAIN_MS_MAX, Patience
from precede.udfs.ticks.repair_timers import NO_WAITS, NOTICED_MAX, Gap, waits_of

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def hope_ends_ms(group: "Group", patience: Patience) -> int | None:
    """How long after it opened a gap is given up on; None: never."""
    options = group.options
    loss = options.loss if isinstance(options.loss, str) else patience.loss
    after = options.give_up_ms if isinstance(options.give_up_ms, int) else patience.give_up_ms
    return after if after and loss == "abandon" and believes_the_job(group) else None


def ask_after_ms(group: "Group", patience: Patience) -> int:
    """How old a gap is when it is asked for first: in any case before hope ends."""
    hope = hope_ends_ms(group, patience)
    return patience.ask_after_ms if hope is None else min(patience.ask_after_ms, hope // 2)


# ── what is due ───────────────────────────────────────────────────────────────────────────────────────────────────────


def deadline_ms(group: "Group", patience: Patience) -> int | None:
    """From which time of the log on there is something to do about a gap; None where there never will be."""
    waits = group.waits or NO_WAITS
    noticed, joins, circles = waits.gaps, waits.joins, waits.circles
    due = [0 if _has_ended(group, gap.key) else gap.next_ms for gap in noticed.values()]
    if len(noticed) < NOTICED_MAX and group.held:
        after = ask_after_ms(group, patience)
        unnoticed_ms = first_opened_ms(group, noticed)
        if unnoticed_ms is not None:
            due.append(unnoticed_ms + after)
        queued = None if group.order.waits_once else longest_queued(group)
        if queued is not None:
            group.looked.clear()
            for one in held_for_destinations(group) or [queued]:
                if not all(_is_noticed(id_, noticed) for id_ in group.order.missing(one, LISTED_MAX)):
                    due.append(one.arrived_ms + after)
                    break
    hope = hope_ends_ms(group, patience)
    if hope is not None:
        due += [first_of(one).arrived_ms + hope if who not in joins else joins[who] for who, one in strangers(group)]
        due += [circles.get(one.id, one.arrived_ms + hope) for one in closing_messages(group)]
    return min(due, default=None)


def _is_noticed(id_: Id, noticed: dict[Id, Gap]) -> bool:
    name, epoch, seq = id_
    return any((gap.name, gap.epoch) == (name, epoch) and gap.first <= seq <= gap.last for gap in noticed.values())


def _has_ended(group: "Group", id_: Id) -> bool:
    """Whether a gap is seen to be over; where one message waits for several, that may take until the next look."""
    return is_here(group, id_) or not group.held or (group.order.waits_once and id_ not in group.waiting)


# ── what is done ──────────────────────────────────────────────────────────────────────────────────────────────────────


def look_after(group: "Group", patience: Patience, offset: int, now_ms: int) -> None:
    """What a tick does about the gaps of one group: tell which ended, notice new ones, ask, give up."""
    _Care(group, patience, offset, now_ms).run()


class _Care:
    """One look after the gaps of a group, at one record of the log."""

    def __init__(self, group: "Group", patience: Patience, offset: int, now_ms: int) -> None:
        self.group = group
        self.offset = offset
        self.now_ms = now_ms
        self.ask_after_ms = ask_after_ms(group, patience)
        self.hope_ms = hope_ends_ms(group, patience)
        self.may_decide = is_service(group, patience)
        self.is_told = False
        """Whether it was said in this look that it may not."""

    def run(self) -> None:
        runs = missing_runs(self.group)
        noticed = (self.group.waits or NO_WAITS).gaps
        gaps: list[Gap] = []
        in_place = sorted(run[:4] for run in runs)
        for gap in noticed.values():
            gaps += self._still(gap, in_place)
        waiting: dict[Id, list[HeldMessage]] = {}
        for run in runs:
            key = (run.name, run.epoch, run.last)
            waiting[key] = run.waiting
            overdue = run.opened_ms + self.ask_after_ms <= self.now_ms
            if overdue and key not in noticed and len(gaps) < NOTICED_MAX and not _overlaps(run, gaps):
                gaps.append(self._notice(run))
        for gap in gaps:
            if gap.next_ms <= self.now_ms:
                self._act(gap, waiting.get(gap.key, []))
        if gaps or noticed:
            waits_of(self.group).gaps = {gap.key: gap for gap in gaps}
        self._give_up_on_joins()
        self._give_up_on_circles()

    def _notice(self, run: Run) -> Gap:
        waited = [one.id for one in run.waiting[:LISTED_MAX] if one.value is not None]
        return Gap(
            name=run.name,
            epoch=run.epoch,
            first=run.first,
            last=run.last,
            opened_ms=run.opened_ms,
            next_ms=self.now_ms,
            waited=waited,
        )

    def _still(self, gap: Gap, runs: list[tuple[str, int, int, int]]) -> Iterator[Gap]:
        """What is left of a gap, in as many parts as it fell into; how the rest ended is told."""
        who = gap.name, gap.epoch
        following = gap.first
        at = max(0, bisect_left(runs, (*who, gap.first + 1, 0)) - 1)  # no run overlaps another
        while at < len(runs) and runs[at][:3] <= (*who, gap.last):
            first, last = max(runs[at][2], gap.first), min(runs[at][3], gap.last)
            if runs[at][:2] == who and first <= last:
                self._tell_end(gap, following, first - 1)
                following = last + 1
                yield replace(gap, first=first, last=last)
            at += 1
        self._tell_end(gap, following, gap.last)

    def _tell_end(self, gap: Gap, first: int, last: int) -> None:
        """These seqs are no longer missing: each was given up, or came, or nobody waits for it any more."""
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

    def _tell_other_end(self, gap: Gap, first: int, last: int) -> None:
        if first <= last:
            here = is_here(self.group, (gap.name, gap.epoch, last))
            self._tell(gap, first, last, "filled" if here else "dropped")

    def _tell(self, gap: Gap, first: int, last: int, kind: Literal["ask", "filled", "abandoned", "dropped"]) -> None:
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

    def _whom(self, gap: Gap) -> str | None:
        """The sender is asked first, unless it is known to be gone; then whoever has it."""
        epoch, is_in = self.group.membership.members.get(gap.name, (gap.epoch, True))
        return gap.name if gap.asked == 1 and is_in and epoch == gap.epoch else None

    def _act(self, gap: Gap, waiting: list[HeldMessage]) -> None:
        """Ask, or give up."""
        sender = self.group.senders.get(sender_key(gap.name, gap.epoch))
        fenced = sender is not None and gap.last > sender.fence  # it would be refused if it came
        hope_ends_ms = SEQ_MAX if self.hope_ms is None else gap.opened_ms + self.hope_ms
        hopeless = self.hope_ms is not None and (fenced or (gap.asked and self.now_ms >= hope_ends_ms))
        if hopeless:
            self._give_up(gap, sender, waiting)
        if hopeless and (fenced or self.may_decide):
            gap.next_ms = self.now_ms + ASK_AGAIN_MS_MAX  # should the log refuse it, or take long to come to it
        elif fenced:
            gap.next_ms = SEQ_MAX
        else:
            pause_ms = min(max(1, self.ask_after_ms) << min(gap.asked, 30), ASK_AGAIN_MS_MAX)
            gap.asked += 1
            gap.asked_ms = self.now_ms
            gap.next_ms = self.now_ms + pause_ms
            if hope_ends_ms > self.now_ms:
                gap.next_ms = min(gap.next_ms, hope_ends_ms)
            self._tell(gap, gap.first, gap.last, "ask")

    def _give_up(self, gap: Gap, sender: Sender | None, waiting: list[HeldMessage]) -> None:
        """Abandon what is missing, or, where that is further off than the window allows, what waits for it."""
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
                tell_which_key_lacks(self.group, self.offset)
            self.is_told = True
            return
        value = encode_abandon(self.group.name, name, epoch, first, last)
        self.group.outbox.say("raw", self.group.key, value, self.offset)

    def _give_up_on_joins(self) -> None:
        """In a closed group, what somebody said who did not join in time."""
        before = (self.group.waits or NO_WAITS).joins
        after: dict[Who, int] = {}
        for who, watchers in [] if self.hope_ms is None else strangers(self.group):
            waiting = Runs()
            for one in by_arrival(watchers):
                if one.arrived_ms + self.hope_ms <= self.now_ms:  # type: ignore[operator]
                    waiting.add(one.id[2])
            if waiting.run_count() and before.get(who, 0) <= self.now_ms:
                for first, last in islice(waiting.runs(), NOTICED_MAX):
                    self._abandon(*who, first, last)
                after[who] = self.now_ms + ASK_AGAIN_MS_MAX
            elif who in before:
                after[who] = before[who]
        if before or after:
            waits_of(self.group).joins = after

    def _give_up_on_circles(self) -> None:
        """Of messages that wait for each other, the one that closed the circle."""
        before = (self.group.waits or NO_WAITS).circles
        after: dict[Id, int] = {}
        for one in [] if self.hope_ms is None else closing_messages(self.group)[:NOTICED_MAX]:
            due_ms = before.get(one.id, one.arrived_ms + self.hope_ms)  # type: ignore[operator]
            if due_ms <= self.now_ms:
                self._abandon(*one.id, one.id[2])
                due_ms = self.now_ms + ASK_AGAIN_MS_MAX
            if one.id in before or due_ms > one.arrived_ms + self.hope_ms:  # type: ignore[operator]
                after[one.id] = due_ms
        if before or after:
            waits_of(self.group).circles = after


def _overlaps(run: Run, gaps: list[Gap]) -> bool:
    return any(
        (gap.name, gap.epoch) == (run.name, run.epoch) and gap.first <= run.last and run.first <= gap.last
        for gap in gaps
    )
