"""`python -m bench.soak`: the job under load for long, with disorder, loss, copies, membership churn and restarts.

First its capacity is measured on a backlog; then it gets a share of that, and is soon stopped once and killed once.
From then on one process runs to the end, and its memory, state and latency must be the same late as early. Prints a
verdict; the exit status is 1 if they are not.
"""

import argparse
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.soak_traffic import Reader, Sender
from bench.stage import Stage
from bench.traffic import Conversation
from precede.local.embedded_broker import free_port
from precede.streaming.settings import Settings

HOME = Path(__file__).resolve().parent.parent
GROUPS = 1_000
BATCH = 20_000
SAMPLE_S = 2.0
MEMORY = "1g"
"""A small JVM heap is full early, so later growth is a leak."""
MINUTES_MIN = 10.0
"""A restarted job needs a minute to warm up and another to catch up; both end before the early part."""
START_S_MAX = 600
DRAIN_S_MAX = 240
STOPPED_AT, KILLED_AT = 0.04, 0.1
EARLY, LATE = (0.35, 0.55), (0.8, 1.0)
"""The compared parts of the run, both of the process that started after the kill."""


@dataclass
class Sample:
    """One sample of everything."""

    at: float
    memory_mb: float
    state_kb: float
    held: float
    lag: float
    latency_ms: tuple[float, float] | None
    """Median and 99th percentile."""


