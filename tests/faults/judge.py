"""Checks what must hold after any fault, with readers that share no code with the job: kafka-python and delta-rs.

What the job still holds is only in its state, and is read as `precede held` reads it.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from precede.check.sources import TopicsCheck
from precede.command_options import caught_up
from precede.inspect import holding
from precede.reading.from_delta import DeltaRows
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint_reader as held
from precede.udfs.engine.held import Held
from tests.system.stream import HOME, Stream

Record = tuple[bytes | None, bytes | None, int, int, int]
"""key, value, partition, offset, timestamp_ms"""

SILENCE_S = 15.0


def judge(stream: Stream, folder: Path, spark: SparkSession | None, *, is_held_in_topic: bool = False) -> list[str]:
    """What does not hold, each as a sentence; empty if all is well.

    What is held is read from the checkpoint with Spark, or, as on a cluster, from the state topic.
    """
    settings = stream.settings
    raw, ordered, dead, control = (
        read(str(settings.bootstrap), topic)
        for topic in (settings.raw_topic, settings.ordered_topic, settings.dead_letter_topic, settings.control_topic)
    )
    replayed = replay(raw, folder, settings.ask_after_ms)
    return [
        *in_order(ordered),
        *as_checked(settings),
        *accounted(raw, ordered, dead, replayed["held"]),
        *as_held(
            holding.held(caught_up(settings)) if is_held_in_topic else held.read(settings, spark=spark),
            replayed["held"],
        ),
        *as_replayed(ordered, dead, replayed),
        *asked(control, replayed["own"]),
        *in_delta(settings, ordered, dead),
        *gaps_in_delta(settings, control),
    ]


def read(bootstrap: str, topic: str) -> list[Record]:
    """All committed records of a topic, partition by partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))])
    ends = consumer.end_offsets(consumer.assignment())
    records: list[Record] = []
    heard = time.monotonic()
    # A slow machine must not make the log look short; silence matters only if a log ends in records no reader sees.
    while any(consumer.position(place) < end for place, end in ends.items()) and time.monotonic() < heard + SILENCE_S:
        for batch in consumer.poll(timeout_ms=500).values():
            heard = time.monotonic()
            records += [(one.key, one.value, one.partition, one.offset, one.timestamp) for one in batch]
    consumer.close()
    return sorted(records, key=lambda record: record[2:4])


def replay(raw: list[Record], folder: Path, ask_after_ms: int) -> dict[str, list[Any]]:
    """Run `precede replay` on the dumped log, in a separate process."""
    dump, dead, held, own = (folder / f"{name}.jsonl" for name in ("log", "dead", "held", "own"))
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
    patience = os.environ | {"PRECEDE_ASK_AFTER_MS": str(ask_after_ms)}
    done = subprocess.run([*command, "--own", str(own)], cwd=HOME, env=patience, capture_output=True, check=True)
    lines = {"ordered": done.stdout, "dead": dead.read_bytes()}
    found: dict[str, list[Any]] = {name: text.splitlines() for name, text in lines.items()}
    found["held"] = [msgspec.json.decode(line) for line in held.read_bytes().splitlines()]
    found["own"] = [msgspec.json.decode(line) for line in own.read_bytes().splitlines()]
    return found


def in_order(ordered: list[Record]) -> list[str]:
    """Each group has positions 1..n, each once, and each message comes after those it must follow."""
    problems = []
    last: Counter[bytes] = Counter()
    there: set[tuple[bytes, str, int, int]] = set()
    latest: dict[bytes, tuple[int, str]] = {}
    for key, value, *_ in ordered:
        assert key is not None
        record = msgspec.json.decode(value or b"{}")
        if record["position"] != last[key] + 1:
            problems.append(f"group {key.decode()}: position {record['position']} stands after {last[key]}")
        last[key] = record["position"]
        if record.get("kind", "message") != "message":
            continue
        sender, epoch, seq = record["sender"], record.get("epoch", 0), record["seq"]
        needs = [tuple(one) for one in record.get("after", [])]
        match record["order"]:
            case "fifo":
                needs = [(sender, epoch, seq - 1)] if seq > 1 else []
            case "lamport":
                needs = []
                if (record["time"], sender) < latest.get(key, (0, "")):
                    problems.append(f"group {key.decode()}: position {record['position']} stands after a later time")
                latest[key] = record["time"], sender
        if any((key, *one) not in there for one in needs):
            problems.append(f"group {key.decode()}: position {record['position']} stands before what it follows")
        there.add((key, sender, epoch, seq))
    return problems


