"""How many partitions: the same messages in raw topics of 4, 16 and 64 partitions."""

from functools import partial
from statistics import median

from bench.exactly_once import publish, published
from bench.figures import Lookup, Report, by_turns, ratio
from bench.stage import Stage, took_ms
from bench.traffic import Conversation
from precede.streaming.job.settings import Settings

SMALL = 1_000
WARM_BATCHES = 3


def run(stage: Stage, quick: bool) -> Report:
    """A backlog, and then small batches, with each number of partitions."""
    count, groups, small_batches, repeats = (4_000, 5, 4, 1) if quick else (400_000, 1_000, 13, 3)
    numbers = (1, 2) if quick else (4, 16, 64)
    pairs = Conversation(groups).take(count)
    small = Conversation(groups).take(SMALL * small_batches)
    topics: dict[int, Settings] = {}
    for number in numbers:
        topics[number] = stage.settings(partitions=number)
        stage.send(topics[number], pairs)
    publish(stage, _again(stage, topics[numbers[0]]), count)  # warms Spark and its workers
    found = by_turns({_name(number): partial(_backlog, stage, topics[number], count) for number in numbers}, repeats)
    first, *others = numbers
    figures = [
        ratio(f"{_name(number)} to {first}", found, _name(number), _name(first), target=None) for number in others
    ]
    table = []
    for number in numbers:
        settings = stage.settings(partitions=number, max_offsets_per_trigger=SMALL)
        stage.send(settings, small)
        times = [took_ms(batch) for batch in published(stage, settings, len(small))]
        table.append([f"{number}", f"{median(times[WARM_BATCHES:] or times):,.0f}"])
    return Report(
        "partitions",
        f"{count:,} messages of {groups:,} groups, 30 % out of order, from Kafka to Kafka",
        figures,
        [Lookup(f"A batch of {SMALL:,} messages", ["partitions", "ms"], table)],
    )


def _name(number: int) -> str:
    return f"{number} partitions"


def _again(stage: Stage, topic: Settings) -> Settings:
    return stage.settings(raw_topic=topic.raw_topic, partitions=topic.partitions)


def _backlog(stage: Stage, topic: Settings, count: int) -> float:
    return publish(stage, _again(stage, topic), count)
