"""Sends one message of a sender whose memory is a file, as `precede send` does."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from precede.ingest import epochs, sender_state
from precede.ingest.fit_to_send import Stream, check_fit
from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.access import Address
from precede.ingest.producer import Publisher
from precede.ingest.sender_state import KnownSender, SenderState
from precede.udfs.errors import AccessDenied, Refused
from precede.udfs.partitioner import DEFAULT_PARTITIONER
from precede.udfs.records.messages import EPOCH_MAX, Id
from precede.udfs.records.signatures import sign
from precede.udfs.records.wire import encode_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

REQUEST_S_MAX = 10.0


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
    stream: Stream | None = None,
    say: Callable[[str], None] | None = None,
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
        with Publisher(bootstrap, topic=topic, linger_ms=0, partitioner=partitioner) as publisher:
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
