"""One trace, run under one order after another by the stream's own kernel, and what each order cost it."""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.analysis.relation import Named, Pairs
from precede.udfs.holdback import SPACE, Holdback, OwnKey
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.orders.object import ObjectBased
from precede.udfs.records.lenient import lenient_reader
from precede.udfs.records.messages import Create, Id, Message, Options, Record, Tick
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

LOOKED_MAX = 5_000
"""Up to so many messages still held at the end are asked what they wait for."""

Place = tuple[int, int]
"""(partition, offset)"""
Known = tuple[str, str, int, int]
"""(group, sender, epoch, seq)"""


class Hold(msgspec.Struct):
    """How long deliveries were held, over all of them: one that came in time was held for 0."""

    mean: float
    p99: float
    max: float


class Blocker(msgspec.Struct):
    """Whose records messages waited for most."""

    sender: str
    waits: int
    of: int
    record: Id | None
    """The one message of that sender that was waited for most; None where it was not a message."""


class Run(msgspec.Struct):
    """What one order did to the trace."""

    ordered_pairs: int
    estimated_from_every: int
    sequences: int | None
    delivered: int
    held: int
    still_held: int
    refused: dict[str, int]
    hold_steps: Hold
    hold_s: Hold | None
    blocker: Blocker | None
    replies_early: int | None


class Comparison(msgspec.Struct):
    """One trace under every order that it carries stamps for."""

    file: str
    records: int
    messages: int
    groups: int
    pairs: int
    related_pairs: int | None
    """How many pairs are related by what the messages say they answer; None where none says so."""
    related_estimated_from_every: int
    orders: dict[str, Run]
    not_run: dict[str, str]
    """Why an order was left out: the first message that lacks its stamp."""


class NotCarried(Exception):
    """The trace lacks the stamp of an order; the text says where."""


class _Ordered(msgspec.Struct):
    """The part of an ordered record that is looked at."""

    group: str
    status: str
    partition: int
    offset: int
    arrived_ms: int
    released_ms: int
    sender: str | None = None
    epoch: int = 0
    seq: msgspec.Raw = msgspec.Raw(b"0")
    kind: str = "message"
    destination: str | None = None


class _Letter(msgspec.Struct):
    """The part of a dead letter that is looked at."""

    code: str
    reason: str
    partition: int
    offset: int
    sender: str | None
    seq: int | None


_decode_ordered = lenient_reader(_Ordered)
_decode_letter = msgspec.json.Decoder(_Letter).decode
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, gc=False):
    """One record of the trace, as the kernel takes it, and read."""

    value: bytes | None
    key: bytes | OwnKey | None
    partition: int
    offset: int
    timestamp_ms: int
    record: Record | None


