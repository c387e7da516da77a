"""The cost of an idle job: the processor time of a running job without messages.

Each tick is a batch in every shard. With nothing held there is a tick every ten seconds; with one message held for long
there is one per second, and each shard's state is searched for what is due, but not changed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from bench.figures import Figure, Report
from bench.stage import PARTITIONS, Stage
from precede.ingest.kafka import reading
from precede.streaming.settings import Settings
from precede.udfs.records.wire import encode_message

HOME = Path(__file__).resolve().parent.parent
CORES_MAX = 0.15
"""The share of one core while nothing is held."""
WARM_S = 90
"""How long the JVM compiles after the start, which is no cost of an idle job."""
SELDOM_S = 30
"""Until requests for what one message waits for have become rare."""

RUN = (
    "import os; from precede.streaming import settings; from precede.streaming.job import job; "
    "job.run(settings.load({}, os.environ))"
)
HELD = "a group that waits"


def run(stage: Stage, quick: bool) -> Report:
    """One job: first with nothing held, then with one message held."""
    groups, seconds = (1_000, 5) if quick else (100_000, 40)
    settings = stage.settings(only="order", give_up_ms=0)
    names = [f"group {number}" for number in range(groups)]
    stage.send(settings, ((name.encode(), encode_message(name, "ann", 0, 1, after=[])) for name in names))
    job = _start(settings)
    try:
        _await_output(settings, groups, job)
        _cores(job, 1 if quick else WARM_S)
        quiet = _cores(job, seconds)
        waits = encode_message(HELD, "bob", 0, 1, after=[("ann", 0, 1)])
        stage.send(settings, [(HELD.encode(), waits)])
        _cores(job, 1 if quick else SELDOM_S)
        waiting = _cores(job, seconds)
    finally:
        job.terminate()
        job.wait(60)
    return Report(
        "idle",
        f"{groups:,} groups of one message in {settings.shards} shards, tick_s {settings.tick_s}, {seconds} s each",
        [
            Figure(
                what="cores taken while nothing is held",
                value=round(quiet, 3),
                unit="cores",
                target=CORES_MAX,
                more_is_better=False,
            ),
            Figure(what="cores taken while one message is held", value=round(waiting, 3), unit="cores"),
        ],
    )


def _start(settings: Settings) -> "subprocess.Popen[bytes]":
    values = {
        f"PRECEDE_{name.upper()}": str(value)
        for name, value in msgspec.structs.asdict(settings).items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }
    return subprocess.Popen([sys.executable, "-c", RUN], env=os.environ | values, cwd=HOME, stdout=subprocess.DEVNULL)


def _await_output(settings: Settings, records: int, job: "subprocess.Popen[bytes]") -> None:
    """Wait until all that was sent is ordered; transactions add a few offsets."""
    until = time.monotonic() + 300
    while sum(end for _, end in reading.ends(settings.bootstrap, settings.ordered_topic, PARTITIONS)) < records:
        assert job.poll() is None, "the job ended"
        assert time.monotonic() < until, "the job did not order what was sent"
        time.sleep(0.5)


def _cores(job: "subprocess.Popen[bytes]", seconds: float) -> float:
    """The processor time that the job and all its processes use per second."""
    before = _cpu_s(job)
    began = time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(job) - before) / (time.monotonic() - began)


def _cpu_s(job: "subprocess.Popen[bytes]") -> float:
    driver = psutil.Process(job.pid)
    total = 0.0
    for one in [driver, *driver.children(recursive=True)]:
        times = one.cpu_times()
        total += times.user + times.system
    return total
