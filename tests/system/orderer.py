"""The kernel between real topics, without Spark: for tests that need ordered records and not the job."""

from __future__ import annotations

import threading
import uuid
from types import TracebackType
from typing import Self

from ingest import topics
from ingest.producer import Publisher
from precede.log_readers import open_reader
from udfs.holdback import Holdback

LOOK_S = 0.05


class Orderer:
    """Topics of its own in one broker; while it is entered a thread orders what comes into the raw one."""

    def __init__(self, bootstrap: str) -> None:
        name = uuid.uuid4().hex[:8]
        self.bootstrap = bootstrap
        self.raw_topic, self.ordered_topic = f"{name}.raw", f"{name}.ordered"
        self.dead_letter_topic = f"{name}.dead-letters"
        self.topics = {
            "raw_topic": self.raw_topic,
            "ordered_topic": self.ordered_topic,
            "dead_letter_topic": self.dead_letter_topic,
        }
        topics.ensure(bootstrap, topics.wanted(**self.topics, progress_topic=f"{name}.progress", partitions=1))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._order)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _order(self) -> None:
        kernel = Holdback()
        reader = open_reader("confluent", self.bootstrap)
        reader.assign(self.raw_topic, reader.starts(self.raw_topic, at_end=False, timeout_s=LOOK_S))
        ordered = Publisher(self.bootstrap, topic=self.ordered_topic, linger_ms=0)
        letters = Publisher(self.bootstrap, topic=self.dead_letter_topic, linger_ms=0)
        while not self._stopped.is_set():
            for record in reader.read(LOOK_S):
                kernel.receive(record.value, record.key, record.partition, record.offset, record.timestamp_ms)
            for key, value in zip(kernel.ordered_keys, kernel.ordered, strict=True):
                ordered.publish_raw(key, value)
            for dead_key, value in zip(kernel.dead_keys, kernel.dead, strict=True):
                letters.publish_raw(dead_key, value)
            kernel.clear()
            ordered.flush()
            letters.flush()
        reader.close()
