"""Notices that another job has taken over, while there is nothing to publish.

A job that publishes learns it from its next transaction. An idle one has none, so this reads the progress topic as it
grows, once a second and in its own thread, and looks at it again as a whole when it shows the owner record of another
job.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from precede.ingest.kafka.reading import TopicReader
from precede.ingest.progress import is_owner_of
from precede.ingest.service.monitor import Monitor
from precede.streaming.order.ownership import Ownership
from precede.udfs.errors import Refused

EVERY_S = 1.0


class OwnerMonitor:
    """Calls `on_taken_over` once, with the refusal, when another job has claimed what this one owns."""

    def __init__(self, ownership: Ownership, on_taken_over: Callable[[Refused], object]) -> None:
        self._ownership = ownership
        self._on_taken_over = on_taken_over
        self._is_assigned = False
        self._is_due = True
        """Whether the topic is to be looked at as a whole."""
        self._monitor = Monitor(
            "owner-monitor",
            self._look,
            opens=self._open,
            every_s=EVERY_S,
            undone="it is not noticed that another job has taken over while nothing is published",
        )

    def start(self) -> None:
        """Begin, once this job has claimed its partitions; one that has begun goes on."""
        self._monitor.start()

    def stop(self) -> None:
        self._monitor.stop()

    @contextmanager
    def _open(self) -> Iterator[TopicReader]:
        self._is_assigned, self._is_due = False, True  # another job may have come before the first look
        with closing(TopicReader(self._ownership.settings.bootstrap, wait_ms=int(EVERY_S * 1000))) as reader:
            yield reader

    def _look(self, reader: TopicReader) -> None:
        self._is_assigned = self._is_assigned or self._assign(reader)
        self._is_due = self._names_another(reader) or self._is_due
        if self._is_due:
            self._check()
        self._is_due = False

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

    def _check(self) -> None:
        try:
            self._ownership.check_not_taken_over(for_s=0)
        except Refused as refusal:
            self._on_taken_over(refusal)
            self._monitor.finish()
