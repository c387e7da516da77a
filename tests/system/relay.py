"""The kernel between two real topics, without Spark, to test how members handle ordered records."""

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

import precede
from precede.ingest.kafka import topics
from precede.ingest.kafka.log_readers import open_reader
from precede.local.embedded_broker import Broker
from precede.streaming.job.ticker import TICK
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Patience


class Relay:
    """Reads a raw topic, and writes what the kernel releases, in one transaction per read."""

    def __init__(self, broker: Broker, *, order: str = "s_b") -> None:
        name = uuid.uuid4().hex[:8]
        self.bootstrap = broker.bootstrap
        self.raw, self.ordered, self.control = f"{name}.raw", f"{name}.ordered", f"{name}.control"
        self.dead_letters = f"{name}.dead-letters"
        wanted = [topics.raw(self.raw, 2)]
        wanted += [topics.output(topic, 2) for topic in (self.ordered, self.control, self.dead_letters)]
        topics.ensure(self.bootstrap, wanted)
        self.kernel = Holdback(order=order, patience=Patience(ask_after_ms=100))
        self.lose: Callable[[bytes], bool] = lambda _: False
        """Which raw records are lost before they reach the kernel."""
        self.dead: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def member(self, name: str, *, group: str = "g", **more: Any) -> precede.Member:
        """A member on this relay's topics; iteration fails if nothing comes for long."""
        given: dict[str, Any] = {
            "bootstrap": self.bootstrap,
            "raw_topic": self.raw,
            "ordered_topic": self.ordered,
            "patience_s": 20.0,
        }
        return precede.Member(group, name, **(given | {"control_topic": self.control} | more))

    def publish(self, topic: str, value: bytes, *, group: str = "g") -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        producer.produce(topic, value, group.encode())
        assert producer.flush(30) == 0

    def tick(self) -> None:
        """Let time pass in every partition, once overdue messages are old enough to be requested."""
        time.sleep(0.2)
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for partition in range(2):
            producer.produce(self.raw, TICK, partition=partition)
        assert producer.flush(30) == 0

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.ordered, "partitioner": "murmur2_random"}
        )
        producer.init_transactions()
        reader = open_reader("confluent", self.bootstrap)
        reader.assign(self.raw, reader.starts(self.raw, at_end=False, timeout_s=1.0))
        while not self._stop.is_set():
            for record in reader.read(0.05):
                if not self.lose(record.value or b""):
                    self.kernel.receive(
                        record.value, record.key, record.partition, record.offset, timestamp_ms=record.timestamp_ms
                    )
            if self.kernel.ordered or self.kernel.dead or self.kernel.own:
                producer.begin_transaction()
                for own in self.kernel.own:
                    producer.produce(self.control if own.topic == "control" else self.raw, own.value, own.key)
                for key, value in zip(self.kernel.ordered_keys, self.kernel.ordered, strict=True):
                    producer.produce(self.ordered, value, key)
                for dead_key, value in zip(self.kernel.dead_keys, self.kernel.dead, strict=True):
                    producer.produce(self.dead_letters, value, dead_key)
                producer.commit_transaction()
            self.dead += self.kernel.dead
            self.kernel.clear()
        reader.close()


def wait_for(what: Callable[[], bool], sentence: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, f"never happened: {sentence}"
        time.sleep(0.02)
