"""Live reading hands over what the job writes, each record once and in order, wherever it starts, stops and goes on."""

from __future__ import annotations

from random import Random

import pytest

from precede.ingest.follower_token import read_token
from precede.ingest.live.kernel import KernelState
from precede.udfs.orders import ORDERS
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.kernel.live_model import Job, Reader, spread, usable, whole

every_order = pytest.mark.parametrize("order", ORDERS)


def job_of(random: Random, order: str, length: int = 150) -> Job:
    log = traffic.log(random, order, length=length)
    partitions = random.randint(1, 3)
    return Job(log, spread(log, random, partitions), partitions, random)


def by_group(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


@every_order
def test_readers_that_stop_and_go_on_live_or_committed_get_each_record_once_in_order(order: str) -> None:
    live_outputs = 0
    for seed in seeds(60):
        random = Random(f"{order} {seed}")
        job = job_of(random, order)
        got: list[tuple[bytes, bytes]] = []
        token = None
        kept: KernelState | None = None
        for _ in range(random.randint(1, 5)):
            reader = Reader(job, random, token)
            if random.random() < 0.5:
                reader.read_committed()
                reader.hand_over()
            if random.random() < 0.8:
                reader.hand_over_all()
                use_kept = kept is not None and usable(kept, reader.reading.token, job) and random.random() < 0.5
                reader.start_live(kept if use_kept else None)
                for _ in range(random.choice([0, 10, 60])):
                    before = len(reader.got)
                    reader.read_live()
                    reader.hand_over()
                    live_outputs += len(reader.got) - before
                    reader.maybe_step()
                kept = reader.reading.state()
            token = read_token(reader.reading.token.text())
            got += reader.got
        while not job.is_done:
            job.step()
        last = Reader(job, random, token)
        last.read_committed([len(topic) for topic in job.ordered])
        last.hand_over_all()
        got += last.got
        assert by_group(got) == whole(job), f"seed {seed}"
    assert live_outputs > 100


@every_order
def test_a_reader_of_a_job_that_stands_still_gets_everything_and_finds_it_equal_when_the_job_goes_on(
    order: str,
) -> None:
    for seed in seeds(60):
        random = Random(f"{order} {seed}")
        job = job_of(random, order)
        for _ in range(random.randint(0, 6)):
            job.step()
        reader = Reader(job, random)
        reader.start_live()
        reader.job = job
        while any(at_end < len(job.raw[at]) for at, at_end in reader.read_raw.items()):
            reader.read_live()
            reader.hand_over_all()
        reader.hand_over_all()
        assert by_group(reader.got) == whole(job)
        while not job.is_done:
            job.step()
        reader.read_committed([len(topic) for topic in job.ordered])
        reader.hand_over_all()
        assert by_group(reader.got) == whole(job)
        assert reader.reading.is_compared
        assert reader.reading.offsets == {at: len(topic) for at, topic in enumerate(job.ordered) if topic}
