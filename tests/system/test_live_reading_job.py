"""Live reading beside the real job, while that runs, is killed and starts again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

import precede
from precede.local.embedded_broker import Broker
from tests.faults.running import Running
from tests.records import by_group, by_kernel, conversation
from tests.system.stream import Stream

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def running() -> Iterator[list[Running]]:
    jobs: list[Running] = []
    yield jobs
    for one in jobs:
        one.kill()


@pytest.mark.parametrize("engine", ["process", "spark"])
def test_live_equals_committed_over_a_job_that_runs_is_killed_and_starts_again(
    broker: Broker, tmp_path: Path, running: list[Running], engine: str
) -> None:
    stream = Stream(
        broker.bootstrap,
        tmp_path,
        engine=engine,
        only="order",
        cache=str(tmp_path / "cache"),
        state_every_s=0.5,
        max_offsets_per_trigger=150,
    )
    talk = conversation(3_000, groups=10)
    got: list[tuple[bytes, bytes]] = []
    token: str | None = None

    def read(until: int, live_state: Path | None = None) -> None:
        """Read live until so many records are there, and go on from the token."""
        nonlocal token
        deadline = monotonic() + 120
        with precede.follow(config=stream.settings, token=token, live=True, live_state=live_state) as follower:
            while len(got) < until and monotonic() < deadline:
                one = follower.poll(0.5)
                if one is not None:
                    got.append((one.group.encode(), one.record))
            token = follower.token
        assert len(got) >= until, f"only {len(got)} of {until} came"

    def whole() -> int:
        return sum(map(len, by_kernel(stream.raw(), partitions=2)[0].values()))

    stream.send(talk[:1_000])
    running.append(Running(stream, fault="order.open:4", folder=tmp_path))
    running[-1].reaches()
    read(whole())  # the job stands in the middle of a transaction
    running[-1].kill()
    stream.send(talk[1_000:2_000])
    read(whole(), tmp_path / "live.state")  # no job runs
    stream.change(engine="process")  # whatever ran before
    running.append(Running(stream))
    stream.send(talk[2_000:])
    read(whole(), tmp_path / "live.state")  # it catches up
    running[-1].until(lambda: sum(map(len, stream.ordered().values())) == whole(), "all of it")
    committed = stream.ordered()
    assert by_group(got) == committed
    running[-1].kill()
    with precede.follow(config=stream.settings, token=token, patience_s=2.0) as follower:
        assert [one.record for one in follower] == []
    with precede.follow(config=stream.settings, live=True, patience_s=5.0) as follower:
        again = by_group((one.group.encode(), one.record) for one in follower)
    assert again == committed
