"""Shared by the benchmarks: a broker, a Spark session like the job's, topics with messages."""

import shutil
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import Producer

from bench.traffic import Pair
from precede.ingest.kafka import topics
from precede.local.embedded_broker import Broker
from precede.streaming.settings import Settings
from precede.streaming.spark import jars, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 4


class Stage:
    """Starts everything on first use, and ends it with the stage."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="precede-bench-"))
        self._stack = ExitStack()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def broker(self) -> Broker:
        """With the heap of a broker that is used in earnest: a small one is collected each second."""
        return self._stack.enter_context(Broker(heap_mb=1024, keeps_heap=True))

    @cached_property
    def spark(self) -> "SparkSession":
        """A session like the job's, except that it remembers every batch's progress."""
        session.FIXED["spark.sql.streaming.numRecentProgressUpdates"] = "1000"
        spark = session.start(Settings(memory="3g"), jars.ensure("spark"), self.folder / "logs", name="precede-bench")
        self._stack.callback(spark.stop)
        return spark

    def settings(self, **more: Any) -> Settings:
        """A new stream: new topics, a new checkpoint, defaults for the rest."""
        name = uuid.uuid4().hex[:8]
        settings = Settings(
            bootstrap=self.broker.bootstrap,
            checkpoint=str(self.folder / name / "checkpoint"),
            delta=str(self.folder / name / "delta"),
            raw_topic=f"{name}.raw",
            ordered_topic=f"{name}.ordered",
            dead_letter_topic=f"{name}.dead-letters",
            progress_topic=f"{name}.progress",
            control_topic=f"{name}.control",
            partitions=PARTITIONS,
        )
        settings = msgspec.structs.replace(settings, **more)
        topics.ensure(settings.bootstrap, settings.topics())
        return settings

    def again(self, settings: Settings, **more: Any) -> Settings:
        """The same raw topic for another run from its beginning, with everything else new."""
        return self.settings(raw_topic=settings.raw_topic, **more)

    def send(self, settings: Settings, pairs: Iterable[Pair]) -> None:
        """Publish raw records, in this order within each group."""
        producer = Producer(
            {
                "bootstrap.servers": str(settings.bootstrap),
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for key, value in pairs:
            while True:
                try:
                    producer.produce(settings.raw_topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(120) == 0, "not all messages were published"

    def checkpoint(self) -> str:
        """The checkpoint of a query for comparison."""
        return str(self.folder / uuid.uuid4().hex)


def drained(query: "StreamingQuery", expected: int | None) -> list[dict[str, Any]]:
    """Wait for a query that ends by itself; returns the progress of its non-empty batches."""
    query.awaitTermination()
    batches = [msgspec.json.decode(progress.json) for progress in query.recentProgress]
    batches = [batch for batch in batches if batch["numInputRows"]]
    read = sum(batch["numInputRows"] for batch in batches)
    assert expected in (None, read), f"the query read {read:,} messages of {expected}"
    return batches


def rate(batches: list[dict[str, Any]]) -> float:
    """Messages per second, from the beginning of each batch to its end."""
    return float(sum(batch["numInputRows"] for batch in batches) * 1000 / sum(map(took_ms, batches)))


def took_ms(batch: dict[str, Any]) -> float:
    return float(batch["durationMs"]["triggerExecution"])
