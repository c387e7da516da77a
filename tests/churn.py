"""A group whose members join, leave, crash and return over a bad network, with a job that evicts and repairs.

Members sometimes hear each other directly, read the ordered records at their own pace (some twice), and publish through
gateways that lose, repeat and reorder. The kernel's own records on a tick are handled as in the running job: a request
for repair goes to a member that has the message, an `abandon` or `evict` into the log. In orders that do not wait for
members, a person evicts crashed ones. Everything is in the log, which can be replayed and cut anywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from precede.udfs.holdback import Holdback
from precede.udfs.limits import ASK_AGAIN_MS_MAX, Patience
from precede.udfs.orders import ORDERS
from precede.udfs.peers.views import View, members, raise_standing, standings
from precede.udfs.records.published import JobRecord
from precede.udfs.records.wire import encode_message
from tests.simulation import GROUP, NAMES, Arrival, Id, created

PATIENCE = Patience(ask_after_ms=30, give_up_ms=400, silent_ms=500)
ROUNDS_MAX = 80
"""After this many rounds without losses and new messages, everything must be settled."""


@dataclass
class Member:
    """One member in one epoch: what it sent, what it received, and which ordered records it read."""

    name: str
    epoch: int
    stamps: Any
    begins: int
    """The position after which it reads."""
    read: int = 0
    """How many of the ordered records it has read."""
    is_in: bool = False
    is_out: bool = False
    said: dict[Id, bytes] = field(default_factory=dict)
    texts: dict[Id, bytes] = field(default_factory=dict)
    """The messages that it can publish again."""
    past: set[Id] = field(default_factory=set)
    position: int = 0
    sequence: list[bytes] = field(default_factory=list)
    """The ordered records that it accepted by the consumer's rule."""

    @property
    def who(self) -> tuple[str, int]:
        return self.name, self.epoch


