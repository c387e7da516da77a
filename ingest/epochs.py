"""Reads from the log itself which epoch a sender may start with if its state file is lost, and how the group was
created if none of its records is ordered yet.

The group's partition of the raw topic is read once. The sender's records in it show its largest epoch, and the next one
is free. A log that is too long to be read in a few seconds is not used. Then the epoch is the time in seconds, which is
larger than any counted one.

Anyone with write access to the log can write any epoch in any sender's name. So in a group with keys only signed
records count. In other groups no record is proven, and all count, unless they leave no epoch free and the sender has a
key of its own.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import KafkaException

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import TopicReader
from precede.udfs.engine.signers import SERVICE
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.partitioner import DEFAULT_PARTITIONER, partition_of
from precede.udfs.records.messages import EPOCH_MAX, Create
from precede.udfs.records.published import lenient_reader
from precede.udfs.records.signatures import is_signed_by, read_key, signature_in
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

READ_S_MAX = 5.0


class _Id(msgspec.Struct):
    """The part of a raw record that identifies its sender."""

    sender: str = ""
    epoch: int = 0
    kind: str = "message"
    key: str | None = None


_read_id = lenient_reader(_Id)


class _TooLong(Exception):
    """The log could not be read to its end in time."""


def free_epoch(
    bootstrap: Address | str,
    topic: str,
    group: str,
    sender: str,
    key: "Ed25519PrivateKey | None",
    *,
    above: int = -1,
    partitioner: str = DEFAULT_PARTITIONER,
) -> int:
    """0 for a sender that is not in the log, else the next epoch after its largest one there and after `above`.

    `partitioner` is the job's setting: where it does not put the group, records are refused and take no epoch.
    Raises Refused if there is none left, Unreachable if no broker answered, and AccessDenied if the topic may not be
    read.
    """
    epochs = Epochs(sender, None if key is None else key.public_key().public_bytes_raw())
    try:
        for value in _values(bootstrap, topic, group, partitioner):
            epochs.add(value)
    except _TooLong:
        return check_epoch(max(int(time.time()), above + 1), group, sender)
    return check_epoch(max(epochs.largest, above) + 1, group, sender)


def check_epoch(epoch: int, group: str, sender: str) -> int:
    """The epoch; raises Refused if it is larger than a group accepts."""
    if epoch > EPOCH_MAX:
        raise Refused(
            f"{sender} has used the largest epoch there is in {group}, {EPOCH_MAX}: it cannot begin another, so send"
            " under another name."
        )
    return epoch


class Epochs:
    """The largest epoch of one sender, from the raw records of its group, added in the order of the log."""

    def __init__(self, sender: str, key: bytes | None) -> None:
        self._sender = sender
        self._has_key = key is not None
        self._keys = set() if key is None else {key}
        self._service: bytes | None = None
        self._has_begun = False
        self._group_has_keys = False
        self._largest = self._largest_signed = -1

    @property
    def largest(self) -> int:
        """The largest epoch that counts, -1 if there is none."""
        no_other_is_free = self._largest == EPOCH_MAX and self._has_key
        return self._largest_signed if self._group_has_keys or no_other_is_free else self._largest

    def add(self, value: bytes) -> None:
        """Take one record into account, which anyone may have published."""
        if not self._has_begun:
            self._begin(value)
        try:
            found = _read_id(value)
        except msgspec.DecodeError:
            return
        if found.sender != self._sender or not 0 <= found.epoch <= EPOCH_MAX:
            return
        self._largest = max(self._largest, found.epoch)
        is_join = found.kind == "join"
        if is_join or found.epoch > self._largest_signed:
            is_own = _is_signed(value, self._keys)
            if is_own or (is_join and self._service is not None and _is_signed(value, {self._service})):
                # The service admits a sender with an epoch that was not used yet; the sender may start with it.
                self._largest_signed = max(self._largest_signed, found.epoch if is_own else found.epoch - 1)
                if is_join and (brought := read_key(found.key)) is not None:
                    self._keys.add(brought)

    def _begin(self, value: bytes) -> None:
        """Take the keys of a `create`; it counts only as the group's first record."""
        try:
            first = read(value.strip(SPACE), Limits())
        except Malformed:
            return
        self._has_begun = True
        if isinstance(first, Create) and isinstance(keys := first.options.keys, dict):
            self._group_has_keys = True
            self._service = read_key(keys.get(SERVICE))
            own = read_key(keys.get(self._sender))
            self._keys |= set() if own is None else {own}


def _is_signed(value: bytes, keys: set[bytes]) -> bool:
    """Whether the record is signed with one of the keys."""
    record = value.strip(SPACE)
    signature = signature_in(record)
    return signature is not None and any(is_signed_by(key, signature, record) for key in keys)


def created_as(
    bootstrap: Address | str, topic: str, group: str, *, partitioner: str = DEFAULT_PARTITIONER
) -> Create | None:
    """The record that creates the group, if it is the group's first one; None if not, or if the log is too long."""
    try:
        first = next(_values(bootstrap, topic, group, partitioner), None)
    except _TooLong:
        return None
    return None if first is None else as_create(first)


def as_create(value: bytes) -> Create | None:
    """The record, if it is a `create`; it is read strictly, because it decides what is sent."""
    try:
        found = msgspec.json.decode(value, type=Create)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.kind == "create" else None


def _values(bootstrap: Address | str, topic: str, group: str, partitioner: str) -> Iterator[bytes]:
    """The raw records of a group in its own partition, in the order of the log."""
    # By default Kafka waits half a second before it says that a partition has ended.
    reader = TopicReader(bootstrap, READ_S_MAX, wait_ms=10)
    try:
        yield from _read(reader, topic, group.encode(), partitioner)
    except TimeoutError as error:
        raise _TooLong from error
    except KafkaException as error:
        raise clients.unreadable(bootstrap, topic, error.args[0]) from error
    finally:
        reader.close()


def _read(reader: TopicReader, topic: str, key: bytes, partitioner: str) -> Iterator[bytes]:
    deadline = time.monotonic() + READ_S_MAX
    ends = reader.all_ends(topic)
    if not ends:
        return
    partition = partition_of(key, len(ends), partitioner)
    first, end = ends[partition]
    if first == end:
        return
    for record in reader.to_end(topic, {partition: first}, quiet_s=READ_S_MAX, deadline=deadline):
        if record.key == key:
            yield record.value or b""
