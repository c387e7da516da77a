"""Runs one trace through the stream's kernel under each order, measures what each order costs, and draws that."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import UNSET

from precede.ingest.extras import need
from precede.udfs import codes
from precede.udfs.engine.outbox import PlacedRecord, TypedOutbox
from precede.udfs.holdback import Holdback, OwnKey
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.orders.object import ObjectBased
from precede.udfs.orders.relation import ByNamedIds, Pairs
from precede.udfs.records.messages import Create, Id, Message, Options, Record, Tick
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

INSPECTED_MAX = 5_000
"""If no more messages than this are held at the end, their blockers are counted too."""

Place = tuple[int, int]
"""(partition, offset)"""
Known = tuple[str, str, int, int]
"""(group, sender, epoch, seq)"""


class Hold(msgspec.Struct):
    """How long deliveries were held; a delivery without a wait counts as 0."""

    mean: float
    p99: float
    max: float


class Blocker(msgspec.Struct):
    """The sender whose records messages waited for most."""

    sender: str
    waits: int
    of: int
    record: Id | None
    """The message of that sender that caused most waits; None if it was not a message."""


class OrderResult(msgspec.Struct):
    """The result of one order on the trace."""

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


class OrderComparison(msgspec.Struct):
    """The results of every order that the trace carries stamps for."""

    file: str
    records: int
    messages: int
    groups: int
    pairs: int
    related_pairs: int | None
    """How many pairs are related by `after`; None if no message names what it answers."""
    related_estimated_from_every: int
    orders: dict[str, OrderResult]
    not_run: dict[str, str]
    """Why an order was left out: the first message without its stamp."""


class NotCarried(Exception):
    """The trace lacks the stamp of an order; the text says where."""


_encode = msgspec.json.Encoder().encode


class TraceRecord(msgspec.Struct, gc=False):
    """One record of the trace, as the kernel takes it and decoded."""

    value: bytes | None
    key: bytes | OwnKey | None
    partition: int
    offset: int
    timestamp_ms: int
    record: Record | None


class LogTrace:
    """A whole log in memory; `LogLines` feeds it as it would feed the kernel."""

    def __init__(self, limits: Limits, group: str | None = None) -> None:
        self.limits = limits
        self.group = group
        self.entries: list[TraceRecord] = []
        self.options: dict[str, Options] = {}
        self.messages: dict[str, dict[Place, Message]] = {}
        """The first message with each id, by group."""
        self.known: dict[Known, Message] = {}
        self.timed = False

    def receive(
        self, value: bytes | None, key: bytes | OwnKey | None, partition: int, offset: int, timestamp_ms: int
    ) -> None:
        """Keep one record if it belongs to the chosen group."""
        record: Record | None = None
        if value is not None and len(value) <= self.limits.record_bytes_max:
            try:
                record = read(value.strip(SPACE), self.limits)
            except Malformed:
                record = None
        if self.group is not None and not isinstance(record, Tick) and (record is None or record.group != self.group):
            return
        self.timed = self.timed or timestamp_ms != 0
        self.entries.append(TraceRecord(value, key, partition, offset, timestamp_ms, record))
        if isinstance(record, Message):
            record.data = UNSET  # the value already has it
            known = (record.group, record.sender, record.epoch, record.seq)
            if known not in self.known:
                self.known[known] = record  # type: ignore[index]
                self.messages.setdefault(record.group, {})[partition, offset] = record
        elif isinstance(record, Create):
            self.options.setdefault(record.group, record.options)

    # ── properties of the trace under any order ───────────────────────────────────────────────────────────────────

    def pairs(self) -> int:
        """The number of pairs of messages within a group."""
        return sum(len(of) * (len(of) - 1) // 2 for of in self.messages.values())

    def related(self) -> Pairs | None:
        """Pairs of which one answers the other, directly or through others, according to the messages."""
        if not any(message.after for message in self.known.values()):
            return None
        return _sum(ByNamedIds(list(of.values()), ObjectBased.follows).pairs() for of in self.messages.values())

    # ── under one order ───────────────────────────────────────────────────────────────────────────────────────────

    def under(self, order: str, progress: Callable[[int], None] = lambda _: None) -> OrderResult:
        """Run the trace through the kernel, every group under this order; raises NotCarried."""
        observer = _Observer(self)
        outbox = TypedOutbox()
        kernel = Holdback(order=order, limits=self.limits, outbox=outbox)
        for number, entry in enumerate(self.entries):
            value = _created_with(order, entry.record) if isinstance(entry.record, Create) else entry.value
            kernel.receive(value, entry.key, entry.partition, entry.offset, entry.timestamp_ms)
            observer.step(number, outbox)
            outbox.clear()
            if number % 1_000 == 0:
                progress(number)
        still_held = observer.count_held(kernel)
        kernel.close()
        relations = [
            ORDERS[order].relation(
                [message for place, message in of.items() if place not in observer.refused_at],
                self.options.get(group, Options()),
            )
            for group, of in self.messages.items()
        ]
        pairs = _sum(relation.pairs() for relation in relations)
        return OrderResult(
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


def compare_orders(
    trace: LogTrace, file: str, progress: Callable[[str, int], None] = lambda *_: None
) -> OrderComparison:
    """Run the trace under every order that it carries stamps for."""
    related = trace.related()
    comparison = OrderComparison(
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
        except NotCarried as reason:
            comparison.not_run[order] = str(reason)
        progress(order, len(trace.entries))
    return comparison


class _Observer:
    """Counts what happens in one run, record by record."""

    def __init__(self, trace: LogTrace) -> None:
        self.trace = trace
        self.now: Counter[str] = Counter()
        """Steps of each group; a tick counts as a step of every group."""
        self.ticks = 0
        self.arrived: dict[Place, int] = {}
        """The step of its group at which a message arrived."""
        self.steps: list[int] = []
        self.waits_ms: list[int] = []
        self.refused: Counter[str] = Counter()
        self.refused_at: set[Place] = set()
        self.delivered: set[tuple[Known, str | None]] = set()
        self.early = 0
        self.waited_for: Counter[str] = Counter()
        self.waited_for_record: Counter[tuple[str, Id | None]] = Counter()

    def step(self, number: int, outbox: TypedOutbox) -> None:
        """The kernel has received one record."""
        entry = self.trace.entries[number]
        record = entry.record
        if isinstance(record, Tick):
            self.ticks += 1
        elif record is not None:
            group: str = record.group
            self.now[group] += 1
            if isinstance(record, Message):
                self.arrived.setdefault((entry.partition, entry.offset), self.now[group] + self.ticks)
        for refused in outbox.refused:
            if refused.code == codes.MISSING_STAMP:
                named = refused.identity
                who = f"{named.sender}:{named.seq}" if named.sender else "a record"
                raise NotCarried(f"{refused.reason} The first without it is {who}, at offset {refused.came.offset}.")
            self.refused[refused.code] += 1
            self.refused_at.add((refused.came.partition, refused.came.offset))
        for placed in outbox.placed:
            if placed.id is not None:
                self._deliver(placed, placed.id, entry)

    def _deliver(self, placed: PlacedRecord, id_: Id, entry: TraceRecord) -> None:
        group, destination = placed.labels.group, placed.labels.destination
        known = (group, *id_)
        self.delivered.add((known, destination))
        if placed.is_abandoned:
            return
        steps = self.now[group] + self.ticks - self.arrived[placed.labels.partition, placed.offset]
        self.steps.append(steps)
        self.waits_ms.append(placed.released_ms - placed.arrived_ms)
        if steps:
            self._waited_for(entry.record)
        for answered in [(group, *one) for one in self.trace.known[known].after or ()]:
            message = self.trace.known.get(answered)
            if message is None or (answered, destination) in self.delivered:
                continue
            if destination is None or destination in (message.to or ()):
                self.early += 1
                break

    def _waited_for(self, record: Record | None) -> None:
        """This record released a held message."""
        sender = getattr(record, "sender", UNSET)
        who = sender if isinstance(sender, str) else "tick" if isinstance(record, Tick) else "a control record"
        id_: Id | None = None
        if isinstance(record, Message):
            id_ = record.sender, record.epoch, record.seq  # type: ignore[assignment]
        self.waited_for[who] += 1
        self.waited_for_record[who, id_] += 1

    def count_held(self, kernel: Holdback) -> int:
        """How many messages are held at the end; also counts what they wait for."""
        if kernel.held_growth > INSPECTED_MAX:
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
        """The sender whose records caused most waits; on a tie the first by name."""
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
    """The `create` record with this order, without keys, because its signature is for the original."""
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


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────

ORDERED, NEEDED, HELD = "#4c72b0", "#c44e52", "#dd8452"


def draw(comparison: OrderComparison, path: Path) -> None:
    """Write PNG or SVG, by the file extension; the same comparison gives the same file."""
    need("plot", "A picture")
    import matplotlib as mpl
    from matplotlib.figure import Figure  # only the figure, without a window system

    names = list(reversed(comparison.orders))
    runs = [comparison.orders[name] for name in names]
    figure = Figure(figsize=(10, 1.6 + 0.45 * len(names)), layout="constrained")
    pairs, waits = figure.subplots(1, 2, sharey=True)
    all_pairs = max(1, comparison.pairs)
    pairs.barh(names, [100 * run.ordered_pairs / all_pairs for run in runs], color=ORDERED)
    for at, run in enumerate(runs):
        pairs.annotate(f" {run.ordered_pairs:,}", (100 * run.ordered_pairs / all_pairs, at), va="center", fontsize=8)
    if comparison.related_pairs is not None:
        share = 100 * comparison.related_pairs / all_pairs
        pairs.axvline(share, color=NEEDED, linestyle="--", label=f"truly related: {comparison.related_pairs:,}")
        figure.legend(loc="outside lower left", frameon=False, fontsize=8)
    pairs.set(xlim=(0, 115), xlabel=f"ordered pairs, % of {comparison.pairs:,}")
    is_timed = any(run.hold_s is not None for run in runs)
    holds: list[Hold] = [run.hold_s or run.hold_steps for run in runs]
    waits.barh(names, [hold.mean for hold in holds], color=HELD, label="mean")
    waits.plot([hold.p99 for hold in holds], range(len(names)), "k|", markersize=12, label="99 of 100 at most")
    waits.set_xlabel(f"held, {'seconds' if is_timed else 'steps'} (all deliveries)")
    if max((hold.p99 for hold in holds), default=0) > 0:
        waits.set_xlim(left=0)
    waits.legend(frameon=False, fontsize=8, loc="best")
    figure.suptitle(f"{comparison.messages:,} messages: {Path(comparison.file).name}")
    for axes in (pairs, waits):
        axes.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.hashsalt": "precede", "svg.fonttype": "path"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
