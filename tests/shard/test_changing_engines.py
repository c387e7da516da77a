"""Spark's shards and the engine of one process take over from each other anywhere in the log: one sequence, once."""

from __future__ import annotations

from random import Random

import pytest

from precede.udfs.orders import ORDERS
from tests.door.test_process_groups import Process, new_cache
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.published import PARTITIONS, Published, whole
from tests.shard.test_restoring import Job, restored_files


@pytest.mark.parametrize("order", ORDERS)
def test_the_engines_take_over_from_each_other_anywhere(order: str) -> None:
    changes = 0
    for seed in seeds(30):
        random = Random(f"{order} {seed}")
        log, limits = traffic.of_groups(random, order, groups=3, partitions=PARTITIONS)
        kafka = Published()
        is_done = False
        while not is_done:
            changes += 1
            steps = random.randint(0, 4)
            sizes = [[random.choice([0, 1, 3, 8]) for _ in range(PARTITIONS)] for _ in range(steps)]
            if random.random() < 0.5:
                shards = random.randint(1, 3)
                files = restored_files(kafka, shards) if kafka.horizon else None
                job = Job(kafka, log, order, limits, shards=shards, every_ms=random.choice([0, 60, 200]), files=files)
                for each in sizes:
                    job.batch(each)
                is_done = job.is_done
            else:
                process = Process(kafka, log, order, limits, new_cache(kafka), random.choice([0, 2, 100]))
                for each in sizes:
                    process.transaction(each, takes=random.randint(1, 2))
                is_done = not any(process.left.values())
                if not is_done and random.random() < 0.3:  # killed in the middle of a transaction
                    process.transaction([1, 1], takes=1, commits=False)
        kafka.check(whole(log, order, limits), seed)
    assert changes > 50
