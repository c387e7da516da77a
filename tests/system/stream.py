"""Shared by the tests of the whole stream: their own topics in the one broker, the job, and readers."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import SparkSession

from precede.ingest.kafka import topics
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import describe
from precede.streaming.job import job
from precede.streaming.settings import TABLES, Settings
from tests.records import Row, by_group

HOME = Path(__file__).resolve().parent.parent.parent

AWAY_S_MAX = "TEST_AWAY_S_MAX"
"""A variable for a job as a process: after how many seconds a broker that is away shows in its health."""

RUN = f"""
import os, sys
from precede.streaming.job import job
from precede.streaming import settings
from precede.ingest.service import broker_monitor
from precede.udfs.errors import Refused
broker_monitor.AWAY_S_MAX = float(os.environ.get("{AWAY_S_MAX}", broker_monitor.AWAY_S_MAX))
try:
    job.run(settings.load({{}}, os.environ))
except Refused as error:
    sys.exit(str(error))
"""


def own_topics() -> dict[str, Any]:
    """Settings of a stream whose topics no other test has; the state topic is named for the ordered one."""
    name = uuid.uuid4().hex[:8]
    return {
        "raw_topic": f"{name}.raw",
        "ordered_topic": f"{name}.ordered",
        "dead_letter_topic": f"{name}.dead-letters",
        "progress_topic": f"{name}.progress",
        "control_topic": f"{name}.control",
    }


class Stream:
    """One stream: its settings, its topics and its output."""

    def __init__(self, bootstrap: Address | str, folder: Path, *, partitions: int = 2, **more: Any) -> None:
        self.settings = Settings(
            bootstrap=bootstrap,
            checkpoint=str(folder / "checkpoint"),
            delta=str(folder / "delta"),
            **(own_topics() | {"shards": 8, "tasks": 2, "history_every_s": 1.0} | more),
        )
        topics.ensure(bootstrap, msgspec.structs.replace(self.settings, partitions=partitions).topics())

    def change(self, **more: Any) -> None:
        """Change settings for the next runs."""
        self.settings = msgspec.structs.replace(self.settings, **more)

    def send(self, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Publish raw records, like a gateway."""
        producer = Producer(
            {
                "bootstrap.servers": str(self.settings.bootstrap),
                "partitioner": "murmur2_random",
                "compression.type": "gzip",  # allows records far larger than the limit
                "message.max.bytes": 8_000_000,
            }
        )
        for key, value in pairs:
            producer.produce(self.settings.raw_topic, value, key)
        assert producer.flush(30) == 0

    def cut(self, topic: str, first: int) -> None:
        """Remove the beginning of a topic, like retention."""
        for partition in range(describe(self.settings.bootstrap, [topic])[topic].partitions):
            self.cut_partition(topic, partition, first)

    def cut_partition(self, topic: str, partition: int, first: int) -> None:
        """Remove the beginning of one partition."""
        admin = AdminClient({"bootstrap.servers": str(self.settings.bootstrap)})
        for future in admin.delete_records([TopicPartition(topic, partition, first)]).values():
            future.result()

    def once(
        self, spark: SparkSession | None = None, *, key: Ed25519PrivateKey | None = None, **more: Any
    ) -> list[str]:
        """Run the job over all records, in this process; returns its sentences. Without a session Spark is not used.

        The job treats Ctrl-C as a request to stop, and stops cleanly; the caller is then interrupted.
        """
        said: list[str] = []
        if spark is None:
            more = {"engine": "process", "only": "order", "cache": f"{self.settings.checkpoint}-cache"} | more
        job.run(msgspec.structs.replace(self.settings, once=True, **more), say=said.append, spark=spark, key=key)
        if not said[-1:] or not said[-1].startswith("Done"):
            raise KeyboardInterrupt
        return said

    def start(
        self, variables: dict[str, str] | None = None, program: tuple[str, ...] = ("-c", RUN), **more: Any
    ) -> "subprocess.Popen[str]":
        """Run the job as a separate process, until it is stopped."""
        settings = msgspec.structs.replace(self.settings, **more)
        values = {
            f"PRECEDE_{name.upper()}": str(value)
            for name, value in msgspec.structs.asdict(settings).items()
            if name not in TABLES and value is not None and value is not False
        }
        return subprocess.Popen(
            [sys.executable, "-u", *program],
            env=os.environ | values | (variables or {}),
            cwd=HOME,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    # ── what came out ─────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, topic: str) -> list[Row]:
        """All committed records of a topic."""
        partitions = describe(self.settings.bootstrap, [topic])[topic].partitions
        consumer = Consumer(
            {
                "bootstrap.servers": str(self.settings.bootstrap),
                "group.id": "reads",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",  # the beginning may be gone
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        rows: list[Row] = []
        ended: set[int | None] = set()
        while len(ended) < partitions:
            message = consumer.poll(10.0)
            assert message is not None, f"the topic {topic} could not be read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
            else:
                where = message.partition() or 0, message.offset() or 0, message.timestamp()[1]
                rows.append((message.key(), message.value(), *where))
        consumer.close()
        return rows

    def raw(self) -> list[Row]:
        return self.read(self.settings.raw_topic)

    def ordered(self) -> dict[bytes, list[bytes]]:
        """Ordered records by group, in the order that a consumer of committed records sees."""
        return by_group((key or b"", value or b"") for key, value, *_ in self.read(self.settings.ordered_topic))

    def dead(self) -> list[bytes]:
        """Dead letters, sorted."""
        return sorted(value or b"" for _, value, *_ in self.read(self.settings.dead_letter_topic))

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a Delta table, as delta-rs reads them."""
        from deltalake import DeltaTable

        rows: list[dict[str, Any]] = DeltaTable(Path(self.settings.delta) / name).to_pyarrow_table().to_pylist()
        return rows


def positions(groups: dict[bytes, list[bytes]]) -> dict[bytes, list[int]]:
    return {key: [msgspec.json.decode(value)["position"] for value in values] for key, values in groups.items()}


def contiguous(groups: dict[bytes, list[bytes]]) -> bool:
    """Positions 1..n of every group, each once and in order."""
    return all(found == list(range(1, len(found) + 1)) for found in positions(groups).values())


def forget_last_commit(commits: Path) -> None:
    """Restore the state of a job killed before Spark noted its last batch."""
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
