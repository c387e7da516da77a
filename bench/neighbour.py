"""A noisy neighbour: the rate of other groups while one sends only undeliverable messages."""

from collections.abc import Iterator
from functools import partial

from bench import order_query
from bench.figures import Report, by_turns, ratio
from bench.stage import Stage
from bench.traffic import Conversation, Pair
from precede.streaming.settings import Settings

ALONE = "the others, alone"
BESIDE = "the others, beside it"
EVERY = 4  # one flood message per this many others, until its group holds as many as allowed


def run(stage: Stage, quick: bool) -> Report:
    """The same messages with and without the flood; the rate is that of the other groups."""
    count, groups, batch, repeats = (2_000, 5, 1_000, 1) if quick else (800_000, 1_000, 50_000, 3)
    alone = stage.settings(max_offsets_per_trigger=batch)
    stage.send(alone, Conversation(groups).take(count))
    beside = stage.settings(max_offsets_per_trigger=batch + batch // EVERY)
    stage.send(beside, flooded(Conversation(groups).take(count)))
    order_query.measure_identity(stage, alone, count)  # warms Spark and its workers
    found = by_turns(
        {
            BESIDE: partial(measure, stage, beside, count, count + count // EVERY),
            ALONE: partial(measure, stage, alone, count, count),
        },
        repeats,
    )
    return Report(
        "neighbour",
        f"{count:,} messages of {groups:,} groups in batches of {batch:,}, and for every {EVERY} of them one that "
        f"never gets what it answers, all of one group; {alone.shards} shards, from Kafka to nothing",
        [ratio("the others beside a flood, to alone", found, BESIDE, ALONE, target=0.5)],
    )


def flooded(talk: list[Pair]) -> Iterator[Pair]:
    """The messages, mixed with those of one group whose parents are never sent."""
    for number, pair in enumerate(talk, start=1):
        yield pair
        if number % EVERY == 0:
            seq = number // EVERY
            yield b"flood", b'{"group":"flood","sender":"loud","seq":%d,"after":[["nobody",0,%d]]}' % (seq, seq)


def measure(stage: Stage, topic: Settings, count: int, total: int) -> float:
    """Messages per second of the other groups."""
    settings = {"max_offsets_per_trigger": topic.max_offsets_per_trigger}
    return order_query.measure_order(stage, topic, total, **settings) * count / total
