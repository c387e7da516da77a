"""The topics that precede needs, each with the settings that its guarantees depend on.

An absent topic is created. A topic that exists keeps its settings, unless they would break a guarantee: then it is
refused, with the command that corrects it. An existing topic is never altered here, because others may use it, too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.clients import retry
from precede.udfs import sizes
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.limits import Limits

RAW_TOPIC = "precede.raw"
ORDERED_TOPIC = "precede.ordered"
DEAD_LETTER_TOPIC = "precede.dead-letters"
PROGRESS_TOPIC = "precede.progress"
CONTROL_TOPIC = "precede.control"
STATE_TOPIC = "precede.state"

RECORD_BYTES_MAX = 2 * 1024 * 1024
BATCH_BYTES_MAX = RECORD_BYTES_MAX + 64 * 1024  # the limit of a topic created here: a record with its key and overhead
PROGRESS_SEGMENT_BYTES = 4 * 1024 * 1024
STATE_SEGMENT_BYTES = 64 * 1024 * 1024
STATE_BYTES_LEAST = 16 * 1024  # the pieces of a state are cut to what the topic takes, and each has a key and a head
PARTITIONS = 4
REQUEST_S_MAX = 10.0
REACH_S_MAX = 5.0  # after this time a person is told that no broker answers
RETRY_S = 2.0

DEFAULTS = Limits()


@dataclass(frozen=True)
class Wanted:
    """One topic: the settings that it must have, and those that it is only created with."""

    name: str
    partitions: int
    exact: dict[str, str]  # settings for which every other value breaks a guarantee
    at_least: dict[str, int]  # settings that may be larger
    created_with: dict[str, str] = field(default_factory=dict)  # never below `at_least`
    note: str = ""  # what a person should know who creates it
    like: str | None = None  # the topic that must have as many partitions; where that one exists, it decides

    @property
    def settings(self) -> dict[str, str]:
        """All settings of a new topic."""
        return {name: str(least) for name, least in self.at_least.items()} | self.created_with | self.exact

    def wrong(self, found: dict[str, str]) -> dict[str, str]:
        """The settings to change, with the values they should have."""
        changes = {name: value for name, value in self.exact.items() if found.get(name) != value}
        too_small = [name for name, least in self.at_least.items() if int(found.get(name, "0")) < least]
        return changes | {name: self.settings[name] for name in too_small}


def raw(name: str = RAW_TOPIC, partitions: int = PARTITIONS, *, limits: Limits = DEFAULTS) -> Wanted:
    """The log itself: the broker sets the arrival time, and a new one is kept for ever."""
    log = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    # A new topic accepts more than the largest valid record, so that most oversize ones arrive and get a dead letter.
    larger = {"max.message.bytes": str(BATCH_BYTES_MAX), "retention.ms": "-1", "retention.bytes": "-1"}
    note = (
        f"The topic {name} has been created with {_counted(partitions)}. This number is final, and it is the most jobs "
        "that can share the work."
    )
    return Wanted(name, partitions, log, {"max.message.bytes": sizes.raw_bytes_max(limits)}, larger, note)


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def ordered(name: str = ORDERED_TOPIC, partitions: int = PARTITIONS, *, limits: Limits = DEFAULTS) -> Wanted:
    """The delivered records, with the fields that the job appends."""
    return output(name, partitions, sizes.ordered_bytes_max(limits))


def output(name: str, partitions: int = PARTITIONS, largest: int = sizes.DEAD_LETTER_BYTES_MAX) -> Wanted:
    """A topic of ordered records, dead letters or requests; kept for ever unless its owner sets a retention."""
    return Wanted(
        name,
        partitions,
        {"cleanup.policy": "delete"},
        {"max.message.bytes": largest},
        {"max.message.bytes": str(BATCH_BYTES_MAX), "retention.ms": "-1", "retention.bytes": "-1"},
    )


def progress(name: str = PROGRESS_TOPIC) -> Wanted:
    """The stream's progress: only the newest value per key matters.

    Kafka only compacts full segments, and a job reads the whole topic when it starts. With Kafka's default of one
    gibibyte that would take minutes.
    """
    return Wanted(name, 1, {"cleanup.policy": "compact"}, {}, {"segment.bytes": str(PROGRESS_SEGMENT_BYTES)})


def state(name: str = STATE_TOPIC, partitions: int = PARTITIONS, *, raw_topic: str = RAW_TOPIC) -> Wanted:
    """The state of each group: only the newest of each piece matters, and readers read the whole topic.

    It has the partitions of the raw topic, because a group's state is in the partition of its records.
    """
    small = {"segment.bytes": str(STATE_SEGMENT_BYTES), "max.message.bytes": str(BATCH_BYTES_MAX)}
    largest = {"max.message.bytes": STATE_BYTES_LEAST}
    return Wanted(name, partitions, {"cleanup.policy": "compact"}, largest, small, like=raw_topic)


def wanted(
    *,
    raw_topic: str = RAW_TOPIC,
    ordered_topic: str = ORDERED_TOPIC,
    dead_letter_topic: str = DEAD_LETTER_TOPIC,
    progress_topic: str = PROGRESS_TOPIC,
    control_topic: str = CONTROL_TOPIC,
    state_topic: str = STATE_TOPIC,
    partitions: int = PARTITIONS,
    limits: Limits = DEFAULTS,
) -> list[Wanted]:
    """The six topics of a stream, which must accept the largest records that these limits allow."""
    return [
        raw(raw_topic, partitions, limits=limits),
        ordered(ordered_topic, partitions, limits=limits),
        output(dead_letter_topic, partitions),
        progress(progress_topic),
        output(control_topic, partitions),
        state(state_topic, partitions, raw_topic=raw_topic),
    ]


def ensure(
    bootstrap: Address | str,
    topics: list[Wanted],
    *,
    replicas: int = -1,
    say: Callable[[str], None] | None = None,
) -> None:
    """Create the topics that are absent; raise Refused if one has wrong settings.

    `replicas` -1 means the broker's own default; `say` is told what a person should know of a new topic. Raises
    Unreachable or AccessDenied if Kafka cannot be used.
    """
    admin = clients.admin(bootstrap)
    present = names(admin, bootstrap)
    topics = [_as_many_as(topic, present) for topic in topics]
    created = _create(admin, bootstrap, [topic for topic in topics if topic.name not in present], replicas)
    if say is not None:
        for note in [topic.note for topic in topics if topic.note and topic.name in created]:
            say(note)
    check(admin, bootstrap, [topic for topic in topics if topic.name not in created])
    for topic in topics:
        has, wants = present.get(topic.name), present.get(topic.like or "")
        if has is not None and wants is not None and has != wants:
            raise Refused(
                f"The topic {topic.name} has {_counted(has)}, but {topic.like} has {wants}, and the state of a group "
                "must be in the partition of its records: choose another state_topic, or delete this one if it is not "
                f"needed. If {topic.like} was given partitions while it was in use, groups would move between them: "
                "continue with a new raw topic, new output topics and a new checkpoint."
            )


def ensure_patiently(
    bootstrap: Address | str,
    topics: list[Wanted],
    *,
    replicas: int = -1,
    patience_s: float = 300.0,
    pause: Callable[[float], bool | None] = time.sleep,
    say: Callable[[str], None],
) -> None:
    """As `ensure`, but waits for a broker that does not answer, and says so once.

    If `pause` returns True, the caller no longer waits.
    """
    has_waited = False

    def tell(error: Exception) -> None:
        nonlocal has_waited
        has_waited = True
        say(f"{error} Trying again until it answers, for up to {patience_s:.0f} s.")

    def make() -> bool:
        ensure(bootstrap, topics, replicas=replicas, say=say)
        return True

    are_made = retry(
        make,
        passes=lambda error: isinstance(error, Unreachable),
        for_s=patience_s,
        pause_s=RETRY_S,
        pause=pause,
        tell=tell,
    )
    if are_made and has_waited:
        say(f"Kafka answers at {bootstrap}.")


def _as_many_as(topic: Wanted, present: dict[str, int]) -> Wanted:
    """With the number of partitions that the topic must share."""
    return replace(topic, partitions=present.get(topic.like or "", topic.partitions))


def names(admin: AdminClient, bootstrap: Address | str) -> dict[str, int]:
    """All topics, and how many partitions each has."""
    try:
        found = admin.list_topics(timeout=REACH_S_MAX).topics
        return {name: len(topic.partitions) for name, topic in found.items()}
    except KafkaException as error:
        raise clients.unreachable(bootstrap) from error


def _create(admin: AdminClient, bootstrap: Address | str, topics: list[Wanted], replicas: int) -> set[str]:
    """Create these topics; the names of those that this call created are returned."""
    if not topics:
        return set()
    created: set[str] = set()
    new = [
        NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=replicas, config=topic.settings)
        for topic in topics
    ]
    for name, future in admin.create_topics(new, operation_timeout=REQUEST_S_MAX).items():
        try:
            future.result()
            created.add(name)
        except KafkaException as error:
            # Two programs may start at once; what the other one created is checked like any topic that was there.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                what = f"Kafka refused to create the topic {name}"
                raise clients.refused(bootstrap, error.args[0], what) from error
    _wait_for_leaders(admin, {topic.name for topic in topics})
    return created


def _wait_for_leaders(admin: AdminClient, new: set[str]) -> None:
    """Wait until each partition has a leader; before that, Kafka says that there is no such partition."""
    deadline = time.monotonic() + REQUEST_S_MAX
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=REQUEST_S_MAX).topics
        partitions = [found[name].partitions.values() if name in found else () for name in new]
        if all(ones and all(one.leader >= 0 for one in ones) for ones in partitions):
            return
        time.sleep(0.05)


def record_bytes_max(bootstrap: Address | str, name: str) -> int:
    """The largest batch that a topic takes."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    admin = clients.admin(bootstrap)  # it must outlive its answer
    found = admin.describe_configs([resource], request_timeout=REQUEST_S_MAX)
    try:
        return int(found[resource].result()["max.message.bytes"].value or 0)
    except KafkaException as error:
        raise Unreachable(f"Kafka at {bootstrap} did not show the settings of {name}.") from error


