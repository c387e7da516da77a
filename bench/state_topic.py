"""What the state topic costs: the order query with its sink, with states written and without."""

from functools import partial

from bench.exactly_once import publish
from bench.figures import Figure, Report, by_turns, ratio
from bench.stage import Stage
from bench.traffic import Conversation

WITH = "states written"
WITHOUT = "no states written"
EVERY_S = 3.0
"""The log of the benchmark was written about three times as fast as it is read, so this stands for 10 s."""


def run(stage: Stage, quick: bool) -> Report:
    """The same raw topics, each read from its beginning with states and without."""
    count, repeats = (4_000, 1) if quick else (1_000_000, 3)
    figures: list[Figure] = []
    for groups in (5, 50) if quick else (1_000, 100_000):
        topic = stage.settings()
        stage.send(topic, Conversation(groups).take(count))
        publish(stage, stage.again(topic), count)  # warms Spark and its workers
        found = by_turns(
            {
                WITH: partial(_publish, stage, topic.raw_topic, count, writes_state=True),
                WITHOUT: partial(_publish, stage, topic.raw_topic, count, writes_state=False),
            },
            repeats,
        )
        figures.append(ratio(f"{groups:,} groups", found, WITH, WITHOUT, target=0.93))
    return Report(
        "state-topic",
        f"{count:,} messages, 30 % out of order, every changed group written after {EVERY_S:.0f} s of the log",
        figures,
    )


def _publish(stage: Stage, raw_topic: str, count: int, *, writes_state: bool) -> float:
    settings = stage.settings(raw_topic=raw_topic, state_every_s=EVERY_S)
    return publish(stage, settings, count, writes_state=writes_state)
