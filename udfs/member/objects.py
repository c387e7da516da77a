"""Objects whose methods are invoked by messages: the client's and the host's half (object-based protocol, 4).

An **instance** is one execution of a method on an object. The client's half stamps what an instance sends: it names
the direct significant predecessors, so that the kernel waits for those and nothing else. The host's half applies the
ready rule: an instance waits while a conflicting one runs, or waits before it.

    counter: increment and show conflict, two increments do not
    delivered increment, increment   -> both run
    delivered show                   -> waits for both
    delivered increment              -> waits for show, which came first

Rulings: "conflict" is a symmetric table and never closed transitively; otherwise two increments would conflict because
each conflicts with a show. Identifiers are tuples, because as text 10i0 sorts before 2i0. Stamp, then count: the first
message of an instance is number 0. Receiving a message also merges its identifier, or Table 2's m2 has no vector.
`cid` is not used: it forgets the older of two compatible instances. Theorem 2 is false, so vectors alone order nothing:
of the messages they show to be earlier, only conflicting ones are named.
Besides those predecessors a message names what its instance received and sent before, and what committed instances
that conflict with it received and sent (Table 1). It also names what its object sent earlier that is still on its way,
because a third object that receives it may pass the information on.
An instance that could still be undone stays in the queue until its caller says `commit` or `abort` (2.2, 4.3).
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from precede.udfs.records.messages import Id

GlobalId = tuple[int, str, int]
"""(oid, object, no): message number `no` of the instance (oid, object)."""

Vector = dict[str, GlobalId]
"""The latest known message of each object: the document's object vector, without its zeros."""

Kind = Literal["request", "response", "data"]

AFTER_MAX = 20
"""How many predecessors a record may name (contract, section 2)."""
KNOWN_MAX = 2_000
"""How many messages of its group an object remembers; older ones were delivered long before its next message."""