def check(admin: AdminClient, bootstrap: Address | str, topics: list[Wanted]) -> None:
    """Raise Refused if one of these topics, which exist, has wrong settings."""
    if not topics:
        return
    resources = {ConfigResource(ResourceType.TOPIC, topic.name): topic for topic in topics}
    found = admin.describe_configs(list(resources), request_timeout=REQUEST_S_MAX)
    for resource, topic in resources.items():
        try:
            settings = {entry.name: str(entry.value) for entry in found[resource].result().values()}
        except KafkaException as error:
            what = f"Kafka did not show the settings of {topic.name}"
            raise clients.refused(bootstrap, error.args[0], what) from error
        changes = topic.wrong(settings)
        if changes:
            raise Refused(_correction(bootstrap, topic.name, settings, changes))


def _correction(bootstrap: Address | str, name: str, found: dict[str, str], changes: dict[str, str]) -> str:
    has = ", ".join(f"{setting}={found.get(setting)}" for setting in changes)
    config = ",".join(f"{setting}={value}" for setting, value in changes.items())
    return (
        f"The topic {name} has {has}, which breaks precede's guarantees; correct it with: kafka-configs.sh "
        f"--bootstrap-server {bootstrap} --alter --entity-type topics --entity-name {name} --add-config {config}"
    )