class Churn:
    """One group: its members, the path to the log, and the log."""

    def __init__(self, random: Random, order: str, *, closed: bool, loss: float = 0.15, repeats: float = 0.1) -> None:
        self.random = random
        self.order = order
        self.by_clocks = ORDERS[order].waits_for_members
        self.by_destination = order == "causal_p2p"
        self.closed = closed or self.by_clocks
        self.loss = loss
        self.repeats = repeats
        self.now = 0
        self.kernel = Holdback(order=order, patience=PATIENCE)
        self.log: list[Arrival] = []
        self.ordered: list[bytes] = []
        self.dead: list[dict[str, Any]] = []
        self.view: View = {}
        self.alive: dict[str, Member] = {}
        self.gone: list[Member] = []
        self.pasts: dict[Id, frozenset[Id]] = {}
        """What each message's sender had sent or received by then: its causal past, including itself."""
        self.parents: dict[Id, Id | None] = {}
        self.to: dict[Id, list[str]] = {}
        self.did: Counter[str] = Counter()
        self._path: list[tuple[int, int, bytes]] = []
        self._number = count()
        self._epochs: Counter[str] = Counter()
        first = NAMES[:3]
        self.append(created(order, first, closed=self.closed))
        for name in first:
            self.alive[name] = self._member(name)

    # ── the log and the path to it ────────────────────────────────────────────────────────────────────────────────

    def append(self, value: bytes) -> None:
        """Append a record to the log, and pass it to the kernel at once."""
        key = None if value == TICK else GROUP.encode()
        self.log.append(Arrival(value, key, 0, len(self.log), self.now))  # type: ignore[arg-type]  # a tick has no key
        self.kernel.receive(*self.log[-1])
        self.dead += [json.loads(letter) for letter in self.kernel.dead]
        for record in self.kernel.ordered:
            self.ordered.append(record)
            fields = json.loads(record)
            for name, standing in standings(fields):
                raise_standing(self.view, name, standing)
        said = list(self.kernel.own)
        self.kernel.clear()
        for own in said:
            self._do(own)

    def _do(self, own: JobRecord) -> None:
        """Do what the job does with its own record: write it to the log, or send it to members, who may miss it."""
        record = json.loads(own.value)
        if own.topic == "raw":
            self.did["given up" if record["kind"] == "abandon" else "evicted"] += 1
            heappush(self._path, (self.now + self.random.choice([1, 20]), next(self._number), own.value))
        elif record["kind"] == "ask" and self.random.random() >= self.loss:
            asked = [record["to"]] if record["to"] is not None else sorted(self.alive)
            for name in [name for name in asked if name in self.alive]:
                self._repair(self.alive[name], record)

    def _repair(self, member: Member, gap: dict[str, Any]) -> None:
        """A member publishes the messages of a gap that it has again, byte for byte."""
        for seq in range(gap["first"], gap["last"] + 1):
            value = member.texts.get((gap["sender"], gap["epoch"], seq))
            if value is not None:
                self.publish(value, loss=self.loss)
                self.did["repaired"] += 1

    def publish(self, value: bytes, *, loss: float) -> None:
        """Send a record to the log over a path that loses, delays and repeats."""
        if self.random.random() < loss:
            self.did["lost"] += 1
            return
        while True:
            heappush(self._path, (self.now + self.random.choice([1, 5, 40]), next(self._number), value))
            if self.random.random() >= self.repeats:
                return

    def arrive(self) -> None:
        while self._path and self._path[0][0] <= self.now:
            self.append(heappop(self._path)[2])

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _member(self, name: str, epoch: int = 0) -> Member:
        # A member that needs the current clocks reads from the beginning; others may begin at the end.
        begins = 0 if self.by_clocks or self.by_destination else self.random.choice([0, len(self.ordered)])
        return Member(name, epoch, ORDERS[self.order].stamps_of(name, epoch), begins, read=begins, position=begins)

    def come(self, name: str) -> None:
        """A new member joins, or an earlier one returns with a larger epoch."""
        epoch = self._epochs[name] = self._epochs[name] + 1
        member = self.alive[name] = self._member(name, epoch)
        self.publish(self._join(member), loss=self.loss)
        self.did["joined"] += 1

    def _join(self, member: Member) -> bytes:
        return _record(kind="join", sender=member.name, epoch=member.epoch)

    def leave(self, member: Member) -> None:
        self.publish(_record(kind="leave", sender=member.name, epoch=member.epoch, last=member.stamps.seq), loss=0.0)
        self.gone.append(self.alive.pop(member.name))
        self.did["left"] += 1

    def crash(self, member: Member) -> None:
        """A member stops; it may not know that the group goes on without it."""
        self.gone.append(self.alive.pop(member.name))
        self.did["crashed"] += 1

    def come_back(self, member: Member) -> None:
        """A live member was evicted because it was silent too long: it learns that, and joins again."""
        self.gone.append(self.alive.pop(member.name))
        self.come(member.name)

    def speak(self, member: Member) -> None:
        """A member answers a message it knows, or starts a thread; some of the others hear it directly."""
        if self.by_clocks and not member.is_in and member.epoch > 0:
            return  # its own join shows it the current clocks
        known = [id_ for id_ in list(member.texts)[-5:] if id_ in self.parents]
        parent = self.random.choice(known) if known and self.random.random() < 0.7 else None
        to = self.random.sample(NAMES, self.random.randint(1, 3)) if self.by_destination else list(NAMES)
        stamp = member.stamps.stamp(after=[] if parent is None else [parent], clock_ms=self.now, to=to)
        fields = {name: value for name, value in stamp.items() if name not in ("sender", "epoch", "seq")}
        id_ = (member.name, member.epoch, stamp["seq"])
        value = encode_message(GROUP, *id_, data=f"message {len(self.pasts)}", **fields)
        member.said[id_] = member.texts[id_] = value
        member.past.add(id_)
        self.pasts[id_], self.parents[id_], self.to[id_] = frozenset(member.past), parent, to
        self.publish(value, loss=self.loss)
        self.did["said"] += 1
        for other in self.alive.values():
            if other is not member and other.name in to and self.random.random() < 0.5:
                self._hear(other, id_, value)

    def _hear(self, member: Member, id_: Id, value: bytes) -> None:
        member.texts[id_] = value
        for known in sorted(self.pasts[id_] - member.past):
            member.past.add(known)
            if member.name in self.to[known]:
                member.stamps.observe(json.loads(self._text(known)))

    def _text(self, id_: Id) -> bytes:
        return next(one.said[id_] for one in [*self.alive.values(), *self.gone] if id_ in one.said)

    def look(self, member: Member, at_most: int) -> None:
        """A member reads more ordered records, perhaps some again, and applies the consumer's rule."""
        begin = max(member.begins, member.read - self.random.choice([0, 0, 3]))
        end = min(len(self.ordered), member.read + at_most)
        for record in self.ordered[begin:end]:
            fields = json.loads(record)
            if fields.get("destination", member.name) != member.name or fields["position"] <= member.position:
                continue
            assert fields["position"] == member.position + 1, "a hole"
            member.position += 1
            member.sequence.append(record)
            self._took(member, fields)
        member.read = max(member.read, end)

    def _took(self, member: Member, fields: dict[str, Any]) -> None:
        if fields.get("kind", "message") == "message":
            id_ = (fields["sender"], fields.get("epoch", 0), fields["seq"])
            if fields["status"] == "delivered":
                member.texts[id_] = self._text(id_)
                member.past |= self.pasts[id_]
            member.stamps.observe(fields)
            return
        member.stamps.observe(fields)
        for name, (epoch, is_out) in standings(fields):
            if name == member.name and epoch >= member.epoch:
                member.is_in = not is_out and epoch == member.epoch
                member.is_out = is_out or epoch > member.epoch

    def heartbeat(self, member: Member, *, loss: float) -> None:
        """A heartbeat is an event, so it advances the linear clock. Otherwise the clock of a mere listener would stand
        still, because messages that wait for its clock are not delivered to it.
        """
        if self.by_clocks and (member.is_in or member.epoch == 0):
            member.stamps.time += 5
            self.publish(_record(**member.stamps.heartbeat(clock_ms=self.now)), loss=loss)

    # ── operations from outside ───────────────────────────────────────────────────────────────────────────────────

    def put_out_who_crashed(self) -> None:
        for name, epoch in members(self.view).items():
            if not self._is_here(name, epoch):
                cut = self._contiguous(name, epoch)
                self.append(_record(kind="evict", member=[name, epoch], cut=cut))
                self.did["evicted"] += 1

    def _is_here(self, name: str, epoch: int) -> bool:
        return name in self.alive and self.alive[name].epoch == epoch

    def _contiguous(self, name: str, epoch: int) -> int:
        """The last seq up to which the log has all of a member's messages."""
        settled = {one[2] for one in self._settled() if one[:2] == (name, epoch)}
        return next(seq - 1 for seq in count(1) if seq not in settled)

    def _settled(self) -> Iterator[Id]:
        for record in self.ordered:
            fields = json.loads(record)
            if fields.get("kind", "message") == "message":
                yield fields["sender"], fields.get("epoch", 0), fields["seq"]

    # ── the run ───────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, steps: int) -> None:
        """This many random events, then rest: nothing more is lost, and everything must settle."""
        for _ in range(steps):
            self.now += self.random.randint(1, 5)
            self.arrive()
            self._happen()
            for member in list(self.alive.values()):
                self.look(member, self.random.choice([0, 0, 2, 10]))
                if member.is_out:
                    self.come_back(member)
        self.loss = 0.0
        for _ in range(ROUNDS_MAX):
            # The job repeats its requests after some minutes, but evicts members that are silent for that long.
            self.now += 100 if self.by_clocks else ASK_AGAIN_MS_MAX // 10
            self.arrive()
            for member in list(self.alive.values()):
                self.look(member, len(self.ordered))
                if member.is_out:
                    self.come_back(member)
            if self._rests():
                return
            self.append(TICK)
            if not self.by_clocks or not list(self.kernel.held()):
                self.put_out_who_crashed()
            self._finish()
        raise AssertionError(f"no rest: {list(self.kernel.held())}")

    def _happen(self) -> None:
        random = self.random
        here = list(self.alive.values())
        event = random.choices(
            ["speak", "come", "leave", "crash", "zombie", "put out", "heartbeat", "tick"], [60, 4, 2, 2, 3, 2, 15, 12]
        )[0]
        absent = [name for name in NAMES if name not in self.alive]
        if event == "speak" and here:
            self.speak(random.choice(here))
        elif event == "come" and absent:
            self.come(random.choice(absent))
        elif event == "leave" and len(here) > 2:
            self.leave(random.choice(here))
        elif event == "crash" and len(here) > 2:
            self.crash(random.choice(here))
        elif event == "zombie" and self.gone:
            self.speak(random.choice(self.gone))
            self.did["zombies spoke"] += 1
        elif event == "put out" and not self.by_clocks:
            self.put_out_who_crashed()
        elif event == "heartbeat":
            for member in here:
                self.heartbeat(member, loss=self.loss)
        elif event == "tick":
            self.append(TICK)

    def _finish(self) -> None:
        """Each remaining member sends what it knows is missing: its join, its messages, a heartbeat."""
        settled = set(self._settled())
        for member in self.alive.values():
            if not member.is_in and member.epoch > 0:
                self.publish(self._join(member), loss=0.0)
            for id_, value in member.said.items():
                if id_ not in settled:
                    self.publish(value, loss=0.0)
            self.heartbeat(member, loss=0.0)

    def _rests(self) -> bool:
        settled = set(self._settled())
        return (
            not self._path
            and not list(self.kernel.held())
            and members(self.view) == {name: self.alive[name].epoch for name in sorted(self.alive)}
            and all(id_ in settled for member in self.alive.values() for id_ in member.said)
        )


TICK = b'{"kind":"tick"}'


def _record(**fields: Any) -> bytes:
    return json.dumps({"group": GROUP, **fields}).encode()