class Trace:
    """A log kept whole; `LogLines` hands its records over as it would to the kernel."""

    def __init__(self, limits: Limits, group: str | None = None) -> None:
        self.limits = limits
        self.group = group
        self.entries: list[Entry] = []
        self.options: dict[str, Options] = {}
        self.messages: dict[str, dict[Place, Message]] = {}
        """Of each group the first message under each id."""
        self.known: dict[Known, Message] = {}
        self.timed = False

    def receive(
        self, value: bytes | None, key: bytes | OwnKey | None, partition: int, offset: int, timestamp_ms: int
    ) -> None:
        """Keep one record, if it is of the group asked for."""
        record: Record | None = None
        if value is not None and len(value) <= self.limits.record_bytes_max:
            try:
                record = read(value.strip(SPACE), self.limits)
            except Malformed:
                record = None
        if self.group is not None and not isinstance(record, Tick) and (record is None or record.group != self.group):
            return
        self.timed = self.timed or timestamp_ms != 0
        self.entries.append(Entry(value, key, partition, offset, timestamp_ms, record))
        if isinstance(record, Message):
            record.data = UNSET  # it stands in the value already
            known = (record.group, record.sender, record.epoch, record.seq)
            if known not in self.known:
                self.known[known] = record  # type: ignore[index]
                self.messages.setdefault(record.group, {})[partition, offset] = record
        elif isinstance(record, Create):
            self.options.setdefault(record.group, record.options)

    # ── what is true of the trace, whatever the order ─────────────────────────────────────────────────────────────

    def pairs(self) -> int:
        """All pairs of messages of one group."""
        return sum(len(of) * (len(of) - 1) // 2 for of in self.messages.values())

    def related(self) -> Pairs | None:
        """Pairs of which one answers the other, directly or through others, as the messages say themselves."""
        if not any(message.after for message in self.known.values()):
            return None
        return _sum(Named(list(of.values()), ObjectBased.follows).pairs() for of in self.messages.values())

    # ── under one order ───────────────────────────────────────────────────────────────────────────────────────────

    def under(self, order: str, progress: Callable[[int], None] = lambda _: None) -> Run:
        """Run it through the kernel, every group under this order; raises NotCarried."""
        observer = _Observer(self)
        kernel = Holdback(order=order, limits=self.limits)
        for number, entry in enumerate(self.entries):
            value = _created_with(order, entry.record) if isinstance(entry.record, Create) else entry.value
            kernel.receive(value, entry.key, entry.partition, entry.offset, entry.timestamp_ms)
            observer.step(number, kernel)
            kernel.clear()
            if number % 1_000 == 0:
                progress(number)
        still_held = observer.look_at_what_is_held(kernel)
        kernel.close()
        relations = [
            ORDERS[order].relation(
                [message for place, message in of.items() if place not in observer.refused_at],
                self.options.get(group, Options()),
            )
            for group, of in self.messages.items()
        ]
        pairs = _sum(relation.pairs() for relation in relations)
        return Run(
            ordered_pairs=pairs.found,
            estimated_from_every=pairs.every,
            sequences=relations[0].sequences() if len(relations) == 1 else None,
            delivered=len(observer.steps),
            held=sum(1 for steps in observer.steps if steps) + still_held,
            still_held=still_held,
            refused=dict(observer.refused.most_common()),
            hold_steps=_hold(observer.steps),
            hold_s=_hold([ms / 1000 for ms in observer.waits_ms]) if self.timed else None,
            blocker=observer.blocker(),
            replies_early=observer.early if any(message.after for message in self.known.values()) else None,
        )


def compare_orders(trace: Trace, file: str, progress: Callable[[str, int], None] = lambda *_: None) -> Comparison:
    """The trace under every order that it carries stamps for."""
    related = trace.related()
    comparison = Comparison(
        file=file,
        records=len(trace.entries),
        messages=len(trace.known),
        groups=len(trace.messages),
        pairs=trace.pairs(),
        related_pairs=None if related is None else related.found,
        related_estimated_from_every=1 if related is None else related.every,
        orders={},
        not_run={},
    )
    for order in ORDERS:
        try:
            comparison.orders[order] = trace.under(order, lambda number, order=order: progress(order, number))  # type: ignore[misc]
        except NotCarried as lack:
            comparison.not_run[order] = str(lack)
        progress(order, len(trace.entries))
    return comparison


class _Observer:
    """Watches one run record by record, and counts."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.now: Counter[str] = Counter()
        """How many steps each group has made; a tick is a step of all of them."""
        self.ticks = 0
        self.arrived: dict[Place, int] = {}
        """At which step of its group a message came."""
        self.steps: list[int] = []
        self.waits_ms: list[int] = []
        self.refused: Counter[str] = Counter()
        self.refused_at: set[Place] = set()
        self.there: set[tuple[Known, str | None]] = set()
        self.early = 0
        self.waited_for: Counter[str] = Counter()
        self.waited_for_record: Counter[tuple[str, Id | None]] = Counter()

    def step(self, number: int, kernel: Holdback) -> None:
        """One record was handed to the kernel."""
        entry = self.trace.entries[number]
        record = entry.record
        if isinstance(record, Tick):
            self.ticks += 1
        elif record is not None:
            group: str = record.group
            self.now[group] += 1
            if isinstance(record, Message):
                self.arrived.setdefault((entry.partition, entry.offset), self.now[group] + self.ticks)
        for letter in map(_decode_letter, kernel.dead):
            if letter.code == codes.MISSING_STAMP:
                who = f"{letter.sender}:{letter.seq}" if letter.sender else "a record"
                raise NotCarried(f"{letter.reason} The first without it is {who}, at offset {letter.offset}.")
            self.refused[letter.code] += 1
            self.refused_at.add((letter.partition, letter.offset))
        for ordered in map(_decode_ordered, kernel.ordered):
            if ordered.kind == "message" and ordered.sender is not None:
                self._deliver(ordered, entry)

    def _deliver(self, ordered: _Ordered, entry: Entry) -> None:
        known = (ordered.group, ordered.sender, ordered.epoch, int(bytes(ordered.seq)))
        self.there.add((known, ordered.destination))  # type: ignore[arg-type]
        if ordered.status != "delivered":
            return
        place = ordered.partition, ordered.offset
        steps = self.now[ordered.group] + self.ticks - self.arrived[place]
        self.steps.append(steps)
        self.waits_ms.append(ordered.released_ms - ordered.arrived_ms)
        if steps:
            self._waited_for(entry.record)
        message = self.trace.known[known]  # type: ignore[index]
        for id_ in message.after or ():
            answered = (ordered.group, *id_)
            is_addressed = ordered.destination is None or ordered.destination in (
                self.trace.known[answered].to or () if answered in self.trace.known else ()
            )
            if answered in self.trace.known and is_addressed and (answered, ordered.destination) not in self.there:
                self.early += 1
                break

    def _waited_for(self, record: Record | None) -> None:
        """A held message was let go by this record."""
        sender = getattr(record, "sender", UNSET)
        who = sender if isinstance(sender, str) else "tick" if isinstance(record, Tick) else "a control record"
        id_: Id | None = None
        if isinstance(record, Message):
            id_ = record.sender, record.epoch, record.seq  # type: ignore[assignment]
        self.waited_for[who] += 1
        self.waited_for_record[who, id_] += 1

    def look_at_what_is_held(self, kernel: Holdback) -> int:
        """How many are held at the end; whom these wait for counts too."""
        if kernel.held_growth > LOOKED_MAX:
            return kernel.held_growth
        held = list(kernel.held())
        for one in held:
            if one.missing:
                self.waited_for[one.missing[0][0]] += 1
                self.waited_for_record[one.missing[0][0], one.missing[0]] += 1
            elif one.silent:
                self.waited_for[one.silent[0]] += 1
        return len(held)

    def blocker(self) -> Blocker | None:
        """Whose records were waited for most; of equals the first by name."""
        if not self.waited_for:
            return None
        sender = min(self.waited_for, key=lambda name: (-self.waited_for[name], name))
        records = [(-count, id_) for (who, id_), count in self.waited_for_record.items() if who == sender and id_]
        return Blocker(
            sender=sender,
            waits=self.waited_for[sender],
            of=self.waited_for.total(),
            record=min(records)[1] if records else None,
        )


def _created_with(order: str, record: Create) -> bytes:
    """The record that begins a group, but with this order; keys are left out, for a signature is of the old one."""
    options = msgspec.structs.replace(record.options, order=order, keys=UNSET)
    return _encode(msgspec.structs.replace(record, options=options, signature=UNSET))


def _hold(waits: list[int] | list[float]) -> Hold:
    if not waits:
        return Hold(0, 0, 0)
    ranked = sorted(waits)
    at = max(0, -(-99 * len(ranked) // 100) - 1)
    return Hold(sum(ranked) / len(ranked), ranked[at], ranked[-1])


def _sum(counts: Iterator[Pairs]) -> Pairs:
    every = list(counts)
    return Pairs(sum(one.found for one in every), max((one.every for one in every), default=1))
