"""A group of peers over a bad network, with a record of what really happened.

Peers send over a broadcast medium that loses, repeats and reorders. They publish each message through several gateways,
each with its own delays and retries, so a reply may reach the log before its question. The simulation records which
message answers which, and what each peer had received when it sent. Orders are judged against this record, never
against the stamps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, NamedTuple, TypeAlias

from precede.udfs.orders import ORDERS
from precede.udfs.records.wire import encode_message

Id: TypeAlias = tuple[str, int, int]

GROUP = "chat"
NAMES = ("ann", "bob", "cem", "dil", "eva", "fay")


class SentMessage(NamedTuple):
    """One message, as it really happened."""

    id: Id
    parent: Id | None
    """The message it answers."""
    past: frozenset[Id]
    """Its causal past: all that its sender had sent or received by then, and the past of those."""
    value: bytes
    """The raw record that its sender published."""
    to: tuple[str, ...] = ()
    """Its recipients, in orders with destinations."""


class Arrival(NamedTuple):
    """One record of the log, as `Holdback.receive` takes it."""

    value: bytes
    key: bytes
    partition: int
    offset: int
    timestamp_ms: int


@dataclass
class History:
    """The messages in the order they were sent, and the log."""

    order: str
    group: str = GROUP
    said: dict[Id, SentMessage] = field(default_factory=dict)
    log: list[Arrival] = field(default_factory=list)
    final_heartbeats: list[bytes] = field(default_factory=list)
    """A final heartbeat of each peer, for the orders that wait for every member."""

    def first_arrivals(self) -> dict[Id, int]:
        """The offset at which each message first reached the log."""
        id_of = {one.value: one.id for one in self.said.values()}
        first: dict[Id, int] = {}
        for arrival in self.log:
            if arrival.value in id_of:  # and not the record that created the group
                first.setdefault(id_of[arrival.value], arrival.offset)
        return first

    def lost(self) -> set[Id]:
        """The messages that never reached the log."""
        return self.said.keys() - self.first_arrivals().keys()

    def ancestors(self, id_: Id) -> set[Id]:
        """The message, the one it answers, and so on to the root."""
        chain = set()
        at: Id | None = id_
        while at is not None:
            chain.add(at)
            at = self.said[at].parent
        return chain

    def earlier_of_sender(self, id_: Id) -> set[Id]:
        """The message and all earlier ones of its sender."""
        name, epoch, seq = id_
        return {(name, epoch, number) for number in range(1, seq + 1)}

    def sent_before(self, id_: Id, at: str | None = None) -> set[Id]:
        """The message and all that precedes it at this destination, or at any of its own if None."""
        places = self.said[id_].to if at is None else (at,)
        return {one for one in self.said[id_].past if set(self.said[one].to) & set(places)} | {id_}

    def places(self, id_: Id) -> tuple[str | None, ...]:
        """Where a message is delivered: at each destination, or in the group's one sequence (None)."""
        return self.said[id_].to or (None,)


# What must really be in the log before a message may be released, itself included. The message is delivered in exactly
# the step that brings the last of these.
NEEDS: dict[str, Any] = {
    "s_b": History.ancestors,
    "fifo": History.earlier_of_sender,
    "causal": lambda history, id_: history.said[id_].past | {id_},
    "causal_p2p": History.sent_before,
    "object": History.ancestors,
    "total": lambda history, id_: {id_},
}


def needs(history: History, id_: Id, at: str | None) -> set[Id]:
    """What a message needs at one of its destinations."""
    found: set[Id] = NEEDS[history.order](history, id_) if at is None else history.sent_before(id_, at)
    return found


def step(history: History, id_: Id, at: str | None, first: dict[Id, int]) -> int | None:
    """The offset of the record that must release a message there, by formula; None if it must stay held."""
    needed = needs(history, id_, at)
    if any(one not in first for one in needed):
        return None
    return max(first[one] for one in needed)


@dataclass
class _Peer:
    name: str
    seq: int = 0
    received: list[Id] = field(default_factory=list)
    past: set[Id] = field(default_factory=set)
    got: set[Id] = field(default_factory=set)
    stamps: Any = None
    skew: int = 0

    def receive(self, history: History, id_: Id) -> None:
        """Receive a message, after everything for this peer that precedes it."""
        said = history.said[id_]
        self.received.append(id_)
        for known in ({id_} | said.past) - self.got:
            if not history.said[known].to or self.name in history.said[known].to:
                self.stamps.observe(json.loads(history.said[known].value))
                self.got.add(known)
        self.past |= {id_} | said.past


