"""Spark's shards and the engine of one process take over from each other anywhere in the log: one sequence, once."""

from __future__ import annotations

from random import Random

import pytest

from precede.ingest.state_topic import StatePieces
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import LogRecord
from tests.door import test_process_groups as one_process
from tests.kernel.effort import seeds
from tests.records import by_group
from tests.shard import test_restoring as spark

PARTITIONS = spark.PARTITIONS


class States(StatePieces):
    """The state topic, as both kinds of job of these tests see it."""

    def __init__(self, records: list[LogRecord]) -> None:
        super().__init__("state", stream=spark.STREAM)
        self.records = records

    def add(self, record: LogRecord) -> None:
        self.records.append(record)
        super().add(record)

    def take(self, known: int) -> None:
        """Take what the other kind of job has written since."""
        for record in self.records[known:]:
            super().add(record)


@pytest.mark.parametrize("order", ORDERS)
def test_the_engines_take_over_from_each_other_anywhere(order: str) -> None:
    changes = 0
    for seed in seeds(30):
        random = Random(f"{order} {seed}")
        log, limits = spark.hostile_log(random, order)
        in_process = one_process.Kafka()
        states = States(in_process.states)
        kafka = spark.Kafka(in_process.ordered, in_process.dead, in_process.own, in_process.token, in_process.horizon)
        kafka.states = states
        rows = [(at, offset, key, value, now_ms) for key, value, at, offset, now_ms in log]
        is_done = False
        while not is_done:
            changes += 1
            steps = random.randint(0, 4)
            sizes = [[random.choice([0, 1, 3, 8]) for _ in range(PARTITIONS)] for _ in range(steps)]
            if random.random() < 0.5:
                shards = random.randint(1, 3)
                files = spark.restored_files(kafka, shards) if kafka.horizon else None
                job = spark.Job(
                    kafka, log, order, limits, shards=shards, every_ms=random.choice([0, 60, 200]), files=files
                )
                for each in sizes:
                    job.batch(each)
                is_done = job.is_done
            else:
                known = len(states.records)
                cache = one_process.new_cache(in_process)
                process = one_process.Process(in_process, rows, order, limits, cache, random.choice([0, 2, 100]))
                for each in sizes:
                    process.transaction(each, takes=random.randint(1, 2))
                is_done = not any(process.left.values())
                if not is_done and random.random() < 0.3:  # killed in the middle of a transaction
                    process.transaction([1, 1], takes=1, commits=False)
                states.take(known)
        expected = spark.whole(log, order, limits)
        assert by_group(kafka.ordered) == by_group(zip(expected.ordered_keys, expected.ordered, strict=True)), seed
        assert sorted(kafka.dead) == sorted(expected.dead), seed
        assert sorted(kafka.own) == sorted(one.value for one in expected.own), seed
    assert changes > 50
