"""Loads what is known now, without Spark: the horizon, then the state topic, then the raw records behind it.

The state topic holds the state of each group at some raw offset. The horizon says from which raw offset on records may
be missing in some of these states; the kernel takes them up, and passes over, for each group, what its state has.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from precede.ingest.kafka import clients
from precede.ingest.kafka.reading import REQUEST_S, TopicReader, why_unreadable
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import Owner, Progress, read_progress
from precede.ingest.state_topic import read_state
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import partition_of
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
        self, settings: "Settings", progress: Progress, owner: Owner, partitions: list[int], group: bytes | None
    ) -> None:
        self.settings = settings
        self.patience = settings.patience()
        self.progress = progress
        self.owner = owner
        self.group = group
        self.partitions = partitions
        """The raw partitions that are read."""
        self.next_offset = {at: progress.horizon.get(at, 0) for at in partitions}
        """Up to where the raw partitions were taken in."""
        self.by_partition: dict[int, dict[bytes, StoredState]] = {}
        """What the state topic has, by raw partition and group."""
        self.holdback = Holdback(
            order=owner.order,
            limits=owner.limits,
            patience=self.patience,
            partitions=owner.partitions,
            partitioner=owner.partitioner or settings.partitioner,
        )

    @property
    def warning(self) -> str | None:
        """Why what is shown may differ from what the job does; None where it does not."""
        if self.owner.rules == RULES:
            return None
        return (
            f"The job orders by rules {self.owner.rules}, and this precede knows rules {RULES}: what came in the last "
            "seconds may be shown differently from what the job makes of it. Use the job's version."
        )

    def load_state(self) -> None:
        """Read the state topic to its end."""
        assert self.owner.ordered_topic_id is not None
        bootstrap, topic = self.settings.bootstrap, self.owner.state_topic
        where = {"stream": self.owner.ordered_topic_id, "group": self.group}
        try:
            found = read_state(bootstrap, topic, self.partitions, quiet_s=SETTLED_S, **where)  # type: ignore[arg-type]
        except Unreachable:
            # A transaction that stays open is a killed job's. What was committed before it is all there is.
            found = read_state(bootstrap, topic, self.partitions, settled=False, **where)  # type: ignore[arg-type]
        self.by_partition = found
        for groups in found.values():
            self.holdback.load(
                {key: stored.blob for key, stored in groups.items()},
                {key: stored.next for key, stored in groups.items()},
            )

    def tail(self, tell: Tell = tell_nothing) -> Iterator[LogRecord]:
        """The raw records from the horizon on; the caller hands them to the kernel."""
        topic = self.owner.raw_topic
        reader = TopicReader(self.settings.bootstrap, patient=False, wait_ms=10)
        try:
            ends = reader.ends(topic, self.partitions, REQUEST_S)
            for at, (first, _) in ends.items():
                _check_reaches_back(topic, at, first, self.next_offset[at])
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
    progress = _progress(settings)
    owner = progress.any_owner
    if owner is None:
        raise NoStateError(
            f"Nothing is known of {settings.ordered_topic} in {settings.progress_topic} on Kafka at "
            f"{settings.bootstrap}: no job has written it yet. Start `precede run`, or name the job's topics, as its "
            "config file does (--config)."
        )
    if owner.order not in ORDERS:
        raise Refused(
            f"The job orders {settings.ordered_topic} by {owner.order}, which this program does not know: register "
            "that order (precede.register), and ask from there."
        )
    _check_topics(settings, owner)
    key = None if group is None else group.encode()
    if key is None:
        partitions = list(range(owner.partitions))
    else:
        partitions = [partition_of(key, owner.partitions, owner.partitioner or settings.partitioner)]
    knowledge = StreamKnowledge(settings, progress, owner, partitions, key)
    knowledge.load_state()
    return knowledge


def _progress(settings: "Settings") -> Progress:
    topic = settings.progress_topic
    try:
        found = describe(settings.bootstrap, [topic]).get(topic)
        if found is None:
            raise NoStateError(
                f"There is no topic {topic} on Kafka at {settings.bootstrap}: no job has run there yet. Start "
                "`precede run`, or name the job's topics, as its config file does (--config)."
            )
        return read_progress(settings.bootstrap, found, settings.ordered_topic, settled=False)
    except Unreachable as error:
        raise why_unreadable(settings.bootstrap, topic, error) from error


def _check_topics(settings: "Settings", owner: Owner) -> None:
    """Refuse topics that are not those the job named: they were deleted, and perhaps made again."""
    ids = {
        owner.raw_topic: owner.raw_topic_id,
        settings.ordered_topic: owner.ordered_topic_id,
        owner.state_topic: owner.state_topic_id,
    }
    try:
        found = describe(settings.bootstrap, list(ids))
    except Unreachable as error:
        raise why_unreadable(settings.bootstrap, owner.raw_topic, error) from error
    for name, id_ in ids.items():
        if name not in found:
            raise Refused(
                f"There is no topic {name} on Kafka at {settings.bootstrap}, but the job says in "
                f"{settings.progress_topic} that it uses it. `precede run` says how to go on."
            )
        if found[name].id != id_:
            raise Refused(
                f"The topic {name} is another one than the job has used: it was deleted and made again. `precede run` "
                "says how to go on."
            )


def _check_reaches_back(topic: str, partition: int, first: int, needed: int) -> None:
    if first > needed:
        raise Refused(
            f"The raw topic {topic} begins at offset {first} in partition {partition}, but the state topic needs the "
            f"records from {needed} on: what is held is not known. If the job still runs, its checkpoint has it: "
            "precede held --checkpoint DIR."
        )