def as_checked(settings: Settings) -> list[str]:
    """What `precede check` finds, which has code of its own and follows the raw log step by step."""
    topics = TopicsCheck(settings, (), None)
    topics.run()
    return [f"precede check: {violation.sentence}" for violation in topics.check.report().violations]


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
            continue  # it only lets time pass
        count = ends[partition, offset]
        is_copy = first.setdefault((key, value), (partition, offset)) != (partition, offset)
        if count > 1 or (count == 0 and not is_copy):
            problems.append(f"the raw record {partition}:{offset} came out {count} times: {(value or b'')[:100]!r}")
    return problems


def as_held(kept: Iterable[Held], alone: list[dict[str, Any]]) -> list[str]:
    """The job's state holds what the kernel alone holds after the log, each for the same reason."""
    found = Counter(map(msgspec.json.encode, kept))
    same = found == Counter(map(msgspec.json.encode, alone))
    return [] if same else [f"the job holds {found.total()} messages, its replay {len(alone)}, or they differ"]


def as_replayed(ordered: list[Record], dead: list[Record], replayed: dict[str, list[Any]]) -> list[str]:
    """The topic has, group by group, the bytes that the kernel alone produces for the log."""
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


def asked(control: list[Record], own: list[dict[str, Any]]) -> list[str]:
    """The control topic has the job's requests once each: those of the kernel alone."""
    alone = Counter(msgspec.json.encode(one["value"]) for one in own if one["topic"] == "control")
    found = Counter(msgspec.json.encode(msgspec.json.decode(value or b"{}")) for _, value, *_ in control)
    return [] if found == alone else [f"{found.total()} records in the control topic, {alone.total()} of the replay"]


def table(settings: Settings, name: str, columns: list[str]) -> list[dict[str, Any]]:
    """The rows of a table, wherever it is."""
    rows = DeltaRows(settings.delta_place / name, settings.storage_options)
    return list(rows.select(", ".join(f'"{column}"' for column in columns)))


def in_delta(settings: Settings, ordered: list[Record], dead: list[Record]) -> list[str]:
    """The tables have the records of the topics, each once."""
    rows = [row["record"] for row in table(settings, "deliveries", ["record"])]
    problems = []
    if Counter(rows) != Counter((value or b"").decode() for _, value, *_ in ordered):
        problems.append(
            f"Delta has {len(rows)} deliveries, {len(set(rows))} of them different; the topic {len(ordered)}"
        )
    letters = table(settings, "dead_letters", ["partition", "offset", "code"])
    places = Counter((row["partition"], row["offset"], row["code"]) for row in letters)
    told = [msgspec.json.decode(value or b"{}") for _, value, *_ in dead]
    if places != Counter((letter["partition"], letter["offset"], letter["code"]) for letter in told):
        problems.append(f"Delta has {len(letters)} dead letters, the topic {len(dead)}")
    return problems


def gaps_in_delta(settings: Settings, control: list[Record]) -> list[str]:
    """The table of gaps has a row for each gap, with its latest state."""
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for _, value, *_ in control:
        gap = msgspec.json.decode(value or b"{}")
        which = gap["group"], gap["sender"], gap["epoch"], gap["last"], gap["opened_ms"]
        last[which] = (*which[:4], gap["first"], "open" if gap["kind"] == "ask" else gap["kind"], gap["asked"])
    columns = ["group", "sender", "epoch", "last", "first", "state", "asked"]
    rows = table(settings, "gaps", columns)
    same = Counter(tuple(row[name] for name in columns) for row in rows) == Counter(last.values())
    return [] if same else [f"Delta has {len(rows)} gaps, the control topic tells of {len(last)}, or they differ"]
