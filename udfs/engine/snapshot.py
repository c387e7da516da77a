"""A group's state as one versioned binary blob, and back, exactly.

Held messages are kept as the raw bytes they came in and read again. What can be derived is not kept: which message
waits for what, the union-find of `s_b`, counts and texts. From the first release on, a blob of an older version must
load; one of a newer version is refused.
"""

from struct import Struct
from typing import Any, TypeAlias

import msgspec

from precede.udfs.engine.group import Group, Shared
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.repair_timers import DumpedRepairTimers
from precede.udfs.engine.repair_timers import load as load_repair_timers
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import SenderRuns
from precede.udfs.engine.state import NO_OPTIONS, waits_for_id
from precede.udfs.errors import Refused
from precede.udfs.records.messages import SEQ_MAX, Message, Options
from precede.udfs.records.wire import read

VERSION = 1
VERSION_TIMED = 2
"""The same, where the time of the log from which a tick may do something comes before the rest."""

_TIMED_HEAD = Struct(">Bq")

DumpedRuns: TypeAlias = int | list[int]


class DumpedSender(msgspec.Struct, array_like=True):
    """One sender; the rare fields come last."""

    name: str
    epoch: int
    highest: int
    settled: DumpedRuns
    digests: bytearray
    recent: int | list[int]
    """The last digest's seq where the seqs of the digests are consecutive, or else the seq of each."""
    fence: int = SEQ_MAX
    abandoned: DumpedRuns | None = None
    refused: DumpedRuns | None = None


class DumpedGroup(msgspec.Struct, array_like=True):
    """One group; the rare fields come last."""

    order: str
    partition: int
    position: int
    senders: list[DumpedSender]
    held: list[HeldMessage] = []
    """Without what was read of their values. The id is None where the order asks more of one: it is read again."""
    options: Options | None = None
    members: dict[str, tuple[int, bool]] = {}
    kept: Any = None
    """What the release keeps beside all this."""
    keys: dict[str, list[tuple[int, bytes]]] = {}
    """What `join` records brought, by name, oldest first: the epoch a key counts from and the key."""
    repair_timers: DumpedRepairTimers | None = None
    took_effect: list[tuple[int, str, int, int]] = []
    """Kind, name and epoch of membership records, and a digest of the last one that took effect."""


class Outline(msgspec.Struct, array_like=True):
    """The beginning of a group's state, read without its senders and held messages."""

    order: str
    partition: int
    position: int
    senders: msgspec.Raw
    held: msgspec.Raw = msgspec.Raw(b"")
    options: Options | None = None
    """None where no `create` record began the group."""
    members: dict[str, tuple[int, bool]] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DumpedGroup).decode
_decode_outline = msgspec.msgpack.Decoder(Outline).decode


def snapshot(group: Group, due_ms: int | None) -> bytes:
    """The whole state of a group; `due_ms` is the time of the log from which a tick may do something in it."""
    digests = group.digests
    options = group.options
    dumped = DumpedGroup(
        group.order.name,
        group.partition,
        group.position,
        [_dump_sender(sender, digests) for sender in group.senders.values()],
        [one if one.message is None and one.above is None else _dump_held(one) for one in group.held.values()],
        None if options is NO_OPTIONS else options,
        group.members,
        group.release.dump(),
        {} if group.keyring is None else group.keyring.added,
        None if group.repair_timers is None else group.repair_timers.dump(),
        [(*kind, digest) for kind, digest in group.took_effect.items()],
    )
    if due_ms is None:
        return bytes((VERSION,)) + _encode(dumped)
    return _TIMED_HEAD.pack(VERSION_TIMED, due_ms) + _encode(dumped)


def deadline_ms(blob: bytes) -> int | None:
    """The time of the log from which a tick may do something in this group; read without decoding the rest."""
    return _TIMED_HEAD.unpack_from(blob)[1] if blob[0] == VERSION_TIMED else None


def restore(key: bytes, blob: bytes, shared: Shared) -> Group:
    """The group that `snapshot` wrote."""
    dumped = _decode(_body(key, blob))
    if dumped.order not in shared.orders:
        raise Refused(
            f"The group {key.decode()!r} is ordered by {dumped.order}, which this program does not know: register that "
            "order (precede.register) before."
        )
    group = Group(key, order=dumped.order, partition=dumped.partition, shared=shared)
    if dumped.options is not None:
        group.configure(dumped.order, dumped.options)
    group.begun = True
    group.position = dumped.position
    group.members = dumped.members
    group.took_effect = {(kind, name, epoch): digest for kind, name, epoch, digest in dumped.took_effect}
    for one in dumped.senders:
        group.add_sender(_load_sender(one))
    for held in dumped.held:
        if held.id is None:
            _read_again(group, held)  # type: ignore[unreachable]  # elsewhere it has one
    if dumped.held:
        group.hold_again(dumped.held)
    if group.keyring is not None:
        for name, keys in dumped.keys.items():
            for epoch, key in keys:
                group.keyring.add(name, epoch, key)
    if dumped.kept is not None:
        group.release.load(dumped.kept)
    if dumped.repair_timers is not None:
        group.repair_timers = load_repair_timers(dumped.repair_timers)
        shared.holding.add(group)
    if group.held:
        group.release.relink(group.held.values())
    group.plain_partition = None  # the first record may be covered, and it is a change
    return group


def outline(key: bytes, blob: bytes) -> Outline:
    """Order, options, members and position of the group that `snapshot` wrote, at a tenth of the cost."""
    return _decode_outline(_body(key, blob))


def _body(key: bytes, blob: bytes) -> memoryview:
    """What stands behind the version, and the time where it has one."""
    if blob[0] not in (VERSION, VERSION_TIMED):
        raise Refused(
            f"The state of group {key.decode()!r} has version {blob[0]}, and this precede reads up to {VERSION_TIMED}: "
            "run the version that wrote it, or a newer one."
        )
    return memoryview(blob)[1 if blob[0] == VERSION else _TIMED_HEAD.size :]


def _dump_sender(sender: SenderRuns, digests: int) -> DumpedSender:
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


def _load_sender(dumped: DumpedSender) -> SenderRuns:
    sender = SenderRuns(dumped.name, dumped.epoch)
    sender.highest = dumped.highest
    sender.digests = dumped.digests
    sender.fence = dumped.fence
    if dumped.abandoned is not None:
        sender.abandoned = _load_runs(dumped.abandoned)
    if dumped.refused is not None:
        sender.refused = _load_runs(dumped.refused)
    sender.fill(dumped.settled)
    if isinstance(dumped.recent, int):
        sender.recent_last = dumped.recent
    else:
        sender.recent_seqs = dumped.recent
        sender.recent_last = dumped.recent[-1]
    return sender


def _load_runs(dumped: DumpedRuns) -> Runs:
    runs = Runs()
    runs.fill(dumped)
    return runs


def _dump_held(one: HeldMessage) -> HeldMessage:
    """A held message without what was read of it; the id is left out where the value has to be read again anyway."""
    id_ = one.id if one.message is None else None
    return HeldMessage(one.offset, one.arrived_ms, one.rank, one.value, id_, one.watch)  # type: ignore[arg-type]


def _read_again(group: Group, one: HeldMessage) -> None:
    """Set the id of a held message, and what was read of it where its order may still ask for that."""
    assert one.value is not None
    assert one.watch is not None
    record = read(one.value, group.limits)
    assert isinstance(record, Message)
    one.id = record.sender, record.epoch, record.seq  # type: ignore[assignment]  # it was read before
    one.message = None if group.order.waits_once and waits_for_id(one.watch) else record
