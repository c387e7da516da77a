"""The engine without Spark, without Kafka: any cut of the log into transactions, any crash, and the same bytes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import pytest

from precede.ingest.state_topic import ArrivingStates, NewState
from precede.streaming.order.packed_rows import PackedRow
from precede.streaming.order.sink import Coverage
from precede.streaming.process.cache import Cache, CacheSource
from precede.streaming.process.groups import READ_AGAIN_MAX, RECORDS_A_STATE, ProcessGroups
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.state_pieces import pieces
from precede.udfs.rules import RULES
from precede.udfs.state_log import StateSettings
from precede.udfs.steps import Row
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.published import PARTITIONS, PATIENCE, Published, left_to_read, whole
from tests.records import conversation

SOURCE = CacheSource("state-topic-id", "ordered-topic-id", (0, 1))


def newest_states(kafka: Published) -> dict[bytes, NewState]:
    """As a reader of the state topic sees it."""
    arriving = ArrivingStates("state", stream=SOURCE.stream, is_known=lambda _: False)
    found = [one for record in kafka.states if (one := arriving.add(record)) is not None]
    arriving.check_whole()
    return {one.group: one for one in found}


def test_a_copy_that_lacks_a_piece_names_a_way_out_that_this_engine_has() -> None:
    key, value = pieces(b"g", b"x" * 2_000, stream=SOURCE.stream, rules=RULES, next_offset=7, bytes_max=1_000)[0]
    arriving = ArrivingStates("state", stream=SOURCE.stream, is_known=lambda _: False)
    arriving.add(LogRecord(value, key, 0, 0, 0))
    with pytest.raises(Refused, match=r"is damaged: .* Where the raw log is whole, choose a new state_topic\.$"):
        arriving.check_whole()


class Process:
    """The engine's kernel, and what each transaction publishes."""

    def __init__(
        self,
        kafka: Published,
        log: list[LogRecord],
        order: str,
        limits: Limits,
        cache: Cache,
        decoded_max: int,
        *,
        read_again_max: int = READ_AGAIN_MAX,
    ) -> None:
        state = StateSettings("topic", SOURCE.stream, 60, 400, dict(kafka.horizon))
        self.kafka = kafka
        self.cache = cache
        self.groups = ProcessGroups(
            cache,
            state,
            kafka.horizon,
            kafka.token,
            order=order,
            limits=limits,
            patience=PATIENCE,
            partitions=PARTITIONS,
            partitioner="murmur2",
            decoded_max=decoded_max,
            read_again_max=read_again_max,
        )
        self.coverage = Coverage(kafka.horizon, 1, is_fresh=True)
        self.left = {
            at: [(one.partition, one.offset, one.key, one.value, one.timestamp_ms) for one in records]
            for at, records in left_to_read(log, kafka.horizon).items()
        }

    def transaction(self, sizes: list[int], *, takes: int, commits: bool = True, writes_all: bool = False) -> None:
        """Take so many records of each partition, in so many steps, and publish what came out, unless it crashes."""
        kafka = self.kafka
        rows: list[PackedRow] = []
        for _ in range(takes):
            taken: list[Row] = []
            for partition, size in enumerate(sizes):
                taken += self.left[partition][:size]
                self.left[partition] = self.left[partition][size:]
            rows += [row._replace(records=kafka.new(row.partition, row.records)) for row in self._step(taken)]
        rows += self.groups.finish(writes_all=writes_all)
        if not commits:
            return
        kafka.commit(((0, row.partition, row.offset, row.records) for row in rows), self.coverage)
        self.groups.committed()

    def _step(self, taken: list[Row]) -> list[PackedRow]:
        """The lists that the kernel gives are emptied by the next step, so they are copied."""
        return [row._replace(records=deepcopy(row.records)) for row in self.groups.step(taken)]


def new_cache(kafka: Published, folder: Path | None = None) -> Cache:
    cache = Cache(SOURCE, folder)
    for one in newest_states(kafka).values():
        cache.put(one)
    cache.complete({})
    return cache


@pytest.mark.parametrize("order", ORDERS)
def test_any_cut_into_transactions_with_any_crashes_gives_the_same_bytes_and_the_same_states(order: str) -> None:
    crashes = rested = 0
    for seed in seeds(40):
        random = Random(f"{order} {seed}")
        log, limits = traffic.of_groups(random, order, groups=5, partitions=PARTITIONS)
        kafka = Published()
        decoded_max = random.choice([0, 1, 3, 100])
        job = Process(kafka, log, order, limits, new_cache(kafka), decoded_max)
        while any(job.left.values()):
            fails = random.random() < 0.2
            sizes = [random.choice([0, 1, 3, 8]) for _ in range(PARTITIONS)]
            job.transaction(sizes, takes=random.randint(1, 3), commits=not fails)
            rested += job.groups._holdback.decoded < len(job.cache)
            if fails or random.random() < 0.1:
                crashes += 1
                keeps = not fails and random.random() < 0.5
                job = Process(kafka, log, order, limits, job.cache if keeps else new_cache(kafka), decoded_max)
        job.transaction([0, 0], takes=1, writes_all=True)
        expected = whole(log, order, limits)
        kafka.check(expected, seed)
        assert {key: one.state.blob for key, one in newest_states(kafka).items()} == expected.dump(), seed
        assert job.groups.unwritten == 0
        assert kafka.horizon == kafka.token
    assert crashes > 20
    assert rested > 5


def test_a_backlog_of_one_moment_leaves_little_to_be_read_again_and_few_states_to_write() -> None:
    """The log's time does not pass, so no state is ever due by it."""
    log: list[LogRecord] = []
    for key, value in conversation(4_000, groups=5):
        partition = partition_of(key, PARTITIONS)
        log.append(LogRecord(value, key, partition, sum(one.partition == partition for one in log), 0))
    kafka = Published()
    job = Process(kafka, log, "s_b", Limits(), new_cache(kafka), 100, read_again_max=200)
    read_again = []
    while any(job.left.values()):
        job.transaction([20, 20], takes=1)
        read_again.append(sum(after - kafka.horizon.get(at, 0) for at, after in kafka.token.items()))
    assert 160 <= max(read_again) <= 240
    assert kafka.states
    assert len(kafka.states) <= len(log) / RECORDS_A_STATE


def test_nothing_is_written_for_groups_to_which_only_copies_came() -> None:
    talk = [*conversation(200, groups=5)]
    log: list[LogRecord] = []
    for key, value in [*talk, *talk]:
        partition = partition_of(key, PARTITIONS)
        log.append(LogRecord(value, key, partition, sum(one.partition == partition for one in log), len(log)))
    kafka = Published()
    job = Process(kafka, log, "s_b", Limits(), new_cache(kafka), 100)
    first = [len(left) // 2 for left in job.left.values()]
    job.transaction(first, takes=1, writes_all=True)
    written = len(kafka.states)
    assert written >= 5
    job.transaction([len(log)] * PARTITIONS, takes=1, writes_all=True)
    assert not any(job.left.values())
    assert len(kafka.states) == written
    assert kafka.horizon == kafka.token
