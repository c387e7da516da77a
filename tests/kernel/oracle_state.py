"""The state of the naive loop of oracle.py: everything, in plain lists, dicts and sets."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.kernel.judge import SEQ_MAX, Fields
from tests.kernel.oracle_clocks import Clocks

Id: TypeAlias = tuple[str, int, int]
Who: TypeAlias = tuple[str, int]

VALUE_BYTES_MAX = 64 * 1024


@dataclass
class Waiting:
    """A held message, or (without a value) the stand-in for an abandoned one."""

    id: Id
    fields: Fields | None
    value: bytes | None
    offset: int
    rank: int
    arrived_ms: int


@dataclass
class Group:
    """Everything ever decided in one group."""

    name: str
    partition: int
    order: str
    window: int
    digests: int
    closed: bool = False
    accepted: bool = False
    position: int = 0
    delivered: dict[Id, bytes | None] = field(default_factory=dict)
    recent: dict[Who, list[int]] = field(default_factory=dict)
    condemned: set[Id] = field(default_factory=set)
    held: list[Waiting] = field(default_factory=list)
    highest: dict[Who, int] = field(default_factory=dict)
    fences: dict[Who, int] = field(default_factory=dict)
    members: dict[str, tuple[int, bool]] = field(default_factory=dict)
    joined: set[Who] = field(default_factory=set)
    took_effect: dict[tuple[Any, ...], bytes] = field(default_factory=dict)
    """The last membership record of each kind: of the group, of a name, or of a member and epoch."""
    placed_now: dict[Id, int] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=Clocks)
    positions: dict[str, int] = field(default_factory=dict)
    """The last position of each destination; this and all below is for orders with destinations."""
    named: set[str] = field(default_factory=set)
    got: dict[Id, set[str]] = field(default_factory=dict)
    merged: dict[str, dict[Who, int]] = field(default_factory=dict)
    gave_up: bool = False

    given_up: dict[Who, set[int]] = field(default_factory=dict)
    forgotten: set[Id] = field(default_factory=set)

    def give_up(self, id_: Id, runs_max: int) -> None:
        """If there are too many runs, forget the first one unless part of it waits for its turn."""
        seqs = self.given_up.setdefault(id_[:2], set())
        seqs.add(id_[2])
        if runs_of(id_[:2], [(*id_[:2], seq) for seq in seqs]) > runs_max:
            end = min(seq for seq in seqs if seq + 1 not in seqs)
            first = {(*id_[:2], seq) for seq in seqs if seq <= end}
            if first <= self.delivered.keys():
                self.forgotten |= first
                seqs -= {seq for _, _, seq in first}

    def fence_of(self, who: Who) -> int:
        """The seq above which nothing of a sender counts; an epoch older than the last joined one is fenced whole."""
        last, _ = self.members.get(who[0], (0, False))
        return self.fences.get(who, 0 if who[1] < last else SEQ_MAX)


def runs_of(who: Who, ids: Iterable[Id]) -> int:
    """The number of runs of one sender's seqs."""
    seqs = {id_[2] for id_ in ids if id_[:2] == who}
    return sum(1 for seq in seqs if seq - 1 not in seqs)


def buried(value: bytes | None) -> dict[str, Any]:
    """The raw value as in a dead letter: at most its first 64 KiB, in whole characters, or base64."""
    if value is None:
        return {"value": None}
    head = value[:VALUE_BYTES_MAX]
    cut: dict[str, Any] = {"truncated": True} if len(value) > VALUE_BYTES_MAX else {}
    try:
        value.decode()
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(head).decode(), **cut}
    while True:
        try:
            return {"value": head.decode(), **cut}
        except UnicodeDecodeError:
            head = head[:-1]


def about_of(fields: Fields) -> tuple[Any, ...]:
    """Which membership records repeat each other if they have the same bytes."""
    kind = fields["kind"]
    if kind == "evict":
        return (kind, *fields["member"])
    names = {"create": [], "join": ["sender"], "leave": ["sender", "epoch"]}[kind]
    return (kind, *[fields[name] for name in names])


def end_of(fields: Fields) -> tuple[str, int, int]:
    """Name and epoch that a `leave` or `evict` ends, and the last seq that counts."""
    if fields["kind"] == "leave":
        return fields["sender"], fields["epoch"], fields["last"]
    return (*fields["member"], fields["cut"])
