"""What must hold after any fault, found by readers that share no code with the job: kafka-python and delta-rs."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition

from tests.system.stream import HOME, Stream

Record = tuple[bytes | None, bytes | None, int, int, int]
"""key, value, partition, offset, timestamp_ms"""


def judge(stream: Stream, folder: Path) -> list[str]:
    """What does not hold, each as a sentence; nothing where all is well."""
    settings = stream.settings
    raw, ordered, dead = (
        read(settings.bootstrap, topic)
        for topic in (settings.raw_topic, settings.ordered_topic, settings.dead_letter_topic)
    )
    replayed = replay(raw, folder)
    return [
        *in_order(ordered),
        *accounted(raw, ordered, dead, replayed["held"]),
        *as_replayed(ordered, dead, replayed),
        *in_delta(settings.delta, ordered, dead),
    ]


def read(bootstrap: str, topic: str) -> list[Record]:
    """All committed records of a topic, partition by partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=2_500,
    )
    consumer.assign([TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))])
    records = [(one.key, one.value, one.partition, one.offset, one.timestamp) for one in consumer]
    consumer.close()
    return sorted(records, key=lambda record: record[2:4])


def replay(raw: list[Record], folder: Path) -> dict[str, list[Any]]:
    """`precede replay` of the dumped log, in a process of its own."""
    dump, dead, held = folder / "log.jsonl", folder / "dead.jsonl", folder / "held.jsonl"
    with dump.open("w") as file:
        for key, value, partition, offset, time_ms in raw:
            assert value is not None
            line = {
                "key": None if key is None else key.decode(),
                "value": value.decode(),
                "partition": partition,
                "offset": offset,
            }
            file.write(json.dumps(line | {"timestamp_ms": time_ms}) + "\n")
    command = [sys.executable, "-m", "precede", "replay", str(dump), "--dead-letters", str(dead), "--held", str(held)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, check=True)
    lines = {"ordered": done.stdout, "dead": dead.read_bytes()}
    found: dict[str, list[Any]] = {name: text.splitlines() for name, text in lines.items()}
    found["held"] = [msgspec.json.decode(line) for line in held.read_bytes().splitlines()]
    return found


def in_order(ordered: list[Record]) -> list[str]:
    """Positions 1..n of each group, each once, and in lawful order: what a message answers stands before it."""
    problems = []
    last: Counter[bytes] = Counter()
    there: set[tuple[bytes, str, int, int]] = set()
    for key, value, *_ in ordered:
        assert key is not None
        record = msgspec.json.decode(value or b"{}")
        if record["position"] != last[key] + 1:
            problems.append(f"group {key.decode()}: position {record['position']} stands after {last[key]}")
        last[key] = record["position"]
        for sender, epoch, seq in record.get("after", []):
            if (key, sender, epoch, seq) not in there:
                problems.append(f"group {key.decode()}: position {record['position']} stands before what it answers")
        there.add((key, record["sender"], record.get("epoch", 0), record["seq"]))
    return problems


def accounted(raw: list[Record], ordered: list[Record], dead: list[Record], held: list[dict[str, Any]]) -> list[str]:
    """Every raw record is delivered, a dead letter, an exact copy of another, or held: one of them, once."""
    ends: Counter[tuple[int, int]] = Counter()
    for _, value, *_ in ordered + dead:
        record = msgspec.json.decode(value or b"{}")
        ends[record["partition"], record["offset"]] += 1
    for one in held:
        ends[one["partition"], one["offset"]] += 1
    first: dict[tuple[bytes | None, bytes | None], tuple[int, int]] = {}
    problems = []
    for key, value, partition, offset, _ in raw:
        if key is None and msgspec.json.decode(value or b"{}").get("kind") == "tick":
            continue  # time passes, and that is all
        count = ends[partition, offset]
        is_copy = first.setdefault((key, value), (partition, offset)) != (partition, offset)
        if count > 1 or (count == 0 and not is_copy):
            problems.append(f"the raw record {partition}:{offset} came out {count} times")
    return problems


def as_replayed(ordered: list[Record], dead: list[Record], replayed: dict[str, list[Any]]) -> list[str]:
    """The topic holds, group by group, the bytes that the kernel alone makes of the log."""
    groups: dict[Any, list[bytes | None]] = {}
    for key, value, *_ in ordered:
        groups.setdefault((key or b"").decode(), []).append(value)
    alone: dict[Any, list[bytes | None]] = {}
    for line in replayed["ordered"]:
        alone.setdefault(msgspec.json.decode(line)["group"], []).append(line)
    problems = [
        f"group {name} differs from its replay" for name in groups | alone if groups.get(name) != alone.get(name)
    ]
    if sorted(value or b"" for _, value, *_ in dead) != sorted(replayed["dead"]):
        problems.append("the dead letters differ from those of the replay")
    return problems


def in_delta(delta: str, ordered: list[Record], dead: list[Record]) -> list[str]:
    """The tables hold what the topics hold, each record once."""
    from deltalake import DeltaTable

    rows = DeltaTable(Path(delta) / "deliveries").to_pyarrow_table(columns=["record"]).column("record").to_pylist()
    problems = []
    if Counter(rows) != Counter((value or b"").decode() for _, value, *_ in ordered):
        problems.append(
            f"Delta has {len(rows)} deliveries, {len(set(rows))} of them different; the topic {len(ordered)}"
        )
    letters = (
        DeltaTable(Path(delta) / "dead_letters").to_pyarrow_table(columns=["partition", "offset", "code"]).to_pylist()
    )
    places = Counter((row["partition"], row["offset"], row["code"]) for row in letters)
    told = [msgspec.json.decode(value or b"{}") for _, value, *_ in dead]
    if places != Counter((letter["partition"], letter["offset"], letter["code"]) for letter in told):
        problems.append(f"Delta has {len(letters)} dead letters, the topic {len(dead)}")
    return problems
