"""How fast gateways carry what peers say into the log: real sockets on loopback, a real broker, checksums on.

python -m bench.gateway_rate [--gateways N] [--per-s N] [--seconds S]
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from bench.segment import field
from bench.segment.speaker import GROUP, Task
from bench.stage import Stage
from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import describe
from precede.streaming.job import job
from precede.streaming.settings import Settings

PEERS = 2
SETTLE_S_MAX = 60.0
MEET_S = 4.0
"""How long after its start a gateway knows the others."""


class GatewayRate(msgspec.Struct, kw_only=True):
    """What was measured."""

    messages: int
    """What the peers said."""
    offered_per_s: float
    per_s: float
    """Messages a second, from the first to the last in the log."""
    publications: float
    """How often a message was published."""
    behind_s: float
    """How long after the last word the log had everything."""
    gateway_cpu: float
    """Processor time of all gateways for a second of the talk."""


def measure(stage: Stage, *, gateways: int = 1, per_s: float = 6_000, seconds: float = 6.0) -> GatewayRate:
    """Let two peers say so much a second each, and see when the log has it; 0 is as fast as they can."""
    settings = stage.settings(engine="process", cache=str(stage.folder / "cache"), tick_s=0.0)
    job.run(msgspec.structs.replace(settings, once=True, only="order"), say=lambda _: None)
    tasks = field.tasks(PEERS, per_s=per_s, seconds=seconds, burst=not per_s)
    with _gateways(stage.folder, settings, tasks[0], gateways) as running:
        before = sum(_cpu_s(one) for one in running)
        began = time.monotonic()
        found = field.perform(tasks)
        talked = max(one.last_sent_s for one in found) - min(one.began_s for one in found)
        messages = sum(one.sent for one in found)
        ended = _wait(settings, messages)
        cpu = (sum(_cpu_s(one) for one in running) - before) / (time.monotonic() - began)
    times, copies = _in_log(settings)
    return GatewayRate(
        messages=messages,
        offered_per_s=messages / talked,
        per_s=len(copies) / max(0.001, (max(times) - min(times)) / 1_000),
        publications=copies.total() / messages,
        behind_s=max(0.0, ended - max(one.last_sent_s for one in found)),
        gateway_cpu=cpu,
    )


@contextmanager
def _gateways(folder: Path, settings: Settings, task: Task, count: int) -> "Iterator[list[subprocess.Popen[str]]]":
    assert task.segment_key is not None
    key = folder / "segment.key"
    key.write_text(task.segment_key.encode().hex())
    key.chmod(0o600)
    config = folder / "gateway.toml"
    topics = {name: getattr(settings, name) for name in settings.__struct_fields__ if name.endswith("_topic")}
    config.write_text("".join(f'{name} = "{topic}"\n' for name, topic in topics.items() if topic is not None))
    running: list[subprocess.Popen[str]] = []
    try:
        for number in range(count):
            state = folder / f"gateway-{time.monotonic_ns()}-{number}"
            flags = ["--segment", task.url, "--segment-key", str(key), "--state", str(state), "--config", str(config)]
            command = [sys.executable, "-m", "precede", "gateway", *flags, "--bootstrap", str(settings.bootstrap)]
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        for one in running:
            assert one.stderr is not None
            for line in one.stderr:
                if "Carrying between" in line:
                    break
            else:
                raise AssertionError("a gateway did not start")
        time.sleep(MEET_S)
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate()


def _cpu_s(process: "subprocess.Popen[str]") -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _wait(settings: Settings, messages: int) -> float:
    """When the log had as many records as the peers said."""
    deadline = time.monotonic() + SETTLE_S_MAX
    partitions = describe(settings.bootstrap, [settings.raw_topic])[settings.raw_topic].partitions
    while True:
        now = time.monotonic()
        ends = reading.ends(settings.bootstrap, settings.raw_topic, partitions)
        if sum(end for _, end in ends) >= messages + PEERS + 1:
            return now
        assert now < deadline, "the log never had everything"
        time.sleep(0.1)


def _in_log(settings: Settings) -> tuple[list[int], Counter[bytes]]:
    """When the log took each message, and how often."""
    partitions = describe(settings.bootstrap, [settings.raw_topic])[settings.raw_topic].partitions
    records = reading.records_to_end(settings.bootstrap, settings.raw_topic, partitions)
    found = [one for one in records if one.value is not None and one.key == GROUP.encode() and b'"seq":' in one.value]
    return [one.timestamp_ms for one in found], Counter(one.value or b"" for one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--per-s", type=float, default=6_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    asked = parser.parse_args()
    with Stage() as stage:
        found = measure(stage, gateways=asked.gateways, per_s=asked.per_s, seconds=asked.seconds)
    print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


if __name__ == "__main__":
    main()
