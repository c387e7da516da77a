"""Shared by the runs: one broker, one raw topic with the messages, and the sequence that must come out."""

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench import traffic
from bench.peers import engines
from bench.peers.engines import Run
from bench.peers.process import Running
from bench.peers.reference import Order, Sequences
from bench.stage import PARTITIONS, Stage
from bench.traffic import Pair
from precede.streaming.settings import Settings
from precede.streaming.spark.jars import Say

LEADER_S_MAX = 30
REPEATED = 100
"""After each so many messages, one of the last ones arrives a second time."""
PROBE = (b"probe", b'{"group":"probe","sender":"ann","epoch":0,"seq":1,"after":[],"data":0}')


class Ground:
    """The broker of a stage, and what the engines find there."""

    def __init__(self, stage: Stage, say: Say) -> None:
        self.stage = stage
        self.say = say

    def backlog(self, groups: int, count: int) -> "tuple[Settings, Sequences]":
        """A raw topic with messages and repeats; returns its settings and what must come out."""
        order = Order()
        settings = self.stage.settings()
        self.stage.send(settings, order.through(_with_repeats(traffic.whole(groups, count))))
        return settings, order.sequences

    def probe(self) -> Settings:
        """A raw topic with a single message."""
        settings = self.stage.settings()
        self.stage.send(settings, [PROBE])
        return settings

    def run(self, raw: Settings, messages: int) -> Run:
        """A new run on this raw topic: new topics for what comes out, a new folder for what the engine keeps."""
        out = self.stage.again(raw)
        name = f"run-{uuid.uuid4().hex[:8]}"
        folder = self.stage.folder / name
        folder.mkdir()
        classes = self.stage.folder / "classes"
        return Run(str(out.bootstrap), out.raw_topic, out.ordered_topic, folder, name, classes, messages)

    @contextmanager
    def running(self, name: str, run: Run) -> Iterator[Running]:
        """The engine, until the block ends. It can be run again with the same values."""
        argv, environment = engines.ready(name, run, self.say)
        engine = Running(argv, environment, engines.HOME, run.folder / "log")
        try:
            yield engine
        finally:
            engine.stop()

    @contextmanager
    def reader(self, run: Run, *, at_end: bool = False) -> Iterator[Consumer]:
        """A consumer of committed records of the ordered topic, from its beginning or its end."""
        consumer = Consumer(
            {
                "bootstrap.servers": run.bootstrap,
                "group.id": f"reader-{run.name}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "fetch.queue.backoff.ms": 10,
            }
        )
        offsets = ends(consumer, run.out) if at_end else [0] * PARTITIONS
        consumer.assign([TopicPartition(run.out, partition, offset) for partition, offset in enumerate(offsets)])
        try:
            yield consumer
        finally:
            consumer.close()


def ends(consumer: Consumer, topic: str) -> list[int]:
    """The last stable offset of each partition. A topic that is seconds old may have no leader yet."""
    until = time.monotonic() + LEADER_S_MAX
    while True:
        try:
            return [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places(topic)]
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def _with_repeats(pairs: Iterable[Pair]) -> Iterator[Pair]:
    last: list[Pair] = []
    for pair in pairs:
        yield pair
        last.append(pair)
        if len(last) == REPEATED:
            yield last[REPEATED // 2]
            last.clear()
