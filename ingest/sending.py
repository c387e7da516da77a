"""Sends one message of a sender whose memory is a file, as `precede send` does.

Whether the group takes what is written so is asked once for each sender and group, before its first message. The owner
records of the job tell how it finds the partition of a group, and its default order; the group's first record in the
log is its `create`, if it has one. Who may not read these is not refused for that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import KafkaException

from precede.ingest import epochs, sender_state
from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import describe
from precede.ingest.producer import CONFIRM_S, Publisher
from precede.ingest.progress import Owner, read_progress
from precede.ingest.sender_state import KnownSender, SenderState
from precede.udfs.codes import BAD_STAMP, MISSING_STAMP
from precede.udfs.engine.outbox import TypedOutbox
from precede.udfs.errors import AccessDenied, Refused
from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import DEFAULT_PARTITIONER
from precede.udfs.records.messages import EPOCH_MAX, Id
from precede.udfs.records.signatures import sign
from precede.udfs.records.wire import encode_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

REQUEST_S_MAX = 10.0


class StreamTopicNames(msgspec.Struct, frozen=True):
    """Where the job writes what is made of a raw topic."""

    ordered_topic: str
    progress_topic: str


def send_one(
    bootstrap: Address | str,
    topic: str,
    state_file: Path,
    *,
    group: str,
    sender: str,
    after: list[Id],
    data: object,
    key: "Ed25519PrivateKey | None" = None,
    partitioner: str = DEFAULT_PARTITIONER,
    partitions: int = topics.PARTITIONS,
    replicas: int = -1,
    stream: StreamTopicNames | None = None,
    say: Callable[[str], None] | None = None,
    confirm_s: float = CONFIRM_S,
) -> Id:
    """Publish one message under the sender's next seq, signed if there is a key; return its id once Kafka has it.

    Where the `stream` is named, a group that would refuse every message like this one is refused here, once for each
    sender and group. `partitions`, `replicas` and `say` matter where this creates the raw topic; see `log_of`.

    A message that Kafka did not confirm to an earlier command is sent first. If this message is the same one, it is not
    sent a second time.
    """
    log = log_of(bootstrap, topic, partitions=partitions, replicas=replicas, say=say)
    with sender_state.opened(state_file) as state:
        known = state.memory.find(log, group, sender)
        if known is None or known.epoch > EPOCH_MAX:
            epoch = epochs.free_epoch(bootstrap, topic, group, sender, key, partitioner=partitioner)
            known = state.memory.begin(log, group, sender, epoch)
        elif known.epoch <= _left(state_file, known):
            raise Refused(
                f"{sender} has left {group}, and the group refuses what it says now: `precede groups join {group}"
                f" {sender}` brings it back."
            )
        if stream is not None and known.fits != partitioner:
            record = encode_message(group, sender, known.epoch, 1, after=after, data=data)
            check_fit(bootstrap, topic, group, record, partitioner=partitioner, stream=stream)
            known.fits = partitioner
        with Publisher(bootstrap, topic=topic, linger_ms=0, partitioner=partitioner, confirm_s=confirm_s) as publisher:
            unconfirmed = known.pending
            if unconfirmed is not None:
                publish_pending(publisher, state, known)
            record = _record(known, after, data, key)
            if unconfirmed is None or unconfirmed.encode() != record:
                known.seq += 1
                known.pending = _record(known, after, data, key).decode()
                state.save()
                publish_pending(publisher, state, known, is_new=True)
        state.save()
        return (sender, known.epoch, known.seq)


def _left(state_file: Path, known: KnownSender) -> int:
    """The last epoch that this name has left, by a command or as a member; -1 if none is known."""
    found = None
    with suppress(OSError, Refused):  # a file that cannot be read says nothing
        member = sender_state.read(sender_state.member_file(known.log, known.group, known.sender, str(state_file)))
        found = member.find(known.log, known.group, known.sender)
    return max(known.left, -1 if found is None else found.left)


def _record(known: KnownSender, after: list[Id], data: object, key: "Ed25519PrivateKey | None") -> bytes:
    """The message under the sender's last seq. Signing twice gives the same bytes, so a retry is an exact copy."""
    record = encode_message(known.group, known.sender, known.epoch, known.seq, after=after, data=data)
    return record if key is None else sign(record, key)


