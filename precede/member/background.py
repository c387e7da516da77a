"""What a member does in the background: heartbeats, and sending again what was lost or not confirmed.

Each is a monitor: a thread that goes on after what passes, and says what does not.

By clocks (`lamport`, `two_clock`) each message waits for a word of every member. So a member also reads the raw log:
what others send raises its clock on receipt, as Lamport's acknowledgements do, and a heartbeat tells the group. If it
waited until a message is delivered, it would wait for itself.

If messages are lost, the job requests them on the control topic. The member that sent them publishes exactly the same
bytes again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import monotonic
from typing import NamedTuple

import msgspec

from precede.ingest.kafka.log_readers import LogReader
from precede.ingest.producer import Publisher
from precede.ingest.service.monitor import Monitor
from precede.member.publishing import SENT_MAX, MemberPublisher
from precede.reading.ordered_topic import partitions_of
from precede.udfs.errors import AccessDenied
from precede.udfs.partitioner import DEFAULT_PARTITIONER, MURMUR2
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.published import GapRecord, lenient_reader

LOOK_S = 0.1
RETRY_S = 2.0
"""How long to wait if Kafka does not answer."""
SEND_AGAIN_S = 1.0
IDLE_S = 3_600.0

_LOGGER = logging.getLogger("precede")

_gap = lenient_reader(GapRecord)


class _Line(NamedTuple):
    """What one task works with."""

    reader: LogReader
    producer: Publisher
    offsets: dict[int, int]
    """Where reading began; empty until the topic exists."""


class BackgroundTask:
    """Follows one topic for the records of one group, in that group's partition, until it is stopped."""

    back_max = 0
    """How many records of a partition it reads back when it begins."""

    def __init__(
        self,
        member: MemberPublisher,
        topic: str,
        open_reader: Callable[[], LogReader],
        open_producer: Callable[[], Publisher],
        *,
        partitioner: str = MURMUR2,
    ) -> None:
        """`partitioner` is that of the topic: murmur2 where the job writes it, the job's setting for the raw topic."""
        self.member = member
        self.key = member.known.group.encode()
        self._topic = topic
        self._partitioner = partitioner
        self._open_reader = open_reader
        self._open_producer = open_producer
        self._has_told = False
        self.monitor = Monitor(self.name, self._look, opens=self._opened, every_s=RETRY_S, undone=self.undone)

    @property
    def name(self) -> str:
        """What it does, for whom."""
        raise NotImplementedError

    @property
    def undone(self) -> str:
        """What is not done while the topic cannot be read."""
        raise NotImplementedError

    @contextmanager
    def _opened(self) -> Iterator[_Line]:
        with closing(self._open_reader()) as reader:
            producer = self._open_producer()
            try:
                yield _Line(reader, producer, {})
            finally:
                producer.discard()  # a heartbeat, or a copy of what the log lacked: the next start sends it

    def _look(self, line: _Line) -> float:
        """Read on, and return how long to wait before the next look."""
        try:
            if not line.offsets:
                line.offsets.update(self._starts(line.reader))
                if not line.offsets:
                    return RETRY_S  # the topic does not exist yet
                line.reader.assign(self._topic, line.offsets)
            records = line.reader.read(LOOK_S)
            self.take([one for one in records if one.key == self.key and one.value is not None], line.producer)
        except AccessDenied as denied:
            if not self._has_told:
                _LOGGER.warning("%s Until then %s.", denied, self.undone)
            self._has_told = True
            raise
        return 0.0

    def _starts(self, reader: LogReader) -> dict[int, int]:
        """Where to read from, in the partition of the group."""
        group, by = self.member.known.group, self._partitioner
        ends = partitions_of(group, reader.starts(self._topic, at_end=True, timeout_s=0.0), by)
        begins = reader.starts(self._topic, at_end=False, timeout_s=0.0) if ends else {}
        return {partition: max(begins.get(partition, 0), end - self.back_max) for partition, end in ends.items()}

    def take(self, records: list[LogRecord], producer: Publisher) -> None:
        """Do what these records of the group need; called many times a second, also without records."""
        raise NotImplementedError


class HeartbeatTask(BackgroundTask):
    """Sends heartbeats: at once if the group waits for this member, and every few seconds as a sign of life."""

    back_max = 100_000  # for what was sent before this member came, and waits for it

    def __init__(self, *arguments: object, heartbeat_s: float, partitioner: str = DEFAULT_PARTITIONER) -> None:
        self._heartbeat_s = heartbeat_s
        self._due_s = monotonic()
        super().__init__(*arguments, partitioner=partitioner)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """What it does, for whom."""
        return f"heartbeats of {self.member.known.sender} in {self.member.known.group}"

    @property
    def undone(self) -> str:
        """What is not done while the topic cannot be read."""
        known = self.member.known
        return f"{known.sender} sends no heartbeats, and all of {known.group} may wait for it"

    def take(self, records: list[LogRecord], producer: Publisher) -> None:
        """Raise the clock by what others sent, and send a heartbeat if it is needed or due."""
        if self.member.speaker.order.waits_for_members:
            for record in records:
                self.member.hear(record.value or b"")
        due = monotonic() >= self._due_s
        self.member.send_heartbeat(producer, due=due)
        if due:
            self._due_s = monotonic() + self._heartbeat_s


class RepairTask(BackgroundTask):
    """Publishes again what the group requests, and keeps track of what it waits for."""

    @property
    def name(self) -> str:
        """What it does, for whom."""
        return f"repair of {self.member.known.sender} in {self.member.known.group}"

    @property
    def undone(self) -> str:
        """What is not done while the topic cannot be read."""
        known = self.member.known
        return f"lost messages of {known.sender} to {known.group} are not sent again"

    def take(self, records: list[LogRecord], producer: Publisher) -> None:
        """Send again what is requested of this member."""
        for record in records:
            try:
                gap = _gap(record.value or b"")
            except msgspec.DecodeError:
                continue  # written by a newer version
            self._note(gap)
            if gap.kind == "ask" and gap.sender == self.member.known.sender:
                # Only the sender can repeat it: others have only what was delivered, which is never requested.
                for value in self.member.sent_records(gap.epoch, gap.first, gap.last):
                    producer.publish(self.member.known.group, value)

    def _note(self, gap: GapRecord) -> None:
        knowledge = self.member.speaker.knowledge
        with self.member.lock:
            for seq in range(gap.first, min(gap.last, gap.first + SENT_MAX) + 1):
                if gap.kind == "ask":
                    knowledge.note_missing((gap.sender, gap.epoch, seq))
                else:
                    knowledge.missing.pop((gap.sender, gap.epoch, seq), None)


def outbox_monitor(member: MemberPublisher) -> Monitor[None]:
    """Sends what Kafka did not confirm, as the same bytes, until it does; it begins when something is left."""

    def look(_: None) -> float:
        if member.outbox:
            member.retry()
        return IDLE_S

    known = member.known
    monitor = Monitor(
        f"outbox of {known.sender} in {known.group}",
        look,
        every_s=SEND_AGAIN_S,
        undone=f"Kafka does not have what {known.sender} said last to {known.group}; it is stored",
    )

    def begin() -> None:
        monitor.start()
        monitor.wake()

    member.when_left_unconfirmed(begin)
    if member.outbox:
        begin()
    return monitor