class Conflicts:
    """Which operations conflict: a symmetric table, never closed transitively."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs: set[tuple[str, str]] = set()
        for one, other in pairs:
            self._pairs |= {(one, other), (other, one)}

    def between(self, one: str, other: str) -> bool:
        return (one, other) in self._pairs


class ObjectMessage(msgspec.Struct, frozen=True):
    """One message of the group, with the fields that the rules need."""

    id: Id
    source: str
    """The object that sent it."""
    to: tuple[str, ...]
    instance: tuple[int, str]
    """The instance that sent it: (oid, object), its `sid`."""
    no: int
    op: str
    """The method that is invoked, or that this responds to."""
    sender_op: str
    """The method that the sending instance executes."""
    type: Kind
    vector: Vector
    after: tuple[Id, ...] = ()

    @property
    def global_id(self) -> GlobalId:
        return (*self.instance, self.no)


class Draft(NamedTuple):
    """The stamp of a message: all that its record needs besides its id and its data."""

    object: dict[str, Any]
    to: list[str]
    after: list[Id]
    no: int
    vector: Vector


def was_sent_before(one: ObjectMessage, other: ObjectMessage) -> bool:
    """Whether the vectors show that `one` was sent before `other` (ordering rule, 1 and 2)."""
    if one.source == other.source:
        return one.global_id < other.global_id
    known = other.vector.get(one.source)
    if known is None or one.global_id > known:
        return False
    back = one.vector.get(other.source)
    if back is not None and back > other.global_id:
        return False
    rest = one.vector.keys() - {one.source, other.source}
    return all(name in other.vector and one.vector[name] <= other.vector[name] for name in rest)


def precedes(one: ObjectMessage, other: ObjectMessage, conflicts: Conflicts) -> bool:
    """Whether `one` is a direct significant predecessor of `other`, by their stamps alone."""
    if not set(one.to) & set(other.to) or not was_sent_before(one, other):
        return False
    if one.source == other.source:
        return one.instance == other.instance or conflicts.between(one.sender_op, other.sender_op)
    return one.type == other.type == "request" and conflicts.between(one.op, other.op)


class ObjectClient:
    """One object's clock and vector, and the messages of its group that it knows."""

    def __init__(self, name: str, conflicts: Conflicts) -> None:
        self.name = name
        self.conflicts = conflicts
        self.oid = 0
        self.vector: Vector = {}
        self.known: OrderedDict[Id, ObjectMessage] = OrderedDict()
        """Delivered messages, and those that this object sent."""
        self.in_flight: dict[Id, ObjectMessage] = {}
        """Messages that this object sent and has not seen delivered."""
        self._ended: dict[str, list[Id]] = {}
        """Of each method, the last messages that its committed instances received and sent."""

    def start(self, op: str, request: ObjectMessage | None = None) -> "Instance":
        """Begin an execution of a method; `request` invoked it."""
        self.oid += 1
        before = [id_ for other, ids in self._ended.items() if self.conflicts.between(op, other) for id_ in ids]
        instance = Instance(self, (self.oid, self.name), op, before)
        if request is not None:
            instance.receive(request)
        return instance

    def deliver(self, message: ObjectMessage) -> None:
        """Take in a delivered message of the group, with any recipients."""
        self.oid = max(self.oid, message.instance[0])
        self.in_flight.pop(message.id, None)
        self._remember(message)

    def track_sent(self, message: ObjectMessage) -> None:
        """Remember a message of this object that is on its way."""
        self.in_flight[message.id] = message
        self._remember(message)

    def ended(self, op: str, last: list[Id]) -> None:
        """An instance of a method has committed; `last` is what it sent last, and received since."""
        implied = self._below(last).union(last)
        earlier = [id_ for id_ in self._ended.get(op, []) if id_ not in implied]
        self._ended[op] = [*earlier, *last][-AFTER_MAX:]

    def _remember(self, message: ObjectMessage) -> None:
        self.known[message.id] = message
        while len(self.known) > KNOWN_MAX:
            self.known.popitem(last=False)

    def predecessors(self, message: ObjectMessage, causes: list[Id]) -> list[Id]:
        """The ids a message must name: causes and direct significant predecessors, without those that these name."""
        significant = [one.id for one in reversed(self.known.values()) if precedes(one, message, self.conflicts)]
        known = message.vector.get(self.name, (0, "", 0))
        flying = [one.id for one in self.in_flight.values() if one.global_id <= known]
        found = dict.fromkeys([*causes, *flying, *significant])
        implied = self._below(found)
        # The limit drops ids that were delivered before this message is sent: the log has them before it anyway.
        named = [id_ for id_ in found if id_ not in implied]
        return sorted(named, key=lambda id_: id_ not in self.in_flight)[:AFTER_MAX]

    def _below(self, ids: Iterable[Id]) -> set[Id]:
        """All that these messages name, directly or through others, as far as remembered."""
        below: set[Id] = set()
        walk = [self.known[id_] for id_ in ids if id_ in self.known]
        for one in walk:  # grows during the loop
            for id_ in one.after:
                if id_ not in below:
                    below.add(id_)
                    if id_ in self.known:
                        walk.append(self.known[id_])
        return below


