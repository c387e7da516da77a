"""Two real jobs: the second takes over, and the first, idle or in the middle of a long batch, ends by itself."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from precede.ingest.kafka.topics import describe
from precede.ingest.progress import read_progress
from precede.local.embedded_broker import Broker
from tests.faults.running import Running
from tests.records import conversation
from tests.system.stream import Stream, contiguous
from tests.system.test_ownership import NAMED

pytestmark = pytest.mark.timeout(600)


def owners(stream: Stream) -> set[str]:
    settings = stream.settings
    topic = describe(settings.bootstrap, [settings.progress_topic])[settings.progress_topic]
    found = read_progress(settings.bootstrap, topic, settings.ordered_topic, settled=False)
    return {owner.job for owner in found.owners.values()}


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "in a batch that takes long"])
def test_a_job_that_was_taken_over_ends_with_3_within_15_seconds_and_names_both(
    broker: Broker, tmp_path: Path, *, is_idle: bool
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order", tick_s=0)
    stream.send(conversation(100))
    fault = None if is_idle else "order.work:1"
    first = Running(stream, fault=fault, folder=tmp_path, program=("-m", "precede", "run"))
    others: list[Running] = []
    try:
        if is_idle:
            first.until(lambda: sum(map(len, stream.ordered().values())) == 100, "the first job's output")
        else:
            first.reaches()
        (before,) = owners(stream)
        stream.change(checkpoint=str(tmp_path / "second"))
        second = Running(stream)
        others.append(second)
        second.until(lambda: owners(stream) != {before}, "the second job's owner records")
        taken_over_at = time.monotonic()
        try:
            assert first.ends(15) == 3
        except subprocess.TimeoutExpired:
            pytest.fail(f"the first job still runs: {first.said}")
        assert time.monotonic() - taken_over_at < 15
        first.listener.join(10)
        named = [match for line in first.said if (match := NAMED.search(line))]
        assert named, first.said
        (after,) = owners(stream)
        assert named[0].groups() == (stream.settings.ordered_topic, after[:8], "spark", before[:8], "spark")
        stream.send([(b"another", msgspec.json.encode({"group": "another", "sender": "ann", "seq": 1, "after": []}))])
        second.until(lambda: b"another" in stream.ordered(), "the second job's output")
        assert contiguous(stream.ordered())
    finally:
        for one in (first, *others):
            one.kill()