def converse(
    random: Random,
    order: str,
    *,
    group: str = GROUP,
    peers: int = 4,
    messages: int = 20,
    gateways: int = 2,
    loss: float = 0.0,
    repeats: float = 0.1,
    delay: int = 20,
    replies: float = 0.7,
    beats: float = 0.0,
    skew: int = 0,
    least: int = 0,
    options: dict[str, Any] | None = None,
) -> History:
    """Play one conversation. `loss` applies to the path to the log, where a lost message stays lost.

    For orders by clocks: `beats` is how often a message brings a heartbeat, `skew` the largest error of a clock,
    `least` the minimal delay between peers, `options` those of the group.
    """
    history = History(order, group)
    everybody = [_Peer(name, stamps=ORDERS[order].stamps_of(name)) for name in NAMES[:peers]]
    slowness = [random.randint(1, delay) for _ in range(gateways)]
    events: list[tuple[int, int, str, Any]] = []
    if ORDERS[order].waits_for_members:  # these wait for every member, so they must know them all from the start
        first = created(order, NAMES[:peers], group=group, **(options or {}))
        history.log.append(Arrival(first, group.encode(), 0, 0, 0))
    for one in everybody:
        one.skew = random.randint(-skew, skew)
    number = count()

    def later(wait: int, what: str, subject: Any) -> None:
        heappush(events, (now + wait, next(number), what, subject))

    now = 0
    for at in range(messages):
        heappush(events, (at * 5, next(number), "speak", random.choice(everybody)))
    while events:
        now, _, what, subject = heappop(events)
        if what == "speak":
            to = random.sample(NAMES[:peers], random.randint(1, peers)) if order == "causal_p2p" else []
            said = _speak(random, subject, history, replies, now, to)
            for other in everybody:
                is_for = other.name in said.to if said.to else other is not subject
                if is_for and random.random() > 0.2:  # the medium loses one in five
                    later(least + random.randint(0, delay), "receive", (other, said.id))
            if random.random() < beats:
                fellow = random.choice(everybody)
                beat = heartbeat(fellow.stamps, now + fellow.skew, group=group)
                later(random.randint(0, random.choice(slowness)), "arrive", beat)
            if random.random() >= loss:
                later(random.randint(0, random.choice(slowness)), "arrive", said)
                while random.random() < repeats:
                    later(random.randint(0, 3 * delay), "arrive", said)
        elif what == "receive":
            peer, id_ = subject
            peer.receive(history, id_)
        else:
            value = subject.value if isinstance(subject, SentMessage) else subject
            history.log.append(Arrival(value, group.encode(), 0, len(history.log), now))
    if ORDERS[order].waits_for_members:
        for peer in everybody:
            for known in history.said.keys() - peer.past:
                peer.stamps.observe(json.loads(history.said[known].value))
            history.final_heartbeats.append(heartbeat(peer.stamps, now + peer.skew, group=group))
    return history


def heartbeat(stamps: Any, clock_ms: int, *, group: str = GROUP) -> bytes:
    """The promise that a member can make now."""
    return json.dumps({"group": group, **stamps.heartbeat(clock_ms=clock_ms)}).encode()


def created(order: str, members: Iterable[str], *, group: str = GROUP, **options: Any) -> bytes:
    """The record that creates the group."""
    record = {"group": group, "kind": "create", "options": {"order": order, **options}, "members": list(members)}
    return json.dumps(record).encode()


def _speak(random: Random, peer: _Peer, history: History, replies: float, now: int, to: list[str]) -> SentMessage:
    """A peer answers a message it knows, or starts a thread."""
    peer.seq += 1
    id_ = (peer.name, 0, peer.seq)
    parent = random.choice(peer.received[-4:]) if peer.received and random.random() < replies else None
    stamp = peer.stamps.stamp(after=[] if parent is None else [parent], to=to, clock_ms=now + peer.skew)
    fields = {name: value for name, value in stamp.items() if name not in ("sender", "epoch", "seq")}
    value = encode_message(history.group, peer.name, 0, peer.seq, data=f"message {len(history.said)}", **fields)
    said = SentMessage(id_, parent, frozenset(peer.past), value, tuple(to))
    history.said[id_] = said
    if not to:
        peer.got.add(id_)
    peer.received.append(id_)
    peer.past.add(id_)
    return said
