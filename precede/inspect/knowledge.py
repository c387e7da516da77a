"""Loads what is known now, without Spark: the horizon, then the state topic, then the raw records behind it.

The state topic holds the state of each group at some raw offset. The horizon says from which raw offset on records may
be missing in some of these states; the kernel takes them up, and passes over, for each group, what its state has.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from precede.ingest.kafka import clients
from precede.ingest.kafka.reading import REQUEST_S, TopicReader
from precede.ingest.progress import Owner, Progress
from precede.ingest.stream_start import States, StreamStart, kernel_state, raw_partitions_of
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.holdback import Holdback
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.state_pieces import StoredState
from precede.udfs.rules import RULES

if TYPE_CHECKING:
    from precede.streaming.settings import Settings

Tell = Callable[[str, float], None]
"""Told what is being read, and which part of it has been: 0 to 1."""

SETTLED_S = 2.0
"""How long to wait for a transaction that is open in the state topic; what a killed job left open stays longer."""
TELL_EVERY = 20_000


def tell_nothing(_what: str, _part: float) -> None:
    """For callers that show no progress."""


class NoStateError(Refused):
    """No job has written a state topic."""


class StreamKnowledge:
    """The state of one group or of all, as of the end of the raw topic once `tail` was taken in."""

    def __init__(
        self,
        settings: "Settings",
        stream: StreamStart,
        progress: Progress,
        owner: Owner,
        states: States,
        group: bytes | None,
    ) -> None:
        self._stream = stream
        self.settings = settings
        self.patience = settings.patience()
        self.progress = progress
        self.owner = owner
        self.group = group
        self.partitions = list(states)
        """The raw partitions that are read."""
        self.next_offset = {at: progress.horizon.get(at, 0) for at in states}
        """Up to where the raw partitions were taken in."""
        self.by_partition = states
        """What the state topic has, by raw partition and group."""
        self.holdback = Holdback(
            order=owner.order,
            limits=owner.limits,
            patience=self.patience,
            partitions=owner.partitions,
            partitioner=owner.partitioner,
        )
        state = kernel_state(states, self.next_offset)
        self.holdback.load(state.groups, state.covered)

    @property
    def warning(self) -> str | None:
        """Why what is shown may differ from what the job does; None where it does not."""
        if self.owner.rules == RULES:
            return None
        return (
            f"The job orders by rules {self.owner.rules}, and this precede knows rules {RULES}: what came in the last "
            "seconds may be shown differently from what the job makes of it. Use the job's version."
        )

    def tail(self, tell: Tell = tell_nothing) -> Iterator[LogRecord]:
        """The raw records from the horizon on; the caller hands them to the kernel."""
        topic = self.owner.raw_topic
        reader = TopicReader(self.settings.bootstrap, patient=False, wait_ms=10)
        try:
            ends = reader.ends(topic, self.partitions, REQUEST_S)
            self._stream.check_reaches_back(self.owner, self.next_offset, ends)
            total = max(1, sum(max(0, ends[at][1] - self.next_offset[at]) for at in self.partitions))
            for count, record in enumerate(reader.to_end(topic, self.next_offset)):
                self.next_offset[record.partition] = record.offset + 1
                yield record
                if count % TELL_EVERY == TELL_EVERY - 1:
                    tell(f"the raw records behind the state in {topic}", count / total)
        except TimeoutError as error:
            raise Unreachable(f"Cannot read {topic} from Kafka at {self.settings.bootstrap}.") from error
        except KafkaException as error:
            raise clients.unreadable(self.settings.bootstrap, topic, error.args[0]) from error
        finally:
            reader.close()

    def catch_up(self, tell: Tell = tell_nothing) -> None:
        """Take in the raw records, where nothing but the state at their end is asked for."""
        holdback, receive = self.holdback, self.holdback.receive
        for record in self.tail(tell):
            if self.group is None or record.key is None or record.key == self.group:
                receive(record.value, record.key, record.partition, record.offset, record.timestamp_ms)
                if holdback.ordered or holdback.dead or holdback.own:
                    holdback.clear()

    @property
    def stored(self) -> dict[bytes, StoredState]:
        """The same for all partitions."""
        return {key: stored for groups in self.by_partition.values() for key, stored in groups.items()}

    def covered(self, key: bytes) -> int:
        """The raw offset below which the stored state of a group stands; 0 where there is none."""
        return next((groups[key].next for groups in self.by_partition.values() if key in groups), 0)

    @property
    def touched(self) -> set[bytes]:
        """The groups whose stored state is no longer the newest."""
        return set(self.holdback.changed)

    def lag(self, partition: int) -> int:
        """How many of the raw records that were taken in the job has not published."""
        return max(0, self.next_offset[partition] - self.progress.token.get(partition, 0))


def look(settings: "Settings", group: str | None = None) -> StreamKnowledge:
    """What the state topic says of one group or of all; `catch_up` or `tail` brings in the rest."""
    remedy = "see what `precede run` says; if the job still runs, its checkpoint has it: precede held --checkpoint DIR"
    stream = StreamStart(settings.bootstrap, settings.ordered_topic, settings.progress_topic, remedy=remedy)
    progress = stream.progress(settled=False)
    owner = None if progress is None else progress.any_owner
    if progress is None or owner is None:
        there_is, what = f"There is no topic {settings.progress_topic}", "no job has run there yet"
        if progress is not None:
            there_is = f"Nothing is known of {settings.ordered_topic} in {settings.progress_topic}"
            what = "no job has written it yet"
        raise NoStateError(
            f"{there_is} on Kafka at {settings.bootstrap}: {what}. Start `precede run`, or name the job's topics, as "
            "its config file does (--config)."
        )
    stream.check_owner(owner)
    stream.same_topic(settings.ordered_topic, owner.ordered_topic_id)
    groups = None if group is None else [group.encode()]
    partitions = raw_partitions_of(groups, owner)
    states = stream.states(owner, partitions, groups, waits_s=SETTLED_S)
    return StreamKnowledge(settings, stream, progress, owner, states, None if groups is None else groups[0])