def publish_pending(
    publisher: Publisher,
    state: SenderState,
    known: KnownSender,
    *,
    is_new: bool = False,
    check: Callable[[], object] | None = None,
    lock: AbstractContextManager[object] = nullcontext(),  # noqa: B008 (it has no state)
) -> None:
    """Send the pending record; it stays pending until Kafka answers. If Kafka took it, the caller saves the state.

    `is_new` says that it was never sent before. Only then a refusal frees its seq: an earlier try may be in the log.
    `lock` protects what is known, `check` is called while Kafka is waited for; see `Publisher.flush`.
    """
    assert known.pending is not None
    try:
        publisher.publish(known.group, known.pending.encode())
        publisher.flush(check)
    except (Refused, AccessDenied):
        if is_new:
            with lock:
                known.seq, known.pending = known.seq - 1, None
                state.save()
        raise
    known.pending = None  # if this is not saved, the same bytes are sent again, which does no harm


def log_of(
    bootstrap: Address | str, topic: str, *, partitions: int, replicas: int, say: Callable[[str], None] | None
) -> str:
    """The log that seqs belong to, created if absent: Kafka itself would create the topic with wrong settings.

    `say` is told what a person should know of a new topic: its number of partitions is final.
    """
    topics.ensure(bootstrap, [topics.raw(topic, partitions)], replicas=replicas, say=say)
    try:
        return f"{clients.admin(bootstrap).list_topics(timeout=REQUEST_S_MAX).cluster_id}/{topic}"
    except KafkaException as error:
        raise clients.unreachable(bootstrap) from error


# ── whether the group takes it ───────────────────────────────────────────────────────────────────────────────────────


def check_fit(
    bootstrap: Address | str, topic: str, group: str, record: bytes, *, partitioner: str, stream: StreamTopicNames
) -> None:
    """Raise Refused if the group would never deliver such a record, or nothing that is sent by this partitioner."""
    owner = None
    with suppress(AccessDenied):
        owner = _owner(bootstrap, topic, stream)
    used = partitioner if owner is None else owner.partitioner or DEFAULT_PARTITIONER
    if used != partitioner:
        raise Refused(
            f"The job finds the partition of a group by {used}, and this would send by {partitioner}, so the job would"
            f' refuse what is sent (wrong_partition): set `partitioner = "{used}"`.'
        )
    created = None
    with suppress(AccessDenied):
        created = epochs.created_as(bootstrap, topic, group, partitioner=partitioner)
    named = None if created is None else created.options.order
    order = named if isinstance(named, str) else None if owner is None else owner.order
    if order in ORDERS:
        _check_stamp(group, order, record)


def _owner(bootstrap: Address | str, topic: str, stream: StreamTopicNames) -> Owner | None:
    """The job's owner record, if a job has written one for this raw topic."""
    found = describe(bootstrap, [stream.progress_topic]).get(stream.progress_topic)
    if found is None:
        return None
    owner = read_progress(bootstrap, found, stream.ordered_topic, settled=False).any_owner
    return owner if owner is not None and owner.raw_topic == topic else None


def _check_stamp(group: str, order: str, record: bytes) -> None:
    """Raise Refused if the kernel misses something in the stamp of this record."""
    told = TypedOutbox()
    Holdback(order=order, outbox=told).receive(record, group.encode(), 0, 0, 0)
    for refused in told.refused:
        if refused.code in (MISSING_STAMP, BAD_STAMP):
            raise Refused(
                f"{group} has the order {order}, and `precede send` writes only what a message answers: the group would"
                f" refuse it ({refused.code}: {refused.reason.rstrip('.')}). Send with precede.Member, which knows the"
                " stamps of every order."
            )
