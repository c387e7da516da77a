"""A burst is absorbed by the topic, never by memory."""

import json
import time
from contextlib import suppress
from pathlib import Path

import psutil

from streaming import kafka
from tests.faults.running import Running
from tests.faults.scene import THROUGH_S, Scene, newest
from udfs.wire import encode_message

BURST, LARGE = 10_000, 16_000
"""Messages, and bytes of each."""
HISTORY = "history/deliveries"


def burst(scene: Scene) -> None:
    """Ten times and more of what a batch takes, at once: it waits in the topic, and nobody's memory grows with it."""
    scene.stream.change(max_offsets_per_trigger=BURST // 20, memory="1g")
    running = scene.start()
    send_large(scene, BURST // 4)
    drained(scene, running)  # what a JVM takes for itself, it has taken then
    before = memory_mb(running)
    send_large(scene, BURST)
    batches, most = drained(scene, running)
    largest, waiting = max(size for size, _ in batches), [lag for _, lag in batches]
    assert largest <= BURST // 20 + 2, f"a batch took {largest} records"
    assert len([lag for lag in waiting if lag > BURST // 2]) >= 5, f"it did not stand in the topic: {waiting}"
    assert most < before + BURST * LARGE / 1e6, f"the job grew from {before:.0f} to {most:.0f} MB"
    scene.through(running)


def send_large(scene: Scene, count: int) -> None:
    """Messages that nobody waits for, each of a size that counts."""
    name = scene.chance.randbytes(4).hex()
    for begin in range(0, count, 500):
        scene.stream.send(
            (group.encode(), encode_message(group, "a", 0, number // 50 + 1, after=[], data=text))
            for number in range(begin, begin + 500)
            for group, text in [(f"{name}-{number % 50}", scene.chance.randbytes(LARGE // 2).hex())]
        )


def drained(scene: Scene, running: Running) -> tuple[list[tuple[int, int]], float]:
    """Wait until all is through; (records, lag behind it) of each batch since now, and the job's memory at its most."""
    settings = scene.stream.settings
    log = settings.order_checkpoint / "offsets"
    end = sum(end for _, end in kafka.ends(settings.bootstrap, settings.raw_topic, 2))
    batches: dict[int, tuple[int, int]] = {}
    seen, most, upto = newest(log), 0.0, 0
    began = time.monotonic()
    while upto < end or newest(log.with_name("commits")) < seen:
        assert running.process.poll() is None, f"the job ended: {running.said}"
        assert time.monotonic() - began < 2 * THROUGH_S, f"the burst was not absorbed: {batches}"
        for batch in range(seen + 1, newest(log) + 1):
            before, upto = upto or (planned(log / str(seen)) if seen >= 0 else 0), planned(log / str(batch))
            batches[batch] = upto - before, end - upto
            seen = batch
        most = max(most, memory_mb(running))
        time.sleep(0.2)
    return list(batches.values()), most


def planned(batch: Path) -> int:
    """How many raw records there are up to the end of a batch, as Spark has noted it."""
    (offsets,) = json.loads(batch.read_text().splitlines()[2]).values()
    return sum(offsets.values())


def memory_mb(running: Running) -> float:
    """Of the driver, the JVM and the workers together."""
    total = 0
    for one in [running.process.pid, *(child.pid for child in running.below(""))]:
        with suppress(psutil.NoSuchProcess):  # Spark's workers come and go
            total += psutil.Process(one).memory_info().rss
    return total / 1e6
