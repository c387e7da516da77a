"""Judges the sequence of one group from what was published alone, record by record."""

from msgspec import UNSET

from precede.check.guarantees import GUARANTEES, CausalAtDestinations, Guarantee, Unmet
from precede.check.membership import NO_END, Membership
from precede.check.records import ABANDONED, DELIVERED, OrderedRead, id_of
from precede.check.settled import Settled
from precede.check.witness import Shown, Violation, Witnesses, shown
from precede.udfs.errors import Refused
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Create, Id, Message, Record, Who

PENDING_MAX = 1_000
"""So many messages of a group are kept that came before something which has not come yet."""

WHY = {
    "s_b": "which it answers",
    "object": "on which it depends",
    "causal": "which its sender had read or said before",
    "causal_p2p": "which its sender knew was sent there before",
}
BY_VECTORS = frozenset(name for name in WHY if name.startswith("causal"))
OWN = "an earlier message of its sender"


class _Early:
    """A message that was delivered before something that it must follow."""

    __slots__ = ("at", "id", "unmet", "violation")

    def __init__(self, id_: Id, at: Shown, unmet: Unmet, violation: Violation | None) -> None:
        self.id = id_
        self.at = at
        self.unmet = unmet
        self.violation = violation


class GroupSequence:
    """What was delivered of one group so far, as far as it decides about what comes next."""

    def __init__(self, name: str, findings: Witnesses, *, is_whole: bool) -> None:
        """`is_whole` tells whether it is read from its beginning; otherwise what lies before counts as delivered."""
        self.name = name
        self.is_whole = is_whole
        self.order: str | None = None
        self.guarantee: Guarantee | None = None
        self.has_destinations = False
        self.membership = Membership()
        self.settled = Settled()
        self.count = 0
        self._findings = findings
        self._positions: dict[str | None, int] = {}
        self._released: dict[str | None, OrderedRead] = {}
        self._partition: int | None = None
        self._at_place: dict[str | None, Settled] = {}
        self._left: dict[Id, set[str]] = {}
        """Of messages that not all of their destinations have received: those that have not."""
        self._early: dict[Who, list[_Early]] = {}
        self._early_count = 0

    def use_order(self, name: str) -> None:
        """The order is known, by `create`, by the first ordered record, or as the stream's own."""
        self.order = name
        guarantee = GUARANTEES.get(name)
        self.guarantee = None if guarantee is None else guarantee(self.settled, self.membership)
        self.has_destinations = guarantee is CausalAtDestinations

    # ── one record ────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, one: OrderedRead, record: Record | None, *, applied: bool = False, expected: bool = False) -> None:
        """Judge the next ordered record; `record` is what its raw part says, or None where that cannot be read.

        `applied` says that the raw log has already told what a membership record changes, `expected` that it shows
        that nothing before this message is missing.
        """
        self.count += 1
        if self.order is None:
            self.use_order(order_of(record, one.order) if isinstance(record, Create) else one.order)
        self._check_place(one, record)
        status = one.status
        if status != DELIVERED and status != ABANDONED:
            self._findings.noted[status] += 1
            self.is_whole = False
            return
        if record is None:
            at = shown(one, None)
            self.violate("bytes", f"{at} is no raw record followed by the appended fields", at)
        elif isinstance(record, Message):
            self._message(one, record, expected=expected)
        elif not applied:
            self.membership.take(record, shown(one, _name(record)), None)
            if isinstance(record, Create) and self.guarantee is not None:
                self.membership.closed |= self.guarantee.by_clocks

    def _check_place(self, one: OrderedRead, record: Record | None) -> None:
        """The fields that say where it stands."""
        place = one.destination
        last = self._positions.get(place)
        expected = one.position if last is None and not self.is_whole else (last or 0) + 1
        before = self._released.get(place)
        self._positions[place] = one.position
        self._released[place] = one
        if self._partition is None:
            self._partition = one.partition
        if (
            one.position == expected
            and (before is None or one.released_offset >= before.released_offset)
            and one.released_offset >= one.offset
            and one.order == self.order
            and one.partition == self._partition
            and (place is not None) == self.has_destinations
        ):
            return
        self._misplaced(one, shown(one, _name(record)), expected, before)

    def _misplaced(self, one: OrderedRead, at: Shown, expected: int, before: OrderedRead | None) -> None:
        """Say which of these fields is wrong."""
        if one.position < expected:
            why = "comes again" if one.position == expected - 1 else "comes too late"
            self.violate("position", f"Position {one.position} {why}: {at} follows position {expected - 1}", at)
        elif one.position > expected:
            end = one.position - 1
            holes = f"position {end} is" if end == expected else f"positions {expected} to {end} are"
            sentence = f"After position {expected - 1} comes {one.position}: {holes} missing before {at}"
            self.violate("position", sentence, at)
            self.is_whole = False  # what the next messages follow may be in the hole
        if before is not None and one.released_offset < before.released_offset:
            earlier = shown(before, None)
            sentence = (
                f"{at} was released by offset {one.released_offset}, and what stands before it, {earlier}, by the "
                f"later offset {before.released_offset}"
            )
            self.violate("released", sentence, at, earlier)
        elif one.released_offset < one.offset:
            self.violate("released", f"{at} was released by offset {one.released_offset}, before it arrived", at)
        if one.order != self.order:
            sentence = f"{at} names the order {one.order}, and the order of its group is {self.order}"
            self.violate("fields", sentence, at)
        if one.partition != self._partition:
            sentence = f"{at} names partition {one.partition}, and its group lives in {self._partition}"
            self.violate("fields", sentence, at)
        if (one.destination is None) == self.has_destinations and self.guarantee is not None:
            wrong = "names no destination" if one.destination is None else "names a destination, and its order has none"
            self.violate("destination", f"{at} {wrong}", at)

    def _message(self, one: OrderedRead, message: Message, *, expected: bool) -> None:
        id_, place = id_of(message), one.destination
        who = (id_[0], id_[1])
        is_stand_in = one.status == ABANDONED
        guarantee, membership = self.guarantee, self.membership
        if not self.is_whole:
            self._begin(who, id_[2])
        is_free = not (membership.closed or membership.fences or membership.keys is not None or place is not None)
        if not is_stand_in and not is_free:
            self._check_right(who, id_, message, one, shown(one, id_text(id_)))
        unmet = None
        if guarantee is not None and not expected:
            unmet = guarantee.unmet_of_stand_in(id_) if is_stand_in else guarantee.unmet(id_, message, place)
        is_new = (
            self.settle(id_, message, place, is_stand_in=is_stand_in)
            if self.has_destinations
            else self.settled.add(id_)
        )
        if not is_new:
            at, there = shown(one, id_text(id_)), "" if place is None else f" at {place}"
            self.violate("once", f"{at} was delivered{there} before, or was given up on", at)
            return
        if guarantee is not None:
            if unmet is not None:
                self._came_early(id_, unmet, shown(one, id_text(id_)))
            if guarantee.looks_back and not is_stand_in and (self.is_whole or not guarantee.needs_beginning):
                wrong = guarantee.misplaced(id_, message, one)
                if wrong is not None and self.order is not None:
                    at = shown(one, id_text(id_))
                    self.violate(self.order, f"{at} comes after {wrong[0]}, though {wrong[1]}", at, wrong[0])
            if guarantee.looks_back:
                guarantee.delivered(id_, None if is_stand_in else message, one)
        if self._early and who in self._early:
            self._fill(who, id_, message, shown(one, id_text(id_)))

    def settle(self, id_: Id, message: Message, place: str | None, *, is_stand_in: bool) -> bool:
        """An id is delivered or given up on at one destination; False if it was before."""
        if not self._at_place.setdefault(place, Settled()).add(id_):
            return False
        if is_stand_in:
            self._left.pop(id_, None)
            self.settled.add(id_)
            assert isinstance(self.guarantee, CausalAtDestinations)
            self.guarantee.gave_up = True
            return True
        left = self._left.setdefault(id_, set(message.to or ()))
        left.discard(place or "")
        if not left:
            del self._left[id_]
            self.settled.add(id_)
        return True

    def _begin(self, who: Who, seq: int) -> None:
        """Of a group that is not read from its beginning, what lies before counts as delivered."""
        keeps_turn = self.guarantee is not None and self.guarantee.keeps_turn
        self.settled.begin(who, seq if keeps_turn else 1)

    # ── rights ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_right(self, who: Who, id_: Id, message: Message, one: OrderedRead, at: Shown) -> None:
        """Whether the sender may speak, and whether it is for this destination."""
        membership = self.membership
        if membership.closed and self.is_whole and who not in membership.joined:
            self.violate("member", f"{at} is of {who[0]}, who was no member of the closed group", at)
        fence = membership.fences.get(who, NO_END)
        if id_[2] > fence:
            ended = membership.ends[who]
            sentence = f"{at} stands behind {ended}, after which of {who[0]} nothing above seq {fence} counts"
            self.violate("fence", sentence, at, ended)
        if one.destination is not None and one.destination not in (message.to or ()):
            self.violate("destination", f"{at} was delivered to {one.destination}, to whom it was not sent", at)
        if membership.keys is not None:
            try:
                signed = membership.is_signed(who, one.head + b"}")
            except Refused as error:  # the library that verifies is not installed
                self._findings.cannot("signatures", str(error))
            else:
                if not signed:
                    self.violate("signature", f"{at} is not signed by a key of {who[0]}", at)

    # ── what came too early ───────────────────────────────────────────────────────────────────────────────────────

    def _came_early(self, id_: Id, unmet: Unmet, at: Shown) -> None:
        """Something that it must follow has not been delivered; where the beginning is not known, it may have been."""
        violation = None
        if self.is_whole:
            violation = self._violation_of(id_, at, unmet, None)
            self._findings.add(violation)
        elif self._early_count >= PENDING_MAX:
            self._findings.before += 1
            return
        self._early_count += 1
        self._early.setdefault(unmet.who, []).append(_Early(id_, at, unmet, violation))

    def _fill(self, who: Who, id_: Id, message: Message, at: Shown) -> None:
        """What was missing has come: now the witness is whole."""
        kept = []
        for one in self._early[who]:
            same_place = one.at.destination == at.destination
            if not (one.unmet.first <= id_[2] <= one.unmet.last and same_place):
                kept.append(one)
                continue
            self._early_count -= 1
            whole = self._violation_of(one.id, one.at, one.unmet, at)
            if self.guarantee is not None and self.guarantee.circle(message, one.id) is not None:
                whole.sentence = f"{whole.sentence[:-1]}, and which depends on it in turn: a circle."
            if one.violation is None:
                self._findings.add(whole)
            else:
                one.violation.records, one.violation.sentence = whole.records, whole.sentence
        if kept:
            self._early[who] = kept
        else:
            del self._early[who]

    def _violation_of(self, id_: Id, at: Shown, unmet: Unmet, other: Shown | None) -> Violation:
        order = self.order or ""
        why = WHY.get(order, OWN)
        if unmet.who == (id_[0], id_[1]) and self.guarantee is not None and order in BY_VECTORS:
            why = OWN
        missing = str(other) if other is not None else id_text((*unmet.who, unmet.first))
        tail = "" if other is not None else ", and that one is not delivered yet"
        sentence = f"{at} comes before {missing}, {why}{tail}."
        records = [at] if other is None else [at, other]
        return Violation(order, self.name, sentence, records, at.destination)

    def finish(self) -> None:
        """Nothing more comes: count what could not be judged."""
        for early in self._early.values():
            for one in early:
                if one.violation is None:
                    self._findings.before += 1

    def violate(self, guarantee: str, sentence: str, *records: Shown) -> None:
        """Note a broken promise."""
        first = records[0] if records else None
        place = None if first is None else first.destination
        self._findings.add(Violation(guarantee, self.name, f"{sentence}.", list(records), place))


def _name(record: Record | None) -> str | None:
    """What a witness calls this record."""
    if isinstance(record, Message):
        return id_text(id_of(record))
    return None if record is None else record.kind


def order_of(record: Create, default: str) -> str:
    """The order that a `create` gives its group."""
    return default if record.options.order is UNSET else str(record.options.order)
