"""The first law: each record of the raw log is delivered, a dead letter, an exact copy, or held, and no longer than it
must.

The raw log is followed step by step. One step is one record; everything it frees is delivered before the next one. So
at each step it is known what has to come next, and what comes is compared with that. Which records were refused is
taken from the dead letters, which are judged as far as that is sure; what a refusal leaves is the contract's.
"""

from collections import deque

from msgspec import UNSET

from precede.check.clocks import ClockJudge
from precede.check.group import GroupSequence, order_of
from precede.check.guarantees import CausalAtDestinations, Guarantee, promise_of
from precede.check.membership import about_of
from precede.check.mismatch import (
    Book,
    Expected,
    Wrong,
    difference,
    wrong_with_known,
    wrong_with_time,
    wrong_with_unknown,
)
from precede.check.records import ABANDONED, DELIVERED, OrderedRead, RawRecord, id_of, read_head
from precede.check.refusals import MAY_BE_HELD_FIRST, ON_ENTRY, TAKES_ID, Letters, why_wrong
from precede.check.release import AfterMessages, AtDestinations, NextJudge, Waiting
from precede.check.witness import Shown, Witnesses, shown, shown_raw
from precede.udfs.limits import Limits
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Abandon, Create, Evict, Heartbeat, Id, Join, Leave, Message, Record, Who


