"""A group's state as one versioned binary blob, and back, exactly.

Held messages are kept as the raw bytes they came in and read again. What can be derived is not kept: who waits for
what, the union-find of `s_b`, counts and texts. A blob of an older version must load: its reader stays in READERS.
"""

from struct import Struct
from typing import Any, TypeAlias

import msgspec

from precede.udfs.engine.group import NO_OPTIONS, Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.outbox import Outbox
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.records.messages import SEQ_MAX, Id, Message, Options
from precede.udfs.records.wire import read
from precede.udfs.ticks import tick as passing_time
from precede.udfs.ticks.patience import Patience
from precede.udfs.ticks.repair_timers import DumpedWaits
from precede.udfs.ticks.repair_timers import load as load_waits

VERSION = 1
VERSION_TIMED = 2
"""As 1, but the time of the log from which a tick may do something stands before the rest."""

_TIMED_HEAD = Struct(">Bq")

DumpedRuns: TypeAlias = int | list[int]


class DumpedSender(msgspec.Struct, array_like=True):
    """One sender; the rare fields stand last."""

    name: str
    epoch: int
    highest: int
    settled: DumpedRuns
    digests: bytearray
    recent: int | list[int]
    """The last digest's seq where the digests are of consecutive ones, else the seq of each."""
    fence: int = SEQ_MAX
    abandoned: DumpedRuns | None = None
    refused: DumpedRuns | None = None


class DumpedGroup(msgspec.Struct, array_like=True):
    """One group; the rare fields stand last."""

    order: str
    partition: int
    position: int
    senders: list[DumpedSender]
    held: list[HeldMessage] = []
    """Without what was read of its value. Its id is None where the order asks more of it: it will be read again."""
    options: Options | None = None
    members: dict[str, tuple[int, bool]] = {}
    kept: Any = None
    """What the order keeps beside all this."""
    keys: dict[str, list[tuple[int, bytes]]] = {}
    """What `join` records brought, by name, oldest first: the epoch it counts from and the key."""
    waits: DumpedWaits | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DumpedGroup).decode


def snapshot(group: Group, patience: Patience) -> bytes:
    """The whole state of a group."""
    digests = group.digests
    options = group.options
    dumped = DumpedGroup(
        group.order.name,
        group.partition,
        group.position,
        [_dump_sender(sender, digests) for sender in group.senders.values()],
        [one if one.message is None and one.above is None else _dump_held(one) for one in group.held.values()],
        None if options is NO_OPTIONS else options,
        group.membership.members,
        group.order.dump(),
        {} if group.keyring is None else group.keyring.added,
        None if group.waits is None else group.waits.dump(),
    )
    due_ms = passing_time.deadline_ms(group, patience)
    if due_ms is None:
        return bytes((VERSION,)) + _encode(dumped)
    return _TIMED_HEAD.pack(VERSION_TIMED, due_ms) + _encode(dumped)


def deadline_ms(blob: bytes) -> int | None:
    """From which time of the log on a tick may do something in this group; read without decoding the rest."""
    return _TIMED_HEAD.unpack_from(blob)[1] if blob[0] == VERSION_TIMED else None


def restore(key: bytes, blob: bytes, *, limits: Limits, outbox: Outbox) -> Group:
    """The group that `snapshot` wrote."""
    reader = READERS.get(blob[0])
    if reader is None:
        raise Refused(
            f"The state of group {key.decode()!r} has version {blob[0]}, and this precede reads up to {VERSION_TIMED}: "
            "run the version that wrote it, or a newer one."
        )
    return reader(key, blob, limits, outbox)


def _restore_1(key: bytes, blob: bytes, limits: Limits, outbox: Outbox) -> Group:
    dumped = _decode(memoryview(blob)[1:])
    group = Group(key, order=dumped.order, limits=limits, partition=dumped.partition, outbox=outbox)
    if dumped.options is not None:
        group.configure(dumped.order, dumped.options)
    group.begun = True
    group.position = dumped.position
    group.membership.members = dumped.members
    for one in dumped.senders:
        group.add_sender(_load_sender(one))
    for held in dumped.held:
        if held.value is None:
            _know_given_up(group, held.id)
        elif held.id is None:
            _read_again(group, held)  # type: ignore[unreachable]  # elsewhere it has one
    if dumped.held:
        group.hold_again(dumped.held)
    if group.keyring is not None:
        for name, keys in dumped.keys.items():
            for epoch, key in keys:
                group.keyring.add(name, epoch, key)
    if dumped.kept is not None:
        group.order.load(dumped.kept)
    if dumped.waits is not None:
        group.waits = load_waits(dumped.waits)
        outbox.holding.add(group)
    if group.held:
        group.order.relink(group.held.values())
    return group


def _restore_timed(key: bytes, blob: bytes, limits: Limits, outbox: Outbox) -> Group:
    return _restore_1(key, blob[_TIMED_HEAD.size - 1 :], limits, outbox)


READERS = {1: _restore_1, 2: _restore_timed}


def _dump_sender(sender: Sender, digests: int) -> DumpedSender:
    sender.forget(digests)
    return DumpedSender(
        sender.name,
        sender.epoch,
        sender.highest,
        sender.dump(),
        sender.digests,
        sender.recent_last if sender.recent_seqs is None else sender.recent_seqs,
        sender.fence,
        None if sender.abandoned is None else sender.abandoned.dump(),
        None if sender.refused is None else sender.refused.dump(),
    )


def _load_sender(dumped: DumpedSender) -> Sender:
    sender = Sender(
        name=dumped.name,
        epoch=dumped.epoch,
        highest=dumped.highest,
        digests=dumped.digests,
        fence=dumped.fence,
        abandoned=_load_runs(dumped.abandoned),
        refused=_load_runs(dumped.refused),
    )
    sender.fill(dumped.settled)
    if isinstance(dumped.recent, int):
        sender.recent_last = dumped.recent
    else:
        sender.recent_seqs = dumped.recent
        sender.recent_last = dumped.recent[-1]
    return sender


def _load_runs(dumped: DumpedRuns | None) -> Runs | None:
    if dumped is None:
        return None
    runs = Runs()
    runs.fill(dumped)
    return runs


def _dump_held(one: HeldMessage) -> HeldMessage:
    """The id is left out where the value has to be read again in any case."""
    id_ = one.id if one.message is None else None
    return HeldMessage(one.offset, one.arrived_ms, one.rank, one.value, id_, one.watch)  # type: ignore[arg-type]


def _know_given_up(group: Group, id_: Id) -> None:
    """A stand-in waits its turn; a blob of another day did not say with the sender that it was given up."""
    group.senders[sender_key(*id_[:2])].give_up(id_[2], SEQ_MAX)


def _read_again(group: Group, one: HeldMessage) -> None:
    """Set what a held message says, where its order may still ask for it, and its id."""
    assert one.value is not None
    assert one.watch is not None
    record = read(one.value, group.limits)
    assert isinstance(record, Message)
    one.id = record.sender, record.epoch, record.seq  # type: ignore[assignment]  # it was read before
    one.message = None if group.order.asks_no_more(one.watch) else record
