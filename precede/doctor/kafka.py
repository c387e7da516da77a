"""Kafka as the job would meet it: login, version, rights, the settings of the topics; and whether a start would go on.

Nothing is created or changed.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AclOperation,
    AdminClient,
    ConfigResource,
    ResourceType,
)

from precede.doctor.findings import Finding, note, ok, stop, tried
from precede.ingest.extras import is_there
from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.access import access_to
from precede.ingest.kafka.topics import Topic, Wanted, describe, retention_of
from precede.ingest.progress import Owner, read_progress, transactional_id
from precede.streaming.job import starting_point
from precede.streaming.order.same_stream import check_same_source
from precede.streaming.raw_partitions import as_text, owned
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint
from precede.udfs.errors import PrecedeError

REQUEST_S = 10.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
PROBE = "doctor"
"""Behind the name of a transactional id it makes one that no job has."""

NEEDED = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
HISTORY_NEEDS = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)


def check_broker(settings: Settings) -> Iterator[Finding]:
    """All checks of Kafka; after one that nothing can go on without, there are no more."""
    try:
        admin = clients.admin(settings.bootstrap)
        present = topics.names(admin, settings.bootstrap)
    except PrecedeError as error:
        yield stop(str(error))
        return
    yield ok(f"Kafka at {settings.bootstrap} answers{_as_whom(settings)}.")
    yield from _version(admin)
    wanted = settings.topics()
    missing = [topic.name for topic in wanted if topic.name not in present]
    yield from _missing(settings, admin, missing)
    there = [topic for topic in wanted if topic.name in present]
    if there:
        yield from _rights(settings, admin, [topic.name for topic in there])
        yield from _settings(settings, admin, there)
    if settings.only != "history":
        yield _transactions(settings)
    yield _groups(settings)


def _as_whom(settings: Settings) -> str:
    access = access_to(settings.bootstrap)
    if access.username is not None:
        return f" and accepts the credentials of {access.username!r}"
    return "" if access.protocol == "PLAINTEXT" else f" by {access.protocol}"


def _version(admin: AdminClient) -> Iterator[Finding]:
    """What the brokers say of themselves, where that may be asked; what is needed shows in the topics' ids."""
    try:
        node = next(iter(admin.list_topics(timeout=REQUEST_S).brokers))
        resource = ConfigResource(ResourceType.BROKER, str(node))
        found = admin.describe_configs([resource], request_timeout=REQUEST_S)[resource].result()
    except KafkaException as error:
        yield note(f"The version of the brokers may not be asked for ({error.args[0].str()}).")
        return
    entry = found.get("inter.broker.protocol.version")
    if entry is None or not entry.value:  # this setting is gone since then
        yield ok("The brokers are of Kafka 4.0 or newer.")
    elif _number(entry.value) < (2, 8):
        yield stop(f"The brokers speak as Kafka {entry.value} does: Kafka 2.8 or newer is needed.")
    else:
        yield ok(f"The brokers are of Kafka {entry.value.partition('-')[0]} or newer.")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())


def _missing(settings: Settings, admin: AdminClient, missing: list[str]) -> Iterator[Finding]:
    if not missing:
        yield ok("All topics exist.")
        return
    named = ", ".join(missing)
    try:
        found = admin.describe_cluster(include_authorized_operations=True, request_timeout=REQUEST_S).result()
    except KafkaException as error:
        yield note(f"The start creates {named}, if it may; that cannot be asked for ({error.args[0].str()}).")
        return
    allowed = found.authorized_operations
    if allowed is None or AclOperation.CREATE in allowed:
        yield note(f"The start creates {named}.")
    else:  # a rule may still allow the name of a topic, which cannot be asked for before it exists
        yield note(
            f"The start creates {named}, for which {_who(settings)} needs Create on these topics; it has no such rule "
            "for the cluster. Or create them by hand, with the settings that docs/how-to/operate.md names."
        )


def _rights(settings: Settings, admin: AdminClient, names: list[str]) -> Iterator[Finding]:
    """One line for each topic: the rules that are missing there."""
    futures = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=REQUEST_S
    )
    needed = HISTORY_NEEDS if settings.only == "history" else NEEDED
    for name, future in futures.items():
        try:
            found = future.result()
        except KafkaException as error:
            yield stop(str(clients.unreadable(settings.bootstrap, name, error.args[0])))
            continue
        if str(found.topic_id) == NO_ID:
            yield stop(f"The topic {name} has no id: Kafka 2.8 or newer is needed.")
        lacking = [one.name for one in needed if one not in _allowed(found.authorized_operations)]
        if lacking:
            rights = " and ".join(_title(one) for one in lacking)
            yield stop(f"On the topic {name} {_who(settings)} lacks {rights}: add an access rule.")
        else:
            yield ok(f"On the topic {name} the job may do what it needs.")


def _allowed(operations: Collection[Any] | None) -> Collection[Any]:
    """A broker without access rules may say nothing."""
    return set(AclOperation) if operations is None else set(operations)


def _title(operation: str) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))


def _who(settings: Settings) -> str:
    name = access_to(settings.bootstrap).username
    return "this client" if name is None else repr(name)


def _settings(settings: Settings, admin: AdminClient, wanted: list[Wanted]) -> Iterator[Finding]:
    for topic in wanted:
        try:
            topics.check(admin, settings.bootstrap, [topic])
        except PrecedeError as error:
            yield stop(str(error))
        else:
            yield ok(f"The topic {topic.name} has the settings that it needs.")