class Accounts:
    """The raw log of one group against what was published of it."""

    def __init__(
        self,
        sequence: GroupSequence,
        findings: Witnesses,
        letters: Letters | None,
        default_order: str,
        limits: Limits,
    ) -> None:
        """Without `letters` it is not known what was refused, so only what was delivered can be judged."""
        self.sequence = sequence
        self.is_off = False
        """After the first broken account, nothing that follows can be judged by the log."""
        self.open = Book()
        self.copies = 0
        self._findings = findings
        self._letters: Letters = {} if letters is None else letters
        self._has_letters = letters is not None
        self._default_order = default_order
        self._limits = limits
        self._release: NextJudge | None = None
        self._queue: deque[RawRecord] = deque()
        self._step: RawRecord | None = None
        self._is_open = False
        """Whether more may come of this step."""
        self._todo: deque[Id] = deque()
        self._must: deque[Expected] = deque()
        self._recent: dict[Who, deque[tuple[int, int]]] = {}
        self._digests = limits.digests
        self._highest: dict[Who, int] = {}
        self._took_effect: dict[tuple[str, ...], bytes] = {}
        self._condemned: set[Id] = set()
        self._given_up: dict[Id, None] = {}
        self._rank = 0
        self._doubtful: set[Id] = set()
        """Without the dead letters: what may have been refused."""
        self._fenced: Waiting | None = None
        """A message of this step that nothing refused, though its epoch ended below it."""
        self._places: set[str] = set()
        """In orders with destinations: the members so far, who are destinations, too."""
        self.wants_ticks = False

    # ── what comes ────────────────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, one: RawRecord) -> None:
        """The next record of this group, or a tick."""
        if isinstance(one.record, Create) and promise_of(order_of(one.record, self._default_order)).both_clocks:
            self.wants_ticks = True
        if not self.is_off:
            self._queue.append(one)

    def learn_order(self, order: str) -> None:
        """The first ordered record of a group without a `create` names the stream's own order."""
        if self._release is None and self.sequence.order is None:
            self._default_order = order

    def run(self, below: int) -> None:
        """Everything released by records below this offset has been seen."""
        queue = self._queue
        while queue and queue[0].offset < below:
            self._end_step()
            if self.is_off:
                return
            self._begin_step(queue.popleft())
        if self._is_open and self._step is not None and self._step.offset < below:
            self._end_step()

    def take(self, one: OrderedRead) -> None:
        """Judge the next ordered record, by the log and then by the stamps."""
        sequence = self.sequence
        released = one.released_offset
        queue = self._queue
        if sequence.order is None and not self.is_off:
            self.learn_order(one.order)
        if queue and queue[0].offset <= released:
            if queue[0].offset < released:
                self.run(released)
            if self._is_open and queue and queue[0].offset == released:
                self._end_step()
            if queue and queue[0].offset == released and not self.is_off:
                self._begin_step(queue.popleft())
        elif self._step is not None and self._step.offset < released:
            self._end_step()
        matched = None if self.is_off else self._at_once(one) or self._match(one)
        if matched is not None and matched.message is not None:
            sequence.take(one, matched.message, applied=True, expected=True)
        else:
            sequence.take(one, read_head(one, self._limits), applied=not self.is_off)
        if matched is not None:
            self._delivered(matched, one)

    def condemn(self, offset: int) -> None:
        """A dead letter says that this message, and with it its id, can never be delivered."""
        one = self.open.by_offset.get(offset)
        if one is not None and self._promise.answers_first:
            self._letters.pop(offset, None)
            self._withdraw(one)
            self._condemned.add(one.id)

    @property
    def held(self) -> int:
        return sum(1 for one in self.open.values() if one.message is not None)

    # ── what must come next ───────────────────────────────────────────────────────────────────────────────────────

    def _next(self) -> Expected | None:
        while True:
            if self._must:
                return self._must[0]
            release = self._release
            if release is None or self.is_off:
                return None
            ready = release.next()
            if ready is None:
                if not self._todo:
                    return None
                self._give_up(self._todo.popleft())
                continue
            one, place = ready
            if one.message is not None and self._letters and self._is_refused(one, place):
                continue
            if one.message is None and isinstance(release, AtDestinations):
                self._expect_stand_in(release, one)
                continue
            return Expected(one.arrived, place, one)

    def _is_refused(self, one: Waiting, place: str | None) -> bool:
        """Whether a message that could go has a dead letter: it was withdrawn."""
        codes = self._letters.get(one.offset)
        if codes is None or place not in codes:
            return False
        code = codes.pop(place)
        if not codes:
            del self._letters[one.offset]
        if place is not None:
            one.left.discard(place)
            if one.left:
                return True
        self._withdraw(one)
        if code in TAKES_ID and self._promise.answers_first:
            self._condemned.add(one.id)
        elif code != "self_parent" and not self.is_off:
            self._break_refusal(one.arrived, one.id, code, "nothing was in the way of its delivery")
        return True

    def _expect_stand_in(self, release: AtDestinations, one: Waiting) -> None:
        """What stands for a message that was given up on comes at each destination that has not received it."""
        places = sorted(release.named - one.left)  # of a stand-in, `left` names who has received the message
        for place in places:
            self._must.append(Expected(one.arrived, place, one))
        if not places:
            self._settle_stand_in(one)
        else:
            one.gone = True

    def _settle_stand_in(self, one: Waiting) -> None:
        self.sequence.settled.add(one.id)
        guarantee = self.sequence.guarantee
        if isinstance(guarantee, CausalAtDestinations):
            guarantee.gave_up = True
        self.open.pop(one.id, None)
        assert self._release is not None
        self._release.delivered(one, None)

    def _end_step(self) -> None:
        """Nothing more was released by this record: nothing may be left that could have been."""
        if not self._is_open or self.is_off or self._step is None:
            return
        self._is_open = False
        nothing_listed = not self._must and not self._todo and self._fenced is None
        if nothing_listed and (self._release is None or self._release.next() is None):
            return
        left = self._next()
        if not self._has_letters:
            left = self._doubt(left)
        fenced = self._fenced
        if left is None and fenced is not None and self._has_letters:
            at = shown_raw(fenced.arrived, id_text(fenced.id))
            end = self.sequence.membership.ends.get(fenced.who)
            sentence = f"{at} is above the end of its epoch, and has no dead letter"
            self._break("account", sentence, at, *[one for one in (end,) if one is not None])
        if left is None:
            return
        at = left.shown
        step = shown_raw(self._step, None)
        if left.one is None:
            self._break("account", f"{at} was neither delivered, nor refused, nor is it an exact copy", at)
        elif left.one.message is None:
            self._break("account", f"{at} was given up on by offset {at.offset}, and no record stands for it", at)
        elif at.offset == step.offset:
            self._break("late", f"{at} waited for nothing, and offset {step.offset} did not release it", at)
        else:
            sentence = (
                f"Offset {step.partition}:{step.offset} brought the last that {at} waited for, and did not release it"
            )
            self._break("late", sentence, at, step)

    def _doubt(self, left: Expected | None) -> Expected | None:
        """Without the dead letters: what could have been released may have been refused."""
        while left is not None and left.one is not None and left.one.message is not None:
            self._findings.cannot("whether everything was delivered", "the dead letters (--dead-letters FILE)")
            self._doubtful.add(left.one.id)
            self._withdraw(left.one)
            if isinstance(self._release, ClockJudge):
                self.is_off = True  # whether it counts decides about all others
                return None
            left = self._next()
        return left

    def _break(self, guarantee: str, sentence: str, *records: Shown) -> None:
        self.sequence.violate(guarantee, sentence, *records)
        self.is_off = True
        self._queue.clear()
        self.open.clear()
        self.open.by_offset.clear()
        self._must.clear()
        self._todo.clear()

    # ── what was published ────────────────────────────────────────────────────────────────────────────────────────

    def _at_once(self, one: OrderedRead) -> Waiting | None:
        """What `_match` says, without a word, of almost every record of a stream that is right."""
        step, release = self._step, self._release
        if step is None or release is None or self._must or self._letters or step.offset != one.released_offset:
            return None
        ready = release.next()
        if ready is None or ready[1] != one.destination:
            return None
        waiting = ready[0]
        arrived = waiting.arrived
        is_right = (
            one.offset == arrived.offset
            and waiting.message is not None
            and one.status == DELIVERED
            and one.head == arrived.value[:-1]
            and one.arrived_ms == arrived.timestamp_ms
            and one.partition == arrived.partition
            and one.released_ms == step.timestamp_ms
        )
        return waiting if is_right else None

    def _match(self, one: OrderedRead) -> Waiting | None:
        """The message or stand-in that this is, if it is what must come next."""
        step = self._step
        if one.status not in (DELIVERED, ABANDONED):
            self._break(
                "account", f"A record of status {one.status} is no delivery of its raw record", shown(one, None)
            )
            return None
        if step is None or step.offset != one.released_offset:
            self._not_released(one)
            return None
        expected = self._next()
        if expected is None:
            if not self.is_off:
                self._not_expected(one, None)
            return None
        waiting, arrived = expected.one, expected.arrived
        is_stand_in = waiting is not None and waiting.message is None
        if (
            one.offset != arrived.offset
            or one.destination != expected.place
            or is_stand_in != (one.status == ABANDONED)
        ):
            self._not_expected(one, expected)
            return None
        if is_stand_in:
            assert waiting is not None
            record = read_head(one, self._limits)
            if not isinstance(record, Message) or id_of(record) != waiting.id:
                self._not_expected(one, expected)
                return None
        elif one.head != arrived.value[:-1]:
            at = shown(one, id_text(waiting.id) if waiting is not None else None)
            self._break("bytes", f"{at} differs from its raw record{difference(one.head, arrived.value)}", at)
            return None
        if one.arrived_ms != arrived.timestamp_ms or one.partition != arrived.partition:
            at = shown(one, None)
            sentence = f"{at} says that it arrived at {one.arrived_ms} in partition {one.partition}, and the log says "
            self._break("fields", f"{sentence}{arrived.timestamp_ms} and {arrived.partition}", at)
            return None
        if one.released_ms != step.timestamp_ms:
            at = shown(one, None)
            sentence = f"{at} says that it was released at {one.released_ms}, and the log says {step.timestamp_ms}"
            self._break("fields", sentence, at)
            return None
        if self._must:
            self._must.popleft()
        return waiting

    def _not_released(self, one: OrderedRead) -> None:
        """It names a record that did not come, or not to this group."""
        record = read_head(one, self._limits)
        name = id_text(id_of(record)) if isinstance(record, Message) else None
        at = shown(one, name)
        sentence = f"{at} says that offset {one.released_offset} released it, which is no record of its group"
        waiting = self.open.by_offset.get(one.offset)
        if waiting is None and one.status == DELIVERED and isinstance(record, Message):
            self._not_expected(one, None)
            return
        self._break("released", sentence, at)

    def _not_expected(self, one: OrderedRead, expected: Expected | None) -> None:
        """Say in which way it should not be here."""
        record = read_head(one, self._limits)
        id_ = id_of(record) if isinstance(record, Message) else None
        at = shown(one, None if id_ is None else id_text(id_))
        waiting = None if id_ is None else self.open.get(id_)
        if waiting is not None and waiting is self._fenced:
            return  # the sequence says so
        wrong: Wrong | None = None
        if one.released_offset < one.offset:
            wrong = "released", f"{at} was released by offset {one.released_offset}, before it arrived", (at,)
        elif id_ in self._doubtful:
            wrong = "late", f"{at} was released by offset {one.released_offset}, and could have gone before", (at,)
        elif waiting is not None:
            wrong = wrong_with_known(one, at, waiting)
        elif id_ is not None:
            codes = self._letters.get(one.offset)
            code = None if codes is None else next(iter(codes.values()))
            wrong = wrong_with_unknown(one, at, id_, self.sequence, self.open, code)
        if wrong is None:
            is_ready = waiting is not None and self._is_ready(waiting, one.destination)
            wrong = wrong_with_time(one, waiting, expected, is_ready=is_ready, is_message=id_ is not None)
        guarantee, sentence, records = wrong
        self._break(guarantee, sentence, *records)

    def _is_ready(self, one: Waiting, place: str | None) -> bool:
        """Whether it may go now, though not as the next."""
        guarantee = self.sequence.guarantee
        if isinstance(self._release, ClockJudge) or guarantee is None:
            return False
        if one.message is None:
            return guarantee.unmet_of_stand_in(one.id) is None
        return self.sequence.membership.is_in(one.who) and guarantee.unmet(one.id, one.message, place) is None

    def _delivered(self, one: Waiting, record: OrderedRead) -> None:
        """It is settled now, which may free others."""
        if self.is_off or self._release is None:
            return
        place = record.destination
        if place is not None and one.message is not None:
            self._release.delivered(one, place)
            if one.left:
                return
        elif place is not None:
            if self._must and self._must[0].one is one:
                return  # other destinations follow
            self._settle_stand_in(one)
            self.open.by_offset.pop(one.offset, None)
            return
        else:
            self._release.delivered(one, None)
        if one.message is not None:
            self._remember(one)
            self.open.by_offset.pop(one.offset, None)
        self.open.pop(one.id, None)
        if isinstance(self._release, ClockJudge):
            self._enter(self._release)

    def _remember(self, one: Waiting) -> None:
        recent = self._recent.get(one.who)
        if recent is None:
            recent = self._recent[one.who] = deque(maxlen=self._digests)
        recent.append((one.id[2], hash(one.arrived.value)))

    # ── one record of the log ─────────────────────────────────────────────────────────────────────────────────────

    def _begin_step(self, raw: RawRecord) -> None:
        self._step = raw
        self._is_open = True
        self._fenced = None
        record = raw.record
        if raw.offset in self._letters and self._was_refused(raw, record):
            return
        if isinstance(record, Message):
            self._message(raw, record)
        elif isinstance(record, Heartbeat):
            self._heartbeat(raw, record)
        elif isinstance(record, Abandon):
            self._abandon(raw, record)
        elif isinstance(record, Create | Join | Leave | Evict):
            self._member_record(raw, record)
        elif record is not None and isinstance(self._release, ClockJudge):
            self._release.begin_tick(raw.timestamp_ms)

    def _begin_release(self, raw: RawRecord) -> NextJudge | None:
        """Something counts in this group: from now on its order is known."""
        release = self._release
        if release is None:
            if self.sequence.order is None:
                self.sequence.use_order(self._default_order)
            if self.sequence.guarantee is None:
                self._findings.cannot("what an order of one's own releases", f"the rule of {self.sequence.order}")
                self.is_off = True
                return None
            if self._promise.by_clocks:
                release = ClockJudge(self.sequence, self._highest)
            elif self.sequence.has_destinations:
                release = AtDestinations(self.sequence)
            else:
                release = AfterMessages(self.sequence)
            self._release = release
        release.begin_step(raw.timestamp_ms)
        return release

    def _was_refused(self, raw: RawRecord, record: Record | None) -> bool:
        """Whether the record was refused when it came; some messages are held first."""
        codes = self._letters[raw.offset]
        code = next(iter(codes.values()))
        if not isinstance(record, Message):
            del self._letters[raw.offset]
            return True
        id_ = id_of(record)
        is_known = id_ in self.open or id_ in self.sequence.settled or id_ in self._condemned
        if code in MAY_BE_HELD_FIRST:
            who = (id_[0], id_[1])
            membership = self.sequence.membership
            if code in TAKES_ID and self._promise.answers_first:
                if not is_known:
                    self._condemned.add(id_)
                    self._highest[who] = max(self._highest.get(who, 0), id_[2])
            elif not is_known:
                if code in ("abandoned", "not_member"):
                    return False
                if code == "fenced" and id_[2] <= membership.fence_of(who):
                    return False
                by_clocks = self._promise.by_clocks
                if by_clocks and code != "fenced":
                    its_turn = self._release.its_turn(id_) if isinstance(self._release, ClockJudge) else id_[2] == 1
                    if not its_turn:
                        return False
                elif code == "self_parent" and not membership.is_in(who):
                    return False
        del self._letters[raw.offset]
        why = why_wrong(code, raw, record, self.sequence, self._promise, self.open.get(id_), is_new=not is_known)
        if why is not None:
            self._break_refusal(raw, id_, code, why)
        return True

    def _break_refusal(self, raw: RawRecord, id_: Id, code: str, why: str) -> None:
        at = shown_raw(raw, id_text(id_))
        self._break("refused", f"{at} was refused as {code}, though {why}", at)

    @property
    def _promise(self) -> "type[Guarantee]":
        return promise_of(self.sequence.order or self._default_order)

    def _message(self, raw: RawRecord, message: Message) -> None:
        id_ = id_of(message)
        who = (id_[0], id_[1])
        known = self.open.get(id_)
        sequence = self.sequence
        if known is not None:
            if known.message is not None and known.arrived.value == raw.value:
                self.copies += 1
            else:
                self._unaccounted(raw, id_, "its id has other content")
            return
        if self._condemned and id_ in self._condemned:
            self.copies += 1
            return
        if id_ in sequence.settled:
            self._check_copy(raw, id_)
            return
        release = self._begin_release(raw)
        if release is None:
            return
        if self._highest.get(who, 0) < id_[2]:
            self._highest[who] = id_[2]
        one = Waiting(id_, message, raw)
        self.open[id_] = one
        self.open.by_offset[raw.offset] = one
        membership = sequence.membership
        if (membership.fences or membership.members) and id_[2] > membership.fence_of(who):
            self._fenced = one
            return
        if isinstance(release, ClockJudge):
            if membership.is_in(who):
                time = 0 if message.time is UNSET else message.time
                begin = time if release.its_turn(id_) else 1
                self._withdraw_above(release.first_time(who, begin, shown_raw(raw, id_text(id_))))
            release.add(one)
            self._enter(release)
            return
        release.add(one)
        if one.gone and not one.left and self.sequence.has_destinations:
            self._remember(one)  # it was sent to no one
            self.open.pop(id_, None)
            self.open.by_offset.pop(raw.offset, None)

    def _check_copy(self, raw: RawRecord, id_: Id) -> None:
        """A message whose id is settled, and which was not refused, must be a copy as far as that is remembered."""
        if id_ in self._given_up:
            if len(self._given_up) < self._limits.runs_max:
                self._unaccounted(raw, id_, "its id was given up on")
            return
        digest = next((digest for seq, digest in self._recent.get((id_[0], id_[1]), ()) if seq == id_[2]), None)
        if digest is not None and digest != hash(raw.value):
            self._unaccounted(raw, id_, "its id has other content")
        else:
            self.copies += 1

    def _unaccounted(self, raw: RawRecord, id_: Id, why: str) -> None:
        at = shown_raw(raw, id_text(id_))
        self._break("account", f"{at} was dropped: it is no exact copy, for {why}, and it has no dead letter", at)

    def _enter(self, release: ClockJudge) -> None:
        for one in release.enter(self._is_refused_on_entry):
            self._letters.pop(one.offset, None)
            self._withdraw(one)

    def _is_refused_on_entry(self, one: Waiting) -> bool:
        codes = self._letters.get(one.offset)
        return codes is not None and codes.get(None) in ON_ENTRY

    def _heartbeat(self, raw: RawRecord, record: Heartbeat) -> None:
        who = (record.sender, record.epoch)
        if record.seq > self.sequence.membership.fence_of(who):
            at = shown_raw(raw, f"a heartbeat of {record.sender}")
            self._unrefused(at, "is above the end of its epoch")
            return
        release = self._begin_release(raw)
        if isinstance(release, ClockJudge):
            time = 0 if record.time is UNSET else record.time
            begin = time if record.seq == 1 else 1
            self._withdraw_above(release.first_time(who, begin, shown_raw(raw, "a heartbeat")))
            release.heartbeat(record)
            self._enter(release)
        self._highest.setdefault(who, 0)

    def _withdraw(self, one: Waiting) -> None:
        """It will not be delivered any more."""
        if self._release is not None:
            self._release.remove(one)
        if self.open.get(one.id) is one:
            del self.open[one.id]
        self.open.by_offset.pop(one.offset, None)

    # ── giving up ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _abandon(self, raw: RawRecord, record: Abandon) -> None:
        self._begin_release(raw)
        ids = [(name, epoch, seq) for name, epoch, first, last in record.ids for seq in range(first, last + 1)]
        if all(map(self._is_over, ids)):
            self._unrefused(shown_raw(raw, "abandon"), "leaves nothing to give up")
            return
        self._todo.extend(ids)

    def _is_over(self, id_: Id) -> bool:
        """Whether nothing can be given up under this id any more."""
        known = self.open.get(id_)
        is_given_up = known is not None and known.message is None
        return id_ in self.sequence.settled or id_ in self._condemned or is_given_up

    def _unrefused(self, at: Shown, why: str) -> None:
        if self._has_letters:
            self._break("account", f"{at} {why}, and has no dead letter", at)

    def _give_up(self, id_: Id) -> None:
        """An `abandon` names this id: unless it is settled, a record stands for it from now on."""
        who = (id_[0], id_[1])
        known = self.open.get(id_)
        if self._is_over(id_):
            return
        assert self._release is not None
        assert self._step is not None
        self._rank += 1
        one = Waiting(id_, None, self._step, self._rank)
        if known is not None:
            codes = self._letters.get(known.offset)
            if codes is not None and self._promise.answers_first and any(code in TAKES_ID for code in codes.values()):
                del self._letters[known.offset]
                self._withdraw(known)
                self._condemned.add(id_)
                return
            if codes is None:
                at = shown_raw(known.arrived, id_text(id_))
                self._break("account", f"{at} was given up on while it was held, and has no dead letter", at)
                return
            del self._letters[known.offset]
            one.left = set(known.message.to or ()) - known.left if known.message is not None else set()
            self._withdraw(known)
        if self.sequence.membership.fence_of(who) == 0:
            self.sequence.membership.fences.setdefault(who, 0)
            self.sequence.membership.ends.setdefault(who, shown_raw(self._step, "abandon"))
        self._highest[who] = max(self._highest.get(who, 0), id_[2])
        self._given_up[id_] = None
        if len(self._given_up) > 2 * self._limits.runs_max:
            del self._given_up[next(iter(self._given_up))]
        self.open[id_] = one
        guarantee = self.sequence.guarantee
        if isinstance(guarantee, CausalAtDestinations):
            guarantee.gave_up = True
        self._release.add(one)
        if isinstance(self._release, ClockJudge):
            self._enter(self._release)

    # ── membership ────────────────────────────────────────────────────────────────────────────────────────────────

    def _member_record(self, raw: RawRecord, record: Create | Join | Leave | Evict) -> None:
        about = about_of(record)
        if self._took_effect.get(about) == raw.value:
            self.copies += 1
            return
        self._took_effect[about] = raw.value
        if isinstance(record, Create):
            self.sequence.use_order(order_of(record, self._default_order))
            self._release = None
            if record.options.digests is not UNSET:
                self._digests = record.options.digests
        membership = self.sequence.membership
        ended = membership.take(record, shown_raw(raw, record.kind), self._highest)
        if isinstance(record, Create) and self._promise.by_clocks:
            membership.closed = True
        release = self._begin_release(raw)
        if release is None:
            return
        if isinstance(record, Create):
            self._places.update(record.members)
        if isinstance(record, Join):
            self._places.add(record.sender)
        if isinstance(release, ClockJudge):
            if isinstance(record, Create):
                release.configure()
                release.created(record.members)
            elif isinstance(record, Join):
                release.joining(record)
        if isinstance(release, AtDestinations):
            places: list[str | None] = [*sorted(release.named | self._places)]
        else:
            places = [None]
        self._must.extend(Expected(raw, place) for place in places)
        self._withdraw_above(ended)
        if isinstance(record, Join):
            release.joined((record.sender, record.epoch))
        if isinstance(release, ClockJudge):
            self._enter(release)

    def _withdraw_above(self, ended: list[tuple[Who, int]]) -> None:
        """What is held above the end of an epoch becomes a dead letter now."""
        for who, cut in ended:
            above = [
                one for one in self.open.values() if one.who == who and one.id[2] > cut and one.message is not None
            ]
            for one in above:
                codes = self._letters.pop(one.offset, None)
                if codes is None:
                    at = shown_raw(one.arrived, id_text(one.id))
                    end = self.sequence.membership.ends[who]
                    sentence = f"{at} was held when {end} ended its epoch, and has neither a dead letter nor a delivery"
                    self._break("account", sentence, at, end)
                    return
                received = one.message is not None and set(one.message.to or ()) - one.left
                self._withdraw(one)
                if received and isinstance(self._release, AtDestinations):
                    guarantee = self.sequence.guarantee
                    assert isinstance(guarantee, CausalAtDestinations)
                    guarantee.gave_up = True
                    self._remember(one)
                    self._release.settled(one)
