"""What a member does for its group besides speaking and listening, each errand in a thread of its own.

By clocks (`lamport`, `two_clock`) everybody waits for everybody's word. So a member reads the raw log too: what others
say there raises its clock on receipt, as Lamport's acknowledgements do, and a heartbeat tells the group. To wait until
a message is delivered would be to wait for oneself.

Where messages are lost the job asks for them on the control topic, and who has said them publishes the same bytes
again.
"""

import threading
import warnings
from collections.abc import Callable
from time import monotonic

import msgspec

from precede.ingest.kafka.log_readers import LogReader
from precede.ingest.producer import Publisher
from precede.member.publishing import SENT_MAX, Voice
from precede.udfs.errors import AccessDenied, PrecedeError
from precede.udfs.records.job_records import GapRecord
from precede.udfs.records.lenient import lenient_reader
from precede.udfs.records.messages import LogRecord

LOOK_S = 0.1
AGAIN_S = 2.0
"""How long to wait where Kafka does not answer."""


_gap = lenient_reader(GapRecord)


class Errand(threading.Thread):
    """Follows one topic for the records of one group until it is told to stop."""

    back_max = 0
    """How many records of a partition it looks back when it begins."""

    def __init__(self, voice: Voice, topic: str, reader: Callable[[], LogReader], publisher: Callable[[], Publisher]):
        super().__init__(name=f"precede {topic}", daemon=True)
        self.voice = voice
        self.key = voice.known.group.encode()
        self._topic = topic
        self._open_reader = reader
        self._open_publisher = publisher
        self._told_to_stop = threading.Event()
        self._has_told = False

    def run(self) -> None:
        reader, publisher = self._open_reader(), self._open_publisher()
        try:
            while not self._told_to_stop.is_set():
                try:
                    self._follow(reader, publisher)
                except AccessDenied as lacking:
                    if not self._has_told:
                        warnings.warn(f"{lacking} Until then {self.undone}.", stacklevel=1)
                    self._has_told = True
                    self._told_to_stop.wait(AGAIN_S)
                except PrecedeError:
                    self._told_to_stop.wait(AGAIN_S)  # Kafka is away; whoever sends or reads is told so
        finally:
            reader.close()

    @property
    def undone(self) -> str:
        """What stays undone while the topic may not be read."""
        raise NotImplementedError

    def stop(self) -> None:
        self._told_to_stop.set()

    def _follow(self, reader: LogReader, publisher: Publisher) -> None:
        ends = reader.starts(self._topic, at_end=True, timeout_s=LOOK_S)
        if not ends:
            self._told_to_stop.wait(AGAIN_S)  # nobody has made the topic yet
            return
        begins = reader.starts(self._topic, at_end=False, timeout_s=LOOK_S)
        reader.assign(
            self._topic,
            {partition: max(begins.get(partition, 0), end - self.back_max) for partition, end in ends.items()},
        )
        while not self._told_to_stop.is_set():
            records = [record for record in reader.read(LOOK_S) if record.key == self.key and record.value is not None]
            self.turn(records, publisher)

    def turn(self, records: list[LogRecord], publisher: Publisher) -> None:
        """Do what these records of the group ask for; called many times a second."""
        raise NotImplementedError


class Clock(Errand):
    """Heartbeats: at once where the group waits for this member's word, and every few seconds as a sign of life."""

    back_max = 100_000  # for what was said before this member came, and waits for its word

    def __init__(self, *arguments: object, heartbeat_s: float) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._heartbeat_s = heartbeat_s
        self._due_s = monotonic()

    @property
    def undone(self) -> str:
        return f"{self.voice.known.sender} gives no heartbeats, and all of {self.voice.known.group} may wait for it"

    def turn(self, records: list[LogRecord], publisher: Publisher) -> None:
        if self.voice.order.waits_for_members:
            for record in records:
                self.voice.hear(record.value or b"")
        due = monotonic() >= self._due_s
        self.voice.beat(publisher, due=due)
        if due:
            self._due_s = monotonic() + self._heartbeat_s


class Repair(Errand):
    """Publishes again what the group asks for, and knows what it waits for."""

    @property
    def undone(self) -> str:
        return f"what {self.voice.known.sender} says to {self.voice.known.group} and is lost is not said again"

    def turn(self, records: list[LogRecord], publisher: Publisher) -> None:
        for record in records:
            try:
                asked = _gap(record.value or b"")
            except msgspec.DecodeError:
                continue  # of a newer version
            self._note(asked)
            if asked.kind == "ask" and asked.sender == self.voice.known.sender:
                # Others only have what was delivered, and that is never asked for.
                for value in self.voice.again(asked.epoch, asked.first, asked.last):
                    publisher.publish(self.voice.known.group, value)

    def _note(self, asked: GapRecord) -> None:
        knowledge = self.voice.knowledge
        with self.voice.lock:
            for seq in range(asked.first, min(asked.last, asked.first + SENT_MAX) + 1):
                if asked.kind == "ask":
                    knowledge.note_missing((asked.sender, asked.epoch, seq))
                else:
                    knowledge.missing.pop((asked.sender, asked.epoch, seq), None)
