"""What a peer keeps of a group from one start to the next, as plain data."""

from typing import Any

import msgspec

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.peer_group import PeerGroup


def dump_group(peer: PeerGroup) -> dict[str, Any]:
    """Everything of one group. Of messages only the own ones: what others said comes from others again."""
    kept = peer.sync_schedule.kept
    own = [[*id_, value] for id_, value in kept.messages.items() if id_[0] == peer.name]
    return {
        "epoch": peer.speaking.epoch,
        "default_order": peer.default_order,
        "speaking": peer.speaking.dump(),
        "ordering": peer.ordering.dump(),
        "controls": peer.records.all(),
        "have": kept.have(),
        "own": own,
        "number": peer.sync_schedule.synchroniser.number,
        "unlogged": peer.log_coverage.lacking,
        "has_log": peer.log_coverage.is_known,
        "told_before": [(*who, runs.dump()) for who, runs in peer.handed_over_before.items()],
        "joined": peer.own_join.joined,
        "left": peer.own_join.left,
    }


def load_group(peer: PeerGroup, dumped: dict[str, Any], now_ms: float, *, new_epoch: int | None) -> None:
    """Go on where `dump_group` was; with a new epoch if more may have been said since."""
    peer.load_records(dumped["controls"])
    peer.ordering.load(dumped["ordering"], now_ms)
    peer.speaking.adopt_order(peer.ordering.order)
    peer.speaking.load(dumped["speaking"])
    kept = peer.sync_schedule.kept
    peer.sync_schedule.synchroniser.number = dumped["number"]
    unlogged = {tuple(id_) for id_ in dumped["unlogged"]}
    peer.log_coverage.is_known = dumped.get("has_log", False)
    for name, epoch, seq, value in dumped["own"]:
        kept.store((name, epoch, seq), value, now_ms=now_ms)
        if (name, epoch, seq) in unlogged:
            peer.log_coverage.said((name, epoch, seq), len(value))
    for name, epoch, told in dumped.get("told_before", []):
        peer.handed_over_before[name, epoch] = Runs()
        peer.handed_over_before[name, epoch].fill(told)
    for name, epoch, dumped_runs in dumped["have"]:
        runs = Runs()
        runs.fill(dumped_runs)
        for low, high in runs.runs():
            kept.note_gone((name, epoch), low, high)
    peer.own_join.joined, peer.own_join.left = dumped["joined"], dumped["left"]
    if new_epoch is not None:
        peer.begin_epoch(new_epoch)
        peer.own_join.joined = False


def decode_state(text: bytes) -> dict[str, Any]:
    """What `encode_state` wrote."""
    found: dict[str, Any] = msgspec.msgpack.decode(text)
    return found


def encode_state(state: dict[str, Any]) -> bytes:
    """What `Segment.dump` returned, as bytes for a file."""
    return msgspec.msgpack.encode(state)
