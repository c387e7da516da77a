"""What a member does in the background: heartbeats, and sending lost messages again, each in a thread of its own.

By clocks (`lamport`, `two_clock`) each message waits for a word of every member. So a member also reads the raw log:
what others send raises its clock on receipt, as Lamport's acknowledgements do, and a heartbeat tells the group. If it
waited until a message is delivered, it would wait for itself.

If messages are lost, the job requests them on the control topic. The member that sent them publishes exactly the same
bytes again.
"""

import threading
import warnings
from collections.abc import Callable
from time import monotonic

import msgspec

from precede.ingest.kafka.log_readers import LogReader
from precede.ingest.producer import Publisher
from precede.member.publishing import SENT_MAX, MemberPublisher
from precede.reading.ordered_topic import partitions_of
from precede.udfs.errors import AccessDenied, PrecedeError
from precede.udfs.partitioner import DEFAULT_PARTITIONER, MURMUR2
from precede.udfs.records.job_records import GapRecord
from precede.udfs.records.lenient import lenient_reader
from precede.udfs.records.messages import LogRecord

LOOK_S = 0.1
RETRY_S = 2.0
"""How long to wait if Kafka does not answer."""


_gap = lenient_reader(GapRecord)


class BackgroundTask(threading.Thread):
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
        super().__init__(name=f"precede {topic}", daemon=True)
        self.member = member
        self.key = member.known.group.encode()
        self._topic = topic
        self._partitioner = partitioner
        self._open_reader = open_reader
        self._open_producer = open_producer
        self._is_stopped = threading.Event()
        self._has_warned = False

    def run(self) -> None:
        """Follow the topic, and try again if Kafka does not answer."""
        reader, producer = self._open_reader(), self._open_producer()
        try:
            while not self._is_stopped.is_set():
                try:
                    self._follow(reader, producer)
                except AccessDenied as denied:
                    if not self._has_warned:
                        warnings.warn(f"{denied} Until then {self.undone}.", stacklevel=1)
                    self._has_warned = True
                    self._is_stopped.wait(RETRY_S)
                except PrecedeError:
                    self._is_stopped.wait(RETRY_S)  # Kafka is away, and the next call that sends or reads says so
        finally:
            reader.close()

    @property
    def undone(self) -> str:
        """What is not done while the topic cannot be read."""
        raise NotImplementedError

    def stop(self) -> None:
        """Make the thread end soon."""
        self._is_stopped.set()

    def _follow(self, reader: LogReader, producer: Publisher) -> None:
        group, by = self.member.known.group, self._partitioner
        ends = partitions_of(group, reader.starts(self._topic, at_end=True, timeout_s=LOOK_S), by)
        if not ends:
            self._is_stopped.wait(RETRY_S)  # the topic does not exist yet
            return
        begins = reader.starts(self._topic, at_end=False, timeout_s=LOOK_S)
        reader.assign(
            self._topic,
            {partition: max(begins.get(partition, 0), end - self.back_max) for partition, end in ends.items()},
        )
        while not self._is_stopped.is_set():
            records = [record for record in reader.read(LOOK_S) if record.key == self.key and record.value is not None]
            self.take(records, producer)

    def take(self, records: list[LogRecord], producer: Publisher) -> None:
        """Do what these records of the group need; called many times a second, also without records."""
        raise NotImplementedError


class HeartbeatTask(BackgroundTask):
    """Sends heartbeats: at once if the group waits for this member, and every few seconds as a sign of life."""

    back_max = 100_000  # for what was sent before this member came, and waits for it

    def __init__(self, *arguments: object, heartbeat_s: float, partitioner: str = DEFAULT_PARTITIONER) -> None:
        super().__init__(*arguments, partitioner=partitioner)  # type: ignore[arg-type]
        self._heartbeat_s = heartbeat_s
        self._due_s = monotonic()

    @property
    def undone(self) -> str:
        """What is not done while the topic cannot be read."""
        known = self.member.known
        return f"{known.sender} sends no heartbeats, and all of {known.group} may wait for it"

    def take(self, records: list[LogRecord], producer: Publisher) -> None:
        """Raise the clock by what others sent, and send a heartbeat if it is needed or due."""
        if self.member.order.waits_for_members:
            for record in records:
                self.member.observe_raw(record.value or b"")
        due = monotonic() >= self._due_s
        self.member.send_heartbeat(producer, due=due)
        if due:
            self._due_s = monotonic() + self._heartbeat_s


class RepairTask(BackgroundTask):
    """Publishes again what the group requests, and keeps track of what it waits for."""

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
        knowledge = self.member.knowledge
        with self.member.lock:
            for seq in range(gap.first, min(gap.last, gap.first + SENT_MAX) + 1):
                if gap.kind == "ask":
                    knowledge.note_missing((gap.sender, gap.epoch, seq))
                else:
                    knowledge.missing.pop((gap.sender, gap.epoch, seq), None)