@dataclass(frozen=True)
class Topic:
    """A topic as it is now; `id` differs from that of a deleted topic with the same name."""

    name: str
    id: str
    partitions: int


def id_of(bootstrap: Address | str, name: str) -> str | None:
    """The id of a topic; None if it does not exist."""
    found = describe(bootstrap, [name]).get(name)
    return None if found is None else found.id


def describe(bootstrap: Address | str, names: list[str]) -> dict[str, Topic]:
    """The topics of these names that exist. Raises Unreachable if Kafka does not describe them."""
    try:
        admin = clients.admin(bootstrap)
        admin.list_topics(timeout=REACH_S_MAX)
        futures = admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_S_MAX)
    except KafkaException as error:
        raise Unreachable(f"Cannot reach Kafka at {bootstrap}.") from error
    topics: dict[str, Topic] = {}
    for name, future in futures.items():
        try:
            found = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            why = error.args[0].str()
            raise Unreachable(f"Kafka at {bootstrap} did not describe the topic {name}: {why}.") from error
        topics[name] = Topic(name, str(found.topic_id), len(found.partitions))
    return topics


REQUEST_S_MAX = 10.0
UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


@dataclass(frozen=True)
class Retention:
    """The retention of a topic; None where nothing is deleted for that reason."""

    ms: int | None
    bytes: int | None

    @property
    def is_limited(self) -> bool:
        """Whether Kafka deletes records of the topic at all."""
        return self.ms is not None or self.bytes is not None

    def __str__(self) -> str:
        parts = [] if self.ms is None else [duration(self.ms)]
        parts += [] if self.bytes is None else [f"{self.bytes:,} bytes of a partition"]
        return " or ".join(parts) or "for ever"


def retention_of(bootstrap: Address | str, topic: str) -> Retention:
    """The retention of a topic. Raises Unreachable."""
    admin = clients.admin(bootstrap)  # it must outlive its answer
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], request_timeout=REQUEST_S_MAX)
    try:
        settings = found[resource].result()
    except KafkaException as error:
        raise Unreachable(f"Kafka at {bootstrap} did not show the settings of {topic}.") from error
    ms, size = (int(settings[name].value or -1) for name in ("retention.ms", "retention.bytes"))
    return Retention(None if ms < 0 else ms, None if size < 0 else size)


def duration(ms: int) -> str:
    """A time as a person says it, in the largest unit of which it is a whole number."""
    for name, unit in UNITS:
        if ms >= unit and ms % unit == 0:
            count = ms // unit
            return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
    return f"{ms:,} ms"