class Instance:
    """One execution of a method, from its start to its commit or abort."""

    def __init__(self, client: ObjectClient, sid: tuple[int, str], op: str, before: Iterable[Id] = ()) -> None:
        self.sid = sid
        self.op = op
        self.vector: Vector = client.vector.copy()
        self._client = client
        self._no = 0
        self._causes: list[Id] = list(dict.fromkeys(before))
        """What it sent last, and what it received since; at first, what conflicting instances before it did."""

    def receive(self, message: ObjectMessage) -> None:
        """Take in a message for this instance: merge its vector and its own identifier."""
        merge(self.vector, message.vector)
        merge(self.vector, {message.source: message.global_id})
        if message.id not in self._causes:
            self._causes.append(message.id)

    def draft(self, op: str, type_: Kind, to: Iterable[str]) -> Draft:
        """Stamp the next message of this instance; call `sent` afterwards with its id."""
        message = self._message(("", 0, 0), op, type_, tuple(to), ())
        after = self._client.predecessors(message, self._causes)
        stamp = {"instance": list(self.sid), "op": op, "sender_op": self.op, "type": type_}
        return Draft(stamp, list(message.to), after, message.no, message.vector)

    def sent(self, draft: Draft, id_: Id) -> None:
        """The draft was sent: stamp first, then count."""
        op, type_ = draft.object["op"], draft.object["type"]
        message = self._message(id_, op, type_, tuple(draft.to), tuple(draft.after))
        self._client.track_sent(message)
        self.vector[self._client.name] = message.global_id
        self._causes = [id_]
        self._no += 1

    def commit(self) -> None:
        """Merge this instance's knowledge into its object; an aborted instance never calls this."""
        merge(self._client.vector, self.vector)
        self._client.ended(self.op, self._causes)

    def _message(self, id_: Id, op: str, type_: Kind, to: tuple[str, ...], after: tuple[Id, ...]) -> ObjectMessage:
        return ObjectMessage(
            id=id_,
            source=self._client.name,
            to=to,
            instance=self.sid,
            no=self._no,
            op=op,
            sender_op=self.op,
            type=type_,
            vector=self.vector.copy(),
            after=after,
        )


class Queued(NamedTuple):
    """An instance in the queue of its object."""

    op: str
    transaction: Id | None = None
    """What it belongs to; instances of one transaction do not wait for its end."""
    undecided: bool = False
    """Whether it has executed, and can still be undone."""


class InstanceQueue:
    """The ready rule at an object's host: compatible instances run at once, conflicting ones in order of delivery."""

    def __init__(self, conflicts: Conflicts) -> None:
        self.conflicts = conflicts
        self.running: dict[Id, Queued] = {}
        self.waiting: dict[Id, Queued] = {}

    def arrive(self, id_: Id, op: str, transaction: Id | None = None) -> bool:
        """Take a delivered request; returns whether its instance may start now."""
        new = Queued(op, transaction)
        ready = self._may_start(new, self.waiting.values())
        (self.running if ready else self.waiting)[id_] = new
        return ready

    def finish(self, id_: Id) -> list[Id]:
        """End an instance, or take one out that waits; returns those that may start now, in order of delivery."""
        if self.running.pop(id_, None) is None:
            del self.waiting[id_]
        return self._start_ready()

    def keep_undecided(self, id_: Id) -> list[Id]:
        """An instance has executed and can still be undone; returns those of its transaction that may start now."""
        self.running[id_] = self.running[id_]._replace(undecided=True)
        return self._start_ready()

    def _start_ready(self) -> list[Id]:
        started: list[Id] = []
        before: list[Queued] = []
        for id_, one in list(self.waiting.items()):
            if self._may_start(one, before):
                self.running[id_] = self.waiting.pop(id_)
                started.append(id_)
            else:
                before.append(one)
        return started

    def _may_start(self, new: Queued, before: Iterable[Queued]) -> bool:
        """Whether nothing that runs, and nothing that waits before it, conflicts with an instance.

        What waits for the end of the new one's own transaction is passed over, or neither would ever start.
        """
        own = [one for one in self.running.values() if one.undecided and one.transaction == new.transaction]
        others = [one for one in self.running.values() if one not in own]
        others += [one for one in before if not any(self.conflicts.between(one.op, mine.op) for mine in own)]
        return not any(self.conflicts.between(new.op, one.op) for one in others)


def merge(vector: Vector, other: Vector) -> None:
    """Raise each entry of `vector` to that of `other`."""
    for name, id_ in other.items():
        if name not in vector or id_ > vector[name]:
            vector[name] = id_
