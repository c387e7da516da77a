"""State at any cut, in any number of shards, and the log from the horizon on: the same rest, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

import pytest

from precede.ingest.state_topic import StatePieces
from precede.streaming.order.sink import Coverage
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import LogRecord
from precede.udfs.shard import (
    RestoredGroup,
    Shard,
    ShardState,
    decode_file,
    decode_state,
    encode_file,
    initial_states,
    shard_number,
)
from precede.udfs.state_log import StateSettings
from precede.udfs.steps import Records, unpack
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.published import PARTITIONS, PATIENCE, Published, left_to_read, whole
from tests.records import Row
from tests.shard.test_shard import call

TICK = b'{"kind":"tick"}'
TOPIC, STREAM = "state-topic-id", "ordered-topic-id"


class Job:
    """The order query without Spark: shards, and what each batch publishes."""

    def __init__(
        self,
        kafka: Published,
        log: list[LogRecord],
        order: str,
        limits: Limits,
        *,
        shards: int,
        every_ms: int,
        files: Mapping[int, bytes] | None = None,
    ) -> None:
        self.kafka, self.shards, self.files = kafka, shards, files or {}
        state = StateSettings(TOPIC, STREAM, every_ms, 400, dict(kafka.horizon))
        self.function = Shard(
            order, limits, PATIENCE, partitions=PARTITIONS, state=state, initial=self.initial if files else None
        )
        self.blobs: dict[int, bytes] = {}
        self.coverage = Coverage(kafka.horizon, shards, is_fresh=True)
        self.left = {
            at: [(one.key, one.value, one.partition, one.offset, one.timestamp_ms) for one in records]
            for at, records in left_to_read(log, kafka.horizon).items()
        }

    def initial(self, shard: int) -> ShardState | None:
        return decode_file(self.files[shard], str(shard)) if shard in self.files else None

    def batch(self, sizes: list[int]) -> None:
        """Process so many more records of each partition, and publish."""
        rows: list[Row] = []
        for partition, size in enumerate(sizes):
            rows += self.left[partition][:size]
            self.left[partition] = self.left[partition][size:]
        self.kafka.commit(self._rows(rows), self.coverage)

    def _rows(self, rows: list[Row]) -> Iterator[tuple[int, int, int, Records]]:
        for shard in range(self.shards):
            mine = [row for row in rows if row[0] is None or shard_number(row[0], self.shards) == shard]
            if not mine:
                continue
            packed, blob, _ = call(self.function, mine, self.blobs.get(shard), shard=shard)
            if blob is not None:
                self.blobs[shard] = blob
            for _, _, partition, offset, _, records in packed:
                yield shard, partition, offset, self.kafka.new(partition, unpack(records))

    @property
    def is_done(self) -> bool:
        return not any(self.left.values())


def restored_files(kafka: Published, shards: int) -> dict[int, bytes]:
    """The files of a restore into so many shards."""
    pieces = StatePieces("state", stream=STREAM)
    for record in kafka.states:
        pieces.add(record)
    groups = [
        RestoredGroup(
            key,
            state.blob,
            state.next if state.next > kafka.horizon.get(partition, 0) else 0,
            state.pieces,
            state.held,
            state.oldest_ms,
            state.gaps,
        )
        for partition, found in pieces.states(range(PARTITIONS)).items()
        for key, state in found.items()
    ]
    return {shard: encode_file(state) for shard, state in initial_states(groups, shards, TOPIC)}


@pytest.mark.parametrize("order", ORDERS)
def test_a_restore_at_any_cut_into_any_number_of_shards_gives_the_same_rest_and_nothing_twice(order: str) -> None:
    restores = covered = 0
    for seed in seeds(40):
        random = Random(f"{order} {seed}")
        log, limits = traffic.of_groups(random, order, groups=3, partitions=PARTITIONS)
        kafka = Published()
        every_ms = random.choice([0, 20, 60, 200])
        job = Job(kafka, log, order, limits, shards=random.randint(1, 4), every_ms=every_ms)
        while not job.is_done:
            job.batch([random.choice([0, 1, 3, 8]) for _ in range(PARTITIONS)])
            if random.random() < 0.3 and kafka.horizon:
                shards = random.randint(1, 4)
                files = restored_files(kafka, shards)
                restores += 1
                covered += any(decode_state(content[4:]).covered for content in files.values())
                job = Job(kafka, log, order, limits, shards=shards, every_ms=every_ms, files=files)
        kafka.check(whole(log, order, limits), seed)
    assert restores > 20
    assert covered > 5


def test_a_state_that_is_restored_is_not_written_again_and_says_what_it_holds() -> None:
    waits = b'{"group":"g","sender":"a","seq":2,"after":[["a",0,1]]}'
    kafka = Published()
    log = [LogRecord(waits, b"g", partition_of(b"g", PARTITIONS), 5, 1_000)]
    job = Job(kafka, log, "s_b", Limits(), shards=1, every_ms=0)
    job.batch([9, 9])
    (content,) = restored_files(kafka, 1).values()
    state = decode_file(content, "0")
    assert (state.held, state.waiting) == (1, {b"g": (1_000, 1, 1)})
    function = Shard(
        "s_b",
        Limits(),
        PATIENCE,
        partitions=PARTITIONS,
        state=StateSettings(TOPIC, STREAM, 0),
        initial=lambda _: decode_file(content, "0"),
    )
    packed, blob, is_written = call(function, [(None, TICK, 0, 6, 1_010)], None)
    found = [unpack(row[5]) for row in packed]
    assert is_written, "a shard without state would look for its file again"
    assert blob is not None
    assert decode_state(blob).groups == state.groups
    assert [one.state for one in found] == [[]]
    assert (found[-1].held, found[-1].waiting, found[-1].uncovered) == (1, (1_000, 1), {})


def test_what_a_restored_state_covers_is_forgotten_once_the_log_is_past_it() -> None:
    partition = partition_of(b"g", PARTITIONS)
    before = Holdback()
    before.receive(b'{"group":"g","sender":"a","seq":1,"after":[]}')
    group = RestoredGroup(b"g", before.dump()[b"g"], covered=9, pieces=1, held=0, oldest_ms=0, gaps=0)
    ((_, state),) = initial_states([group], 1, TOPIC)
    function = Shard("s_b", Limits(), partitions=PARTITIONS, initial=lambda _: state)
    blob: bytes | None = None
    covered = []
    for offset in (7, 8):
        _, blob, _ = call(function, [(None, TICK, partition, offset, 1_000)], blob)
        assert blob is not None
        covered.append(decode_state(blob).covered)
    assert covered == [{b"g": 9}, {}]


def test_a_damaged_file_is_refused() -> None:
    content = encode_file(ShardState(1, {b"g": b"state"}))
    assert decode_file(content, "3") == ShardState(1, {b"g": b"state"})
    with pytest.raises(Refused, match="The restored state 3 is damaged: take a new checkpoint folder"):
        decode_file(content[:-1] + b"x", "3")
