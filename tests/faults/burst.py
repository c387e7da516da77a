"""A burst is absorbed by the topic, never by memory."""

import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from precede.udfs.records.wire import encode_message
from tests.faults.running import Running
from tests.faults.scene import THROUGH_S, Scene, newest

BURST, BATCH, LARGE = 10_000, 1_000, 24_000
"""Messages, how many of them a batch takes, and bytes of each."""
HEAP_MB = 1_024
"""Of the JVM, which fills it whatever comes; outside it are code, state and what is on its way to the workers."""
HISTORY = "history/deliveries"


class Memory(NamedTuple):
    """What the processes of a job take, in MB, each at its most."""

    driver: int
    jvm: int
    largest_worker: int
    workers: int
    """How many there were at once, as Spark decides."""


def burst(scene: Scene) -> None:
    """Ten times and more of what a batch takes, at once: it waits in the topic, and nobody's memory grows with it."""
    scene.stream.change(max_offsets_per_trigger=BATCH, memory=f"{HEAP_MB}m")
    running = scene.start()
    send_large(scene, 3 * BATCH)
    _, before = drained(scene, running)  # what a batch takes, it has taken then
    running.process.send_signal(signal.SIGSTOP)  # or it would work while we send, and we are not that fast
    send_large(scene, BURST)
    running.process.send_signal(signal.SIGCONT)
    batches, most = drained(scene, running)
    largest, waiting = max(size for size, _ in batches), [lag for _, lag in batches]
    assert largest <= BATCH + 2, f"a batch took {largest} records"
    assert len([lag for lag in waiting if lag > BURST // 2]) >= 3, f"it did not stand in the topic: {waiting}"
    # Said whatever comes of it, for this is what one wants to know.
    print(f"Memory in MB: {before} for a short burst, {most} for the long one.", file=sys.stderr)
    # What the largest worker has grown is taken for the growth of each.
    grown = most.driver - before.driver + most.workers * (most.largest_worker - before.largest_worker)
    assert grown < BURST * LARGE / 1e6, "driver and workers grew by as much as they were sent"
    assert most.jvm < 2 * HEAP_MB, "the JVM grew past what its heap explains"
    scene.through(running)


def send_large(scene: Scene, count: int) -> None:
    """Messages that nobody waits for, each of a size that counts."""
    name, text = scene.chance.randbytes(4).hex(), scene.chance.randbytes(LARGE // 2).hex()
    for begin in range(0, count, 500):
        scene.stream.send(
            (group.encode(), encode_message(group, "a", 0, number // 50 + 1, after=[], data=text))
            for number in range(begin, begin + 500)
            for group in [f"{name}-{number % 50}"]
        )


def drained(scene: Scene, running: Running) -> tuple[list[tuple[int, int]], Memory]:
    """Wait until all is through; (records, lag behind it) of each batch since now, and the job's memory at its most."""
    log = scene.stream.settings.order_checkpoint / "offsets"
    end = scene.end()
    batches: dict[int, tuple[int, int]] = {}
    seen, most, upto = newest(log), memory_of(running), 0
    began = time.monotonic()
    while upto < end or newest(log.with_name("commits")) < seen:
        assert running.process.poll() is None, f"the job ended: {running.said}"
        assert time.monotonic() - began < 2 * THROUGH_S, f"the burst was not absorbed: {batches}"
        for batch in range(seen + 1, newest(log) + 1):
            before, upto = upto or (planned(log / str(seen)) if seen >= 0 else 0), planned(log / str(batch))
            batches[batch] = upto - before, end - upto
            seen = batch
        most = Memory(*map(max, most, memory_of(running)))
        time.sleep(0.2)
    return list(batches.values()), most


def planned(batch: Path) -> int:
    """How many raw records there are up to the end of a batch, as Spark has noted it."""
    (offsets,) = json.loads(batch.read_text().splitlines()[2]).values()
    return sum(offsets.values())


def memory_of(running: Running) -> Memory:
    """At this moment."""
    jvms = [one.pid for one in running.below("java")]
    workers = sizes(running.workers())
    return Memory(sum(sizes([running.process.pid])), sum(sizes(jvms)), max(workers, default=0), len(workers))


def sizes(processes: list[int]) -> list[int]:
    """What each takes, in MB; those that end, and take nothing, are left out, for Spark's workers come and go."""
    found: list[int] = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(round(psutil.Process(one).memory_info().rss / 1e6))
    return [size for size in found if size]
