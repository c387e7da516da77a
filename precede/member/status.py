"""How a member stands with its group: what is missing, what it said and is not delivered, and what it reads from.

Whether the job is behind cannot be seen in the ordered topic. So the member looks at the progress topic, where the job
notes how far it is, and at the end of the raw log, at most once a second and only when somebody asks.
"""

import threading
from datetime import UTC, datetime
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

from precede.udfs.errors import AccessDenied, PrecedeError, Refused
from precede.udfs.partitioner import partition_of
from precede.udfs.records.identifiers import MessageId

if TYPE_CHECKING:
    from precede.ingest.kafka.access import Address
    from precede.ingest.kafka.reading import TopicReader

LOOK_EVERY_S = 1.0
ANSWER_S = 1.0
"""How long a broker may take to answer a look."""
COUNT_MAX = 2_000
"""A larger distance to the end of the raw log is not read to be counted."""
WAITS_MAX = 20


class Connection(NamedTuple):
    """What a member reads from."""

    state: Literal["connecting", "live", "catching up", "job behind", "broker away"]
    """`connecting`: nothing is ordered yet, or nothing was read. `live`: what is delivered comes at once."""
    behind: int = 0
    """How many records of the group the job has not handled yet; more than 2,000 count those of other groups, too."""
    since: datetime | None = None
    """Since when the broker does not answer."""

    def __str__(self) -> str:
        if self.behind:
            return f"job behind by {self.behind:,}"
        return self.state if self.since is None else f"broker away since {self.since:%H:%M:%S} UTC"


class Status(NamedTuple):
    """How a member stands with its group."""

    synced: bool
    """Whether all that was said was delivered and handed over, as far as this member can know."""
    missing: int
    """How many messages the group is known to wait for."""
    given_up: int
    """How many of the messages handed over so far were abandoned."""
    unsent: int = 0
    """How many of its own messages Kafka has not confirmed."""
    own_pending: int = 0
    """How many of its own messages Kafka has and the group has not delivered: they are held, refused, or on the way."""
    waits: tuple[MessageId, ...] = ()
    """The first of the messages that the group is known to wait for."""
    connection: Connection = Connection("live")
    trouble: str | None = None
    """What this member cannot do, and why: nothing more is sent where its epoch has ended."""

    def __str__(self) -> str:
        named = {"missing": self.missing, "unsent": self.unsent, "not delivered yet": self.own_pending}
        parts = [f"{count} {what}" for what, count in named.items() if count]
        if self.connection.state != "live":
            parts.append(str(self.connection))
        said = "synced" if self.synced else ", ".join(parts) or "behind"
        return f"{said}, {self.given_up} given up" if self.given_up else said


class JobLook(NamedTuple):
    """What a look showed."""

    behind: int
    away_since: datetime | None


class JobWatch:
    """Looks how far the job is in the partition of one group. Threads may share it."""

    def __init__(
        self, bootstrap: "Address | str", group: str, *, raw: str, ordered: str, progress: str, partitioner: str
    ) -> None:
        self._bootstrap = bootstrap
        self._key = group.encode()
        self._raw = raw
        self._ordered = ordered
        self._progress = progress
        self._partitioner = partitioner
        self._one_at_a_time = threading.Lock()
        self._is_closed = False
        self._raw_reader: TopicReader | None = None
        self._progress_reader: TopicReader | None = None
        self._partition: int | None = None
        self._token: int | None = None
        self._seen = JobLook(0, None)
        self._counted = (0, 0)
        """The token and the end for which the records were counted."""
        self._next_s = 0.0

    def look(self) -> JobLook:
        """How far the job is behind, and since when the broker is away; takes a second at most, or a little more."""
        from confluent_kafka import KafkaException  # peers have a status, too, and need no client of Kafka

        with self._one_at_a_time:
            if monotonic() >= self._next_s and not self._is_closed:
                try:
                    self._seen = JobLook(self._behind(), None)
                except (AccessDenied, Refused):  # who may not read these topics, or is older than the job, cannot know
                    self._seen = JobLook(0, None)
                except (KafkaException, PrecedeError):
                    self._seen = JobLook(0, self._seen.away_since or datetime.now(UTC))
                self._next_s = monotonic() + LOOK_EVERY_S
            return self._seen

    def close(self) -> None:
        """Look no more."""
        with self._one_at_a_time:
            self._is_closed = True
            for reader in (self._raw_reader, self._progress_reader):
                if reader is not None:
                    reader.close()

    def _behind(self) -> int:
        """How many records of the group the job has not handled."""
        from confluent_kafka import KafkaException

        from precede.ingest.kafka import clients
        from precede.ingest.kafka.reading import TopicReader

        try:
            reader = self._raw_reader = self._raw_reader or TopicReader(self._bootstrap, ANSWER_S, wait_ms=10)
            if self._partition is None:
                count = len(reader.partitions(self._raw, ANSWER_S))
                self._partition = partition_of(self._key, count, self._partitioner) if count else None
            if self._partition is None:
                return 0
            end = reader.ends(self._raw, [self._partition], ANSWER_S)[self._partition][1]
            token = self._read_token()
        except KafkaException as error:
            if error.args[0].code() in clients.NOT_ALLOWED:
                raise AccessDenied(str(error)) from error
            raise
        if token is None or token >= end:
            return 0
        if end - token > COUNT_MAX:
            return end - token
        if self._counted == (token, end):
            return self._seen.behind
        # Ticks and the marks of transactions have offsets too, so records are counted and not offsets.
        deadline = monotonic() + ANSWER_S
        records = reader.to_end(self._raw, {self._partition: token}, quiet_s=ANSWER_S, deadline=deadline)
        try:
            behind = sum(record.key == self._key for record in islice(records, COUNT_MAX))
        except TimeoutError:
            return end - token
        self._counted = token, end
        return behind

    def _read_token(self) -> int | None:
        """The raw offset up to which the output of this partition is published; None if no job has said so."""
        from precede.ingest.kafka.reading import TopicReader
        from precede.ingest.progress import decode_progress

        reader = self._progress_reader
        if reader is None:
            found = TopicReader(self._bootstrap, ANSWER_S, wait_ms=10)
            partitions = found.partitions(self._progress, ANSWER_S)
            if not partitions:
                found.close()
                return None
            found.assign(self._progress, dict.fromkeys(partitions, 0))
            reader = self._progress_reader = found
        deadline = monotonic() + ANSWER_S
        while True:
            records = reader.read(0.0 if reader.at_end() else 0.05)
            known = decode_progress([(one.key, one.value) for one in records], self._progress, self._ordered)
            self._token = known.token.get(self._partition or 0, self._token)
            if not records and (reader.at_end() or monotonic() >= deadline):
                return self._token
