"""The job with its files in a store, against the same job with its files in a folder.

The store is an S3 server on this machine, which shares its processors with the job. What a request takes on a network
comes on top; how many there are does not change.
"""

import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from bench.figures import Figure, Report
from bench.stage import Stage
from bench.traffic import Conversation
from precede.streaming.settings import Settings
from precede.udfs.records.wire import encode_message
from tests.cluster.config import config_of
from tests.cluster.s3 import Store, free_port
from tests.cluster.standalone import wait_for

HOME = Path(__file__).resolve().parent.parent
TIMES_MAX = 1.4
BATCH_REQUESTS_MAX = 40
SECOND_REQUESTS_MAX = 10
IDLE_REQUESTS_MAX = 60
START_S_MAX = 300.0
RATE = 800
CALM_S = 130
"""After this time without messages, ticks are as seldom as they get."""


class Running:
    """An order query in its own process, seen by its metrics."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.port = free_port()
        config = folder / f"{self.port}.toml"
        config.write_text(config_of(settings, only="order", metrics=str(self.port)))
        command = [sys.executable, "-m", "precede", "run", "--config", str(config)]
        self._process = subprocess.Popen(command, cwd=HOME, env=os.environ, stderr=subprocess.DEVNULL)
        wait_for(lambda: self.batches()[0], "the first batch", START_S_MAX)

    def batches(self) -> tuple[float, float]:
        """How many batches there were, and how many seconds they took."""
        text = ""
        with suppress(OSError):
            text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10).read().decode()
        found = dict.fromkeys(("count", "sum"), 0.0)
        for line in text.splitlines():
            for name in found:
                if line.startswith(f'precede_batch_seconds_{name}{{phase="triggerExecution",query="order"}}'):
                    found[name] = float(line.split()[-1])
        return found["count"], found["sum"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(90)


class Load:
    """What a job did with some seconds of messages."""

    def __init__(self, stage: Stage, settings: Settings, store: Store, seconds: int) -> None:
        self._stage, self._settings = stage, settings
        self._talk = iter(Conversation(50).take(RATE * (2 * seconds + 1)))
        self._send()
        self.job = Running(settings, stage.folder)
        try:
            self._talk_for(seconds)  # until the JVM is warm
            store.requests()
            count, took_s = self.job.batches()
            began = time.monotonic()
            self._talk_for(seconds)
            requests = sum(store.requests().values())
            later, longer_s = self.job.batches()
            batches = max(later - count, 1)
            self.batch_s = (longer_s - took_s) / batches
            self.batch_requests = requests / batches
            self.second_requests = requests / (time.monotonic() - began)
        except BaseException:
            self.job.stop()
            raise

    def _talk_for(self, seconds: int) -> None:
        for _ in range(seconds):
            began = time.monotonic()
            self._send()
            time.sleep(max(0.0, began + 1 - time.monotonic()))

    def _send(self) -> None:
        self._stage.send(self._settings, [next(self._talk) for _ in range(RATE)])


def run(stage: Stage, quick: bool) -> Report:
    """Load in a folder and in the store, with batches as fast as they come; then with the default trigger, and idle."""
    seconds, calm_s, idle_s = (5, 5, 5) if quick else (40, CALM_S, 120)
    with Store() as store:

        def load(checkpoint: str | None, trigger_ms: int | None) -> Load:
            there = {} if checkpoint is None else {"checkpoint": store.uri(checkpoint), "spark": store.spark_table()}
            settings = stage.settings(only="order", give_up_ms=0, tasks=2, trigger_ms=trigger_ms, **there)
            held = encode_message("a group that waits", "bob", 0, 2, after=[])
            stage.send(settings, [(b"a group that waits", held)])
            return Load(stage, settings, store, seconds)

        local = load(None, 0)
        local.job.stop()
        busy = load("busy", 0)
        busy.job.stop()
        calm = load("calm", None)
        try:
            time.sleep(calm_s)
            store.requests()
            time.sleep(idle_s)
            idle = sum(store.requests().values()) * 60 / idle_s
        finally:
            calm.job.stop()
    return Report(
        "places",
        f"{RATE} messages/s for {seconds} s, one message held, an S3 server on this machine",
        [
            Figure(
                what="time of a batch, store to folder",
                value=round(busy.batch_s / local.batch_s, 2),
                target=TIMES_MAX,
                more_is_better=False,
                sides={"store": round(busy.batch_s, 3), "folder": round(local.batch_s, 3)},
                sides_unit="s",
            ),
            _requests("of a batch", busy.batch_requests, BATCH_REQUESTS_MAX),
            _requests("a second with the default trigger", calm.second_requests, SECOND_REQUESTS_MAX),
            _requests("a minute while idle with one message held", idle, IDLE_REQUESTS_MAX),
        ],
    )


def _requests(what: str, value: float, target: float) -> Figure:
    return Figure(what=f"requests {what}", value=round(value, 1), unit="requests", target=target, more_is_better=False)
