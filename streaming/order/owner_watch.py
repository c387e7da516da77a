"""Notices that another job has taken over, while there is nothing to publish.

A job that publishes learns it from its next transaction. An idle one has none, so this reads the progress topic as it
grows, once a second and in its own thread, and looks at it again as a whole when it shows the owner record of another
job.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaException

from precede.ingest.kafka.reading import TopicReader
from precede.ingest.progress import is_owner_of
from precede.streaming.order.ownership import Ownership
from precede.udfs.errors import PrecedeError, Refused

EVERY_S = 1.0
ANSWER_S = 2.0


class OwnerWatch:
    """Calls `on_taken_over` once, with the refusal, when another job has claimed what this one owns."""

    def __init__(self, ownership: Ownership, on_taken_over: Callable[[Refused], object]) -> None:
        self._ownership = ownership
        self._on_taken_over = on_taken_over
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="owner-watch", daemon=True)

    def start(self) -> None:
        """Begin, once this job has claimed its partitions; a watch that has begun goes on."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(ANSWER_S)

    def _run(self) -> None:
        reader = TopicReader(self._ownership.settings.bootstrap, wait_ms=int(EVERY_S * 1000))
        is_assigned, is_due = False, True  # another job may have come before the first look
        try:
            while not self._ended.is_set():
                # Kafka may be away for a while, and the job reports that itself.
                with suppress(KafkaException, PrecedeError):
                    if not is_assigned:
                        is_assigned = self._assign(reader)
                    is_due = self._names_another(reader) or is_due
                    if is_due and self._is_taken_over():
                        return
                    is_due = False
                self._ended.wait(EVERY_S)
        finally:
            reader.close()

    def _assign(self, reader: TopicReader) -> bool:
        topic = self._ownership.progress.name
        offsets = reader.starts(topic, at_end=True, timeout_s=0)
        reader.assign(topic, offsets)
        return bool(offsets)

    def _names_another(self, reader: TopicReader) -> bool:
        """Whether what was added to the topic names another owner of this stream."""
        ownership, found = self._ownership, False
        while records := reader.read(0):
            for record in records:
                topic = ownership.settings.ordered_topic
                found = found or is_owner_of(record.key, record.value, topic, unless=ownership.job)
        return found

    def _is_taken_over(self) -> bool:
        try:
            self._ownership.check_not_taken_over(for_s=0)
        except Refused as refusal:
            self._on_taken_over(refusal)
            return True
        return False
