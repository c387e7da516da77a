"""How many partitions: the same messages in raw topics of 4, 16 and 64 partitions.

The order query with its sink and its states on a backlog, small batches, and a live reader: catching up, and starting
on the states of many groups.
"""

from functools import partial
from statistics import median

from bench.exactly_once import publish, published
from bench.figures import Lookup, Report, by_turns, ratio
from bench.live import catching_up_rate, start_s, three_each
from bench.small_job import SmallJob
from bench.stage import Stage, took_ms
from bench.traffic import Conversation, whole
from precede.streaming.settings import Settings

SMALL = 1_000
WARM_BATCHES = 3


def run(stage: Stage, quick: bool) -> Report:
    """A backlog, and then small batches, with each number of partitions."""
    count, groups, small_batches, repeats = (4_000, 5, 4, 1) if quick else (400_000, 1_000, 13, 3)
    numbers = (1, 2) if quick else (4, 16, 64)
    starts = 100 if quick else 100_000
    pairs = whole(groups, count)
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
        batch_ms = median(times[WARM_BATCHES:] or times)
        live_rate = median(_live_rate(stage, topics[number], count) for _ in range(repeats))
        table.append([f"{number}", f"{batch_ms:,.0f}", f"{live_rate:,.0f}", f"{_start_s(stage, number, starts):.2f}"])
    return Report(
        "partitions",
        f"{count:,} messages of {groups:,} groups, 30 % out of order, from Kafka to Kafka",
        figures,
        [
            Lookup(
                f"A batch of {SMALL:,} messages; a live reader that catches up, and that starts on {starts:,} groups",
                ["partitions", "ms a batch", "live, messages/s", "live, start in s"],
                table,
            )
        ],
    )


def _name(number: int) -> str:
    return f"{number} partitions"


def _again(stage: Stage, topic: Settings) -> Settings:
    return stage.settings(raw_topic=topic.raw_topic, partitions=topic.partitions)


def _backlog(stage: Stage, topic: Settings, count: int) -> float:
    return publish(stage, _again(stage, topic), count)


def _live_rate(stage: Stage, topic: Settings, count: int) -> float:
    settings = _again(stage, topic)
    SmallJob(settings).close()  # it says what the stream is, and orders nothing
    return catching_up_rate(settings, count)


def _start_s(stage: Stage, partitions: int, groups: int) -> float:
    settings = stage.settings(partitions=partitions)
    stage.send(settings, three_each(groups))
    job = SmallJob(settings, state_every_ms=600_000)
    job.drain()
    job.write_states()
    job.close()
    return median(start_s(settings, None) for _ in range(3))