def _transactions(settings: Settings) -> Finding:
    """Open a transactional id that no job has: that fences no job."""
    id_ = f"{transactional_id(settings.ordered_topic)}:{PROBE}"
    try:
        producer = Producer(clients.settings(settings.bootstrap) | {"transactional.id": id_})
        producer.init_transactions(REQUEST_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return stop(
                f"{_who(settings)} may not write under the transactional id {id_}: add access rules for Write and "
                "Describe on transactional ids that begin with precede."
            )
        return stop(f"Kafka opens no transactions: {error.args[0].str()}.")
    return ok("The job may write in transactions.")


def _groups(settings: Settings) -> Finding:
    consumer = Consumer(clients.settings(settings.bootstrap) | {"group.id": "precede-reads"})
    try:
        consumer.committed([TopicPartition(settings.ordered_topic, 0)], timeout=REQUEST_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return stop(
                f"{_who(settings)} may not use the consumer group precede-reads: add an access rule for Read on "
                "consumer groups that begin with precede."
            )
        return note(f"Whether consumer groups may be used could not be asked for: {error.args[0].str()}.")
    finally:
        consumer.close()
    return ok("The job may use its consumer groups.")


# ── the stream ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_stream(settings: Settings) -> Iterator[Finding]:
    """The checks of a start, where its topics exist."""
    names = [topic.name for topic in settings.topics()]
    try:
        topics = describe(settings.bootstrap, names)
        if len(topics) < len(names):
            yield note("The stream is new: some of its topics do not exist yet.")
            return
        raw = topics[settings.raw_topic]
        owned(settings.raw_partitions, raw.name, raw.partitions)
        yield from _retention(settings)
        if settings.only != "history":
            yield from _order_goes_on(settings, topics)
            yield from _owners(settings, topics)
        if not settings.runs_without_spark and settings.only != "order":
            yield from _history(settings, topics)
    except PrecedeError as error:
        yield stop(str(error))


def _now(ask: Callable[[], Any]) -> Any:
    """Kafka answered a moment ago, so nothing is asked twice."""
    return ask()


def _retention(settings: Settings) -> Iterator[Finding]:
    retention = retention_of(settings.bootstrap, settings.raw_topic)
    if retention.is_limited:
        yield note(
            f"The raw topic {settings.raw_topic} keeps records for {retention}: what is deleted before it is ordered "
            "is lost."
        )


def _order_goes_on(settings: Settings, topics: dict[str, Topic]) -> Iterator[Finding]:
    if settings.runs_without_spark:
        yield from tried(
            lambda: starting_point.check(settings, topics, _now), "The log reaches back to where the order goes on."
        )
        return
    if not is_there("spark"):
        return  # said with the packages
    yield from tried(
        lambda: checkpoint.check_order(settings, _kept(settings).order, topics, _now),
        f"The checkpoint {settings.checkpoint}, the log and the topics belong together.",
    )


def _history(settings: Settings, topics: dict[str, Topic]) -> Iterator[Finding]:
    if not is_there("delta"):
        return  # said with the packages
    if settings.rebuild_delta:
        yield note("With rebuild_delta a start removes the Delta tables and writes them again.")
        return
    yield from tried(
        lambda: checkpoint.check_history(settings, _kept(settings).history, topics),
        f"The Delta tables in {settings.delta} and the checkpoint belong together, and have all rows.",
    )


def _kept(settings: Settings) -> checkpoint.Checkpoint:
    return checkpoint.read(settings.checkpoint_place)


def _owners(settings: Settings, topics: dict[str, Topic]) -> Iterator[Finding]:
    """Who has the partitions now, and whether this is the same stream."""
    raw = topics[settings.raw_topic]
    mine = owned(settings.raw_partitions, raw.name, raw.partitions)
    progress = read_progress(settings.bootstrap, topics[settings.progress_topic], settings.ordered_topic, settled=False)
    by_job: dict[str, list[int]] = {}
    for partition, owner in sorted(progress.owners.items()):
        by_job.setdefault(owner.job, []).append(partition)
    for partitions in by_job.values():
        owner = progress.owners[partitions[0]]
        yield from _same_source(settings, owner, topics)
        shared = [partition for partition in partitions if partition in mine]
        what = "a start takes them over, and that job ends if it runs" if shared else "this job leaves them alone"
        yield note(f"The raw partitions {as_text(partitions)} belong to {_name(owner)}: {what}.")
    without = [partition for partition in range(raw.partitions) if partition not in progress.owners]
    if without and set(without) - set(mine):
        lacking = as_text(sorted(set(without) - set(mine)))
        yield note(f"No job has ever taken the raw partitions {lacking}, and this one does not either.")


def _same_source(settings: Settings, owner: Owner, topics: dict[str, Topic]) -> Iterator[Finding]:
    mine = msgspec.structs.replace(
        owner,
        raw_topic=settings.raw_topic,
        raw_topic_id=topics[settings.raw_topic].id,
        order=settings.order,
        limits=settings.limits,
        partitioner=settings.partitioner,
    )
    yield from (one for one in tried(lambda: check_same_source(settings, owner, mine), "") if one.level == "stop")


def _name(owner: Owner) -> str:
    since = datetime.fromtimestamp(owner.since_ms / 1000, UTC)
    return f"a job with the engine {owner.engine}, started {since:%Y-%m-%d %H:%M:%S} UTC"
