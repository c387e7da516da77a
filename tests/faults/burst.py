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
"""The number of messages, how many a batch takes, and the bytes of each."""
HEAP_MB = 1_024
"""The JVM always fills its heap; outside it are code, state and data on the way to the workers."""
HISTORY = "history/deliveries"


class Memory(NamedTuple):
    """Peak memory of the processes of a job, in MB."""

    driver: int
    jvm: int
    largest_worker: int
    workers: int
    """How many ran at once, as Spark decides."""


def burst(scene: Scene) -> None:
    """More than ten batches at once wait in the topic, and the memory of no process grows with them."""
    scene.stream.change(max_offsets_per_trigger=BATCH, memory=f"{HEAP_MB}m")
    running = scene.start()
    send_large(scene, 3 * BATCH)
    _, before = drained(scene, running)  # then a batch has taken what it takes
    running.process.send_signal(signal.SIGSTOP)  # otherwise it would process while we send, and sending is too slow
    send_large(scene, BURST)
    running.process.send_signal(signal.SIGCONT)
    batches, most = drained(scene, running)
    largest, waiting = max(size for size, _ in batches), [lag for _, lag in batches]
    assert largest <= BATCH + 2, f"a batch took {largest} records"
    assert len([lag for lag in waiting if lag > BURST // 2]) >= 3, f"it did not wait in the topic: {waiting}"
    # Printed in any case: this is what the reader wants to know.
    print(f"Memory in MB: {before} for a short burst, {most} for the long one.", file=sys.stderr)
    # The growth of the largest worker counts for each worker.
    grown = most.driver - before.driver + most.workers * (most.largest_worker - before.largest_worker)
    assert grown < BURST * LARGE / 1e6, "driver and workers grew by as much as they were sent"
    assert most.jvm < 2 * HEAP_MB, "the JVM grew past what its heap explains"
    scene.through(running)


def send_large(scene: Scene, count: int) -> None:
    """Messages that no other waits for, each of considerable size."""
    name, text = scene.chance.randbytes(4).hex(), scene.chance.randbytes(LARGE // 2).hex()
    for begin in range(0, count, 500):
        scene.stream.send(
            (group.encode(), encode_message(group, "a", 0, number // 50 + 1, after=[], data=text))
            for number in range(begin, begin + 500)
            for group in [f"{name}-{number % 50}"]
        )


def drained(scene: Scene, running: Running) -> tuple[list[tuple[int, int]], Memory]:
    """Wait until all is processed; returns (records, lag) of each batch since now, and the job's peak memory."""
    log = Path(scene.stream.settings.order_checkpoint.location) / "offsets"
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
    """How many raw records there are up to the end of a batch, according to Spark."""
    (offsets,) = json.loads(batch.read_text().splitlines()[2]).values()
    return sum(offsets.values())


def memory_of(running: Running) -> Memory:
    """The current memory."""
    jvms = [one.pid for one in running.below("java")]
    workers = sizes(running.workers())
    return Memory(sum(sizes([running.process.pid])), sum(sizes(jvms)), max(workers, default=0), len(workers))


def sizes(processes: list[int]) -> list[int]:
    """The memory of each, in MB, without ended processes, because Spark's workers come and go."""
    found: list[int] = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(round(psutil.Process(one).memory_info().rss / 1e6))
    return [size for size in found if size]