@dataclass
class Job:
    """The job as a process, observed through its metrics."""

    settings: Settings
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    log: list[str] = field(default_factory=list)

    def start(self) -> None:
        values = {
            f"PRECEDE_{name.upper()}": str(value)
            for name, value in msgspec.structs.asdict(self.settings).items()
            if name != "limits" and value not in (None, False)
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "precede", "run"],
            env=os.environ | values | {"PRECEDE_METRICS": str(self.port)},
            cwd=HOME,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S_MAX
        while self.told("precede_healthy") != 1:
            assert self.process.poll() is None, "the job ended while it started"
            assert time.monotonic() < deadline, "the job did not become healthy"
            time.sleep(0.2)

    def told(self, name: str) -> float | None:
        """The sum of a metric over its labels; None if there is no answer or no such metric."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values)) if values else None

    def memory_mb(self) -> float:
        """The memory of the driver, the JVM and the workers together."""
        assert self.process is not None
        whole = psutil.Process(self.process.pid)
        total = 0
        for one in [whole, *whole.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # Spark's workers come and go
                total += one.memory_info().rss
        return total / 1e6

    def stop(self, *, kill: bool = False) -> None:
        assert self.process is not None
        below = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        if kill:
            for one in [*below, psutil.Process(self.process.pid)]:
                one.kill()
        else:
            self.process.terminate()
        self.process.wait(120)


def capacity(stage: Stage, job: Job, count: int) -> float:
    """Messages per second on a backlog, after the first batch."""
    stage.send(job.settings, Conversation(GROUPS, seed=99).take(count))
    job.start()
    first: tuple[float, float] | None = None
    while True:
        read = job.told("precede_read_records_total") or 0.0
        if read and first is None:
            first = time.monotonic(), read
        if read >= count:
            assert first is not None
            assert read > first[1], "the backlog fits into one batch: it is too short to measure"
            return (read - first[1]) / (time.monotonic() - first[0])
        time.sleep(0.1)


def run(minutes: float, share: float, backlog: int) -> bool:
    """Measure, load, observe, judge."""
    console = Console(width=110)
    console.print(" · ".join(machine.describe().values()), f"load {machine.load()}")
    with Stage() as stage:
        # The backlog has its own stream, so that its messages are not counted.
        probe = Job(stage.settings(max_offsets_per_trigger=BATCH, memory=MEMORY), free_port())
        try:
            can = capacity(stage, probe, backlog)
        finally:
            probe.stop()
        per_s = can * share
        console.print(f"Capacity {can:,.0f} messages/s; {per_s:,.0f} messages/s for {minutes:g} minutes now.")
        job = Job(stage.settings(max_offsets_per_trigger=BATCH, memory=MEMORY), free_port())
        sender = Sender(stage.broker.bootstrap, job.settings.raw_topic, GROUPS, per_s)
        reader = Reader(stage.broker.bootstrap, job.settings.ordered_topic)
        try:
            job.start()
            reader.start()
            sender.start()
            samples = _watch(job, reader, minutes * 60)
            sender.stop()
            drained = _drain(job, reader, sender)
        finally:
            sender.stop()
            reader.stop()
            job.stop()
    return _verdict(console, samples, reader, sender, drained, minutes * 60)


def _watch(job: Job, reader: Reader, seconds: float) -> list[Sample]:
    """Take a sample every few seconds, and stop and kill the job at the set times."""
    began = time.monotonic()
    events = [(STOPPED_AT, False), (KILLED_AT, True)]
    samples: list[Sample] = []
    while (at := (time.monotonic() - began) / seconds) < 1:
        if events and at >= events[0][0]:
            job.stop(kill=events.pop(0)[1])
            job.start()
        assert job.process is not None
        assert job.process.poll() is None, "the job ended by itself"
        held, lag, state = (job.told(f"precede_{name}") for name in ("held_messages", "lag_records", "state_bytes"))
        if held is not None and lag is not None and state is not None:
            samples.append(Sample(at, job.memory_mb(), state / 1e3, held, lag, reader.latency_ms()))
            print(f"  {samples[-1]}", file=sys.stderr, flush=True)
        time.sleep(SAMPLE_S)
    return samples


def _drain(job: Job, reader: Reader, sender: Sender) -> bool:
    """Wait until everything that was sent or abandoned has come out."""
    deadline = time.monotonic() + DRAIN_S_MAX
    while time.monotonic() < deadline:
        if reader.count >= sender.expected and job.told("precede_held_messages") == 0:
            return True
        time.sleep(0.5)
    return False


def _verdict(
    console: Console, samples: list[Sample], reader: Reader, sender: Sender, drained: bool, seconds: float
) -> bool:
    early, late = ([one for one in samples if begin <= one.at <= end] for begin, end in (EARLY, LATE))
    # Columns of medians and of percentiles; zeros, which no row accepts, if nothing came out.
    (early_p50, early_p99), (late_p50, late_p99) = (
        (median(column) for column in zip(*[one.latency_ms for one in part if one.latency_ms] or [(0, 0)], strict=True))
        for part in (early, late)
    )
    rows: list[tuple[str, float, float, float]] = [
        ("memory, MB", _median(early, "memory_mb"), _median(late, "memory_mb"), 1.1),
        ("state, kB", _median(early, "state_kb"), _median(late, "state_kb"), 1.2),
        ("held messages", _median(early, "held"), _median(late, "held"), 2.0),
        ("latency p50, ms", early_p50, late_p50, 1.5),
        ("latency p99, ms", early_p99, late_p99, 2.0),
    ]
    table = Table("what", "early", "late", "at most", "")
    fine = True
    for what, before, after, factor in rows:
        good = 0 < after <= before * factor
        fine &= good
        table.add_row(what, f"{before:,.0f}", f"{after:,.0f}", f"x {factor}", "flat" if good else "NOT FLAT")
    facts = {
        f"all that was sent came out ({reader.count:,} of {sender.expected:,})": drained,
        "positions without a hole and without a copy": not reader.problems,
        "lag at the end under ten seconds of traffic": bool(late) and late[-1].lag < 10 * sender.per_s,
    }
    for what, good in facts.items():
        fine &= good
        table.add_row(what, "", "", "", "yes" if good else "NO")
    console.print(table)
    console.print(f"{sender.told}. Stopped once and killed once in {seconds:.0f} s; load now {machine.load()}.")
    for problem in reader.problems[:5]:
        console.print(problem)
    console.print("[bold]It holds.[/bold]" if fine else "[bold]It does not hold.[/bold]")
    return fine


def _median(samples: list[Sample], name: str) -> float:
    return float(median([getattr(one, name) for one in samples] or [0.0]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="The job under load for long.")
    parser.add_argument("--minutes", type=float, default=30.0, help=f"{MINUTES_MIN:g} at least")
    parser.add_argument("--share", type=float, default=0.7, help="share of its capacity on a backlog")
    parser.add_argument("--backlog", type=int, default=200_000, help="messages for measuring the capacity")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it and its job, like Ctrl-C
    if asked.minutes < MINUTES_MIN:
        parser.error(f"in less than {MINUTES_MIN:g} minutes a job that was stopped and killed is not itself again")
    return 0 if run(asked.minutes, asked.share, asked.backlog) else 1


if __name__ == "__main__":
    sys.exit(main())
