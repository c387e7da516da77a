"""How long `precede held`, `precede groups --top` and `precede why` take, with many groups in the state topic."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from confluent_kafka import Producer

from bench.figures import Figure
from bench.stage import PARTITIONS, Stage
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import StreamTopics, horizon_record, new_owner, owner_record, token_record
from precede.streaming.settings import Settings
from precede.udfs.holdback import Holdback
from precede.udfs.partitioner import partition_of
from precede.udfs.records.state_pieces import pieces
from precede.udfs.records.wire import encode_message
from precede.udfs.rules import RULES

HOME = Path(__file__).parent.parent
SECONDS_MAX = 2.0
TIMES = 3


def figures(stage: Stage, quick: bool) -> list[Figure]:
    """The commands as a person calls them, each in a process of its own; the median of three."""
    groups, held, tail = (1_000, 100, 500) if quick else (100_000, 10_000, 20_000)
    settings = stage.settings()
    write_state(settings, groups=groups, held=held, tail=tail)
    sizes = f"{groups:,} groups, {held:,} held messages, {tail:,} raw records behind the state"
    return [
        Figure(
            what=f"{what}: {sizes}",
            value=round(_seconds(settings, *arguments), 2),
            unit="s",
            target=None if quick else SECONDS_MAX,
            more_is_better=False,
        )
        for what, arguments in {
            "precede held": ("held",),
            "precede held --gaps": ("held", "--gaps"),
            "precede held GROUP": ("held", "group-0"),
            "precede groups --top held": ("groups", "--top", "held"),
            "precede why, of a held message": ("why", "group-0", "bob:1"),
        }.items()
    ]


def _seconds(settings: Settings, *arguments: str) -> float:
    names = ("raw_topic", "ordered_topic", "dead_letter_topic", "progress_topic", "control_topic", "bootstrap", "delta")
    values = {f"PRECEDE_{name.upper()}": str(getattr(settings, name)) for name in names}
    took = []
    for _ in range(TIMES):
        began = time.monotonic()
        command = [sys.executable, "-m", "precede", *arguments, "--json"]
        done = subprocess.run(command, env=os.environ | values, cwd=HOME, capture_output=True, check=True)
        took.append(time.monotonic() - began)
        assert done.stdout, "something is held"
    return sorted(took)[TIMES // 2]


def write_state(settings: Settings, *, groups: int, held: int, tail: int) -> None:
    """Write what a job would have written: the raw log, states, horizon, token and owners. Every group has a message.

    The first `held` groups hold one more; behind the state, `tail` more messages come to groups chosen by chance.
    """
    producer = Producer({"bootstrap.servers": str(settings.bootstrap), "queue.buffering.max.messages": 1_000_000})
    kernel = Holdback(partitions=PARTITIONS)
    offsets = [0] * PARTITIONS
    now_ms = round(time.time() * 1000) - 60_000
    for key, value in _messages(groups, held):
        partition = partition_of(key, PARTITIONS)
        producer.produce(settings.raw_topic, value, key, partition)
        kernel.receive(value, key, partition, offsets[partition], now_ms)
        kernel.clear()
        offsets[partition] += 1
        producer.poll(0)
    _write_states(producer, settings, kernel, offsets)
    chance = random.Random(1)
    seqs: dict[int, int] = {}
    for _ in range(tail):
        number = chance.randrange(groups)
        seqs[number] = seqs.get(number, 1) + 1
        group = f"group-{number}"
        value = encode_message(group, "ann", 0, seqs[number], after=[])
        producer.produce(settings.raw_topic, value, group.encode(), partition_of(group.encode(), PARTITIONS))
        producer.poll(0)
    assert producer.flush(120) == 0


def _messages(groups: int, held: int) -> Iterator[tuple[bytes, bytes]]:
    for number in range(groups):
        group = f"group-{number}"
        yield group.encode(), encode_message(group, "ann", 0, 1, after=[], data={"text": "grüß dich", "n": number})
        if number < held:
            yield group.encode(), encode_message(group, "bob", 0, 1, after=[("zoe", 0, 7)], data={"text": "I do."})


def _write_states(producer: Producer, settings: Settings, kernel: Holdback, offsets: list[int]) -> None:
    names = settings.raw_topic, settings.ordered_topic, settings.dead_letter_topic, settings.state_topic_name
    found = describe(settings.bootstrap, list(names))
    ordered, state = found[settings.ordered_topic], found[settings.state_topic_name]
    for key, blob in kernel.dump().items():
        partition = partition_of(key, PARTITIONS)
        waiting = kernel.waiting_of(key) or (0, 0, 0)
        records = pieces(key, blob, stream=ordered.id, rules=RULES, next_offset=offsets[partition], waiting=waiting)
        for name, value in records:
            producer.produce(state.name, value, name, partition)
        producer.poll(0)
    owner = new_owner(
        StreamTopics(*(found[name] for name in names)),
        job="bench",
        order=settings.order,
        limits=settings.limits,
        partitioner=settings.partitioner,
    )
    for partition, offset in enumerate(offsets):
        for key, value in (
            owner_record(ordered.name, partition, owner),
            horizon_record(ordered.name, partition, offset),
            token_record(ordered.name, partition, offset),
        ):
            producer.produce(settings.progress_topic, value, key)


if __name__ == "__main__":
    with Stage() as shown:
        print(msgspec.json.encode(figures(shown, "--quick" in sys.argv)).decode())
