"""What a stream has written, without Kafka: a model of the job's sink, for tests of what runs the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from precede.streaming.order.packed_rows import released_from
from precede.streaming.order.sink import Coverage
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits, Patience
from precede.udfs.records.messages import LogRecord
from precede.udfs.steps import Records
from tests.records import by_group

PARTITIONS = 2
PATIENCE = Patience(ask_after_ms=40, give_up_ms=150, silent_ms=200)


def left_to_read(log: Iterable[LogRecord], horizon: Mapping[int, int]) -> dict[int, list[LogRecord]]:
    """The records from the horizon on, by partition, in the order of the log."""
    found: dict[int, list[LogRecord]] = {at: [] for at in range(PARTITIONS)}
    for one in sorted(log, key=attrgetter("offset")):
        if one.offset >= horizon.get(one.partition, 0):
            found[one.partition].append(one)
    return found


@dataclass
class Published:
    """The records that were committed, the token and the horizon."""

    ordered: list[tuple[bytes, bytes]] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)
    own: list[bytes] = field(default_factory=list)
    token: dict[int, int] = field(default_factory=dict)
    horizon: dict[int, int] = field(default_factory=dict)
    states: list[LogRecord] = field(default_factory=list)

    def new(self, partition: int, records: Records) -> Records:
        """Without what is published already."""
        return released_from(self.token.get(partition, 0), records)

    def commit(self, rows: Iterable[tuple[int, int, int, Records]], coverage: Coverage) -> None:
        """Write the new records of a transaction: shard, partition, last offset and records of each row."""
        reached: dict[int, int] = {}
        for shard, partition, offset, records in rows:
            reached[partition] = max(offset + 1, reached.get(partition, 0))
            self.states += [LogRecord(value, key, at, len(self.states), 0) for at, key, value in records.state]
            if records.uncovered is not None:
                coverage.report(shard, records.uncovered)
            self.ordered += zip(records.ordered_keys, records.ordered, strict=True)
            self.dead += records.dead
            self.own += [one.value for one in records.own]
        moved = coverage.moved(reached)
        coverage.commit(moved)
        self.horizon |= moved
        self.token |= {at: after for at, after in reached.items() if after > self.token.get(at, 0)}

    def check(self, expected: Holdback, seed: object) -> None:
        """Everything is there once and in order."""
        assert by_group(self.ordered) == by_group(zip(expected.ordered_keys, expected.ordered, strict=True)), seed
        assert sorted(self.dead) == sorted(expected.dead), seed
        assert sorted(self.own) == sorted(one.value for one in expected.own), seed


def whole(records: Iterable[LogRecord], order: str, limits: Limits) -> Holdback:
    """The kernel alone over the whole log."""
    holdback = Holdback(order=order, limits=limits, patience=PATIENCE, partitions=PARTITIONS)
    for one in sorted(records, key=lambda one: (one.partition, one.offset)):
        holdback.receive(one.value, one.key, one.partition, one.offset, one.timestamp_ms)
    return holdback
