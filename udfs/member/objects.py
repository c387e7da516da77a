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
that conflict with it received and sent (Table 1). What compatible instances sent and received is never named, whether
they run side by side or one after the other.
What stands before another message that is named is not named again. Where the rest is more than a record may name, the
instance first says a message to no one that names as many as fit, and names that one instead.
An instance that could still be undone stays in the queue until its caller says `commit` or `abort` (2.2, 4.3).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
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
        self._with: dict[str, dict[str, None]] = {}
        for one, other in pairs:
            self._with.setdefault(one, {})[other] = None
            self._with.setdefault(other, {})[one] = None

    def between(self, one: str, other: str) -> bool:
        return other in self._with.get(one, ())

    def of(self, op: str) -> Iterable[str]:
        """The operations that conflict with this one."""
        return self._with.get(op, ())


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
    gathers: bool = False
    """Whether it is to no one, and only names what the next one has no room to name."""


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
        self._own: dict[str, dict[Id, ObjectMessage]] = {}
        """The own messages that are remembered, by the method that said them."""
        self._others: dict[str, dict[Id, ObjectMessage]] = {}
        """The messages of others that are remembered, by the method that they are about."""
        self._ended: dict[str, dict[Id, None]] = {}
        """Of each method, the last messages that its committed instances received and sent."""
        self._ended_max: dict[str, int] = {}
        """With more than that, delivered ones are left out."""

    def start(self, op: str, request: ObjectMessage | None = None) -> "Instance":
        """Begin an execution of a method; `request` invoked it."""
        self.oid += 1
        before = [id_ for other in self.conflicts.of(op) for id_ in self._ended.get(other, ())]
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
        kept = self._ended.setdefault(op, {})
        for id_ in self._below(last):
            kept.pop(id_, None)
        kept.update(dict.fromkeys(last))
        if len(kept) > self._ended_max.get(op, 2 * AFTER_MAX):
            newest = set([*kept][-AFTER_MAX:])
            self._ended[op] = {id_: None for id_ in kept if id_ in newest or id_ in self.in_flight}
            self._ended_max[op] = 2 * max(AFTER_MAX, len(self._ended[op]))

    def _remember(self, message: ObjectMessage) -> None:
        self.known[message.id] = message
        self._alike(message)[message.id] = message
        if len(self.known) > KNOWN_MAX:
            id_, oldest = self.known.popitem(last=False)
            if id_ not in self.in_flight:
                self._alike(oldest).pop(id_, None)

    def _alike(self, message: ObjectMessage) -> dict[Id, ObjectMessage]:
        """What is remembered that conflicts with the same messages as this one."""
        if message.source == self.name:
            return self._own.setdefault(message.sender_op, {})
        return self._others.setdefault(message.op, {})

    def predecessors(self, message: ObjectMessage, causes: list[Id], before: list[Id]) -> list[Id]:
        """What a message names: causes, what came before, significant predecessors; without those that these name.

        It may be more than fits into a record. Of those that are no causes only what is in flight counts then: the log
        has what was delivered before this message anyway.
        """
        own = (self._own.get(op, {}) for op in self.conflicts.of(message.sender_op))
        others = (self._others.get(op, {}) for op in self.conflicts.of(message.op))
        candidates = (one for alike in (*own, *others) for one in reversed(alike.values()))
        significant = [one.id for one in candidates if precedes(one, message, self.conflicts)]
        found = dict.fromkeys([*causes, *before, *significant])
        implied = self._below(found)
        needed = self.in_flight.keys() | set(causes)
        named = sorted((id_ for id_ in found if id_ not in implied), key=lambda id_: id_ not in needed)
        return named[: max(AFTER_MAX, sum(id_ in needed for id_ in named))]

    def _below(self, ids: Iterable[Id]) -> set[Id]:
        """All that these messages name, directly or through others, as far as remembered."""
        below: set[Id] = set()
        walk = [self._recall(id_) for id_ in ids]
        for one in walk:  # grows during the loop
            for id_ in () if one is None else one.after:
                if id_ not in below:
                    below.add(id_)
                    walk.append(self._recall(id_))
        return below

    def _recall(self, id_: Id) -> ObjectMessage | None:
        return self.known.get(id_) or self.in_flight.get(id_)


class Instance:
    """One execution of a method, from its start to its commit or abort."""

    def __init__(self, client: ObjectClient, sid: tuple[int, str], op: str, before: Iterable[Id] = ()) -> None:
        self.sid = sid
        self.op = op
        self.vector: Vector = client.vector.copy()
        self._client = client
        self._no = 0
        self._causes: list[Id] = []
        """What it sent last, and what it received since."""
        self._before = list(dict.fromkeys(before))
        """What conflicting instances before it sent and received last, until it says something itself."""

    def receive(self, message: ObjectMessage) -> None:
        """Take in a message for this instance: merge its vector and its own identifier."""
        merge(self.vector, message.vector)
        merge(self.vector, {message.source: message.global_id})
        if message.id not in self._causes:
            self._causes.append(message.id)

    def drafts(self, op: str, type_: Kind, to: Iterable[str]) -> Iterator[Draft]:
        """Stamp the next message of this instance; after each that this yields, call `sent` with its id.

        The last one is the message. Those before it are to no one: each names what the message had no room to name.
        """
        to = tuple(to)
        while True:
            message = self._message(("", 0, 0), op, type_, to, ())
            after = self._client.predecessors(message, self._causes, self._before)
            if len(after) <= AFTER_MAX:
                yield self._draft(message, after)
                return
            gathering = self._message(("", 0, 0), self.op, "data", (), ())
            yield self._draft(gathering, after[:AFTER_MAX])._replace(gathers=True)
            self._causes += after[AFTER_MAX:]

    def _draft(self, message: ObjectMessage, after: list[Id]) -> Draft:
        stamp = {"instance": list(self.sid), "op": message.op, "sender_op": self.op, "type": message.type}
        return Draft(stamp, list(message.to), after, message.no, message.vector)

    def sent(self, draft: Draft, id_: Id) -> None:
        """The draft was sent: stamp first, then count."""
        op, type_ = draft.object["op"], draft.object["type"]
        message = self._message(id_, op, type_, tuple(draft.to), tuple(draft.after))
        self._client.track_sent(message)
        self.vector[self._client.name] = message.global_id
        self._causes, self._before = [id_], []
        self._no += 1

    def commit(self) -> None:
        """Merge this instance's knowledge into its object; an aborted instance never calls this."""
        merge(self._client.vector, self.vector)
        self._client.ended(self.op, [*self._before, *self._causes])

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
    """The ready rule at an object's host: compatible instances run at once, conflicting ones in order of delivery.

    What waits for the end of an instance's own transaction is passed over by it, or neither would ever start.

    Each step looks at the operations that conflict with one, and of each at the first request that waits: where that
    may not start, no later one of the operation may, but those whose transaction has an undecided instance here.
    """

    def __init__(self, conflicts: Conflicts) -> None:
        self.conflicts = conflicts
        self.running: dict[Id, Queued] = {}
        self.waiting: dict[Id, Queued] = {}
        self._arrived = 0
        self._turns: dict[Id, int] = {}
        """When each one that waits arrived."""
        self._running_ops: Counter[str] = Counter()
        self._waiting_of: dict[str, OrderedDict[Id, None]] = {}
        """What waits, by operation, in order of delivery."""
        self._undecided: dict[Id | None, Counter[str]] = {}
        """Of each transaction, the operations that can still be undone."""
        self._waiting_in: dict[Id | None, dict[Id, None]] = {}
        """What waits, by transaction."""
        self._passing: dict[Id | None, None] = {}
        """The transactions of which something waits and something can still be undone."""

    def arrive(self, id_: Id, op: str, transaction: Id | None = None) -> bool:
        """Take a delivered request; returns whether its instance may start now."""
        new = Queued(op, transaction)
        self._arrived += 1
        ready = self._may_start(new, self._arrived)
        if ready:
            self._run(id_, new)
        else:
            self.waiting[id_] = new
            self._turns[id_] = self._arrived
            self._waiting_of.setdefault(op, OrderedDict())[id_] = None
            self._waiting_in.setdefault(transaction, {})[id_] = None
            self._note_passing(transaction)
        return ready

    def finish(self, id_: Id) -> list[Id]:
        """End an instance, or take one out that waits; returns those that may start now, in order of delivery."""
        ended = self.running.pop(id_, None)
        if ended is None:
            ended = self._stop_waiting(id_)
        else:
            _discount(self._running_ops, ended.op)
            if ended.undecided:
                undecided = self._undecided[ended.transaction]
                _discount(undecided, ended.op)
                if not undecided:
                    del self._undecided[ended.transaction]
                    self._note_passing(ended.transaction)
        freed = self.conflicts.of(ended.op)
        firsts = [next(iter(self._waiting_of[op])) for op in freed if op in self._waiting_of]
        return self._start_ready([*firsts, *(one for of in self._passing for one in self._waiting_in[of])])

    def keep_undecided(self, id_: Id) -> list[Id]:
        """An instance has executed and can still be undone; returns those of its transaction that may start now."""
        kept = self.running[id_] = self.running[id_]._replace(undecided=True)
        self._undecided.setdefault(kept.transaction, Counter())[kept.op] += 1
        self._note_passing(kept.transaction)
        return self._start_ready(self._waiting_in.get(kept.transaction, ()))

    def _note_passing(self, transaction: Id | None) -> None:
        if transaction in self._undecided and transaction in self._waiting_in:
            self._passing[transaction] = None
        else:
            self._passing.pop(transaction, None)

    def _run(self, id_: Id, one: Queued) -> None:
        self.running[id_] = one
        self._running_ops[one.op] += 1

    def _stop_waiting(self, id_: Id) -> Queued:
        one = self.waiting.pop(id_)
        del self._turns[id_]
        for index, key in ((self._waiting_of, one.op), (self._waiting_in, one.transaction)):
            ids: Any = index[key]  # type: ignore[index]
            del ids[id_]
            if not ids:
                del index[key]  # type: ignore[arg-type]
        self._note_passing(one.transaction)
        return one

    def _start_ready(self, candidates: Iterable[Id]) -> list[Id]:
        """Start those of the candidates that may, and what waits behind them; the first that arrived first."""
        started: list[Id] = []
        heap = [(self._turns[id_], id_) for id_ in dict.fromkeys(candidates)]
        heapify(heap)
        while heap:
            turn, id_ = heappop(heap)
            if id_ not in self.waiting or not self._may_start(self.waiting[id_], turn):
                continue
            one = self._stop_waiting(id_)
            self._run(id_, one)
            started.append(id_)
            if one.op in self._waiting_of:
                behind = next(iter(self._waiting_of[one.op]))
                heappush(heap, (self._turns[behind], behind))
        return started

    def _may_start(self, new: Queued, turn: int) -> bool:
        """Whether nothing that runs, and nothing that waits since before this turn, conflicts with an instance."""
        own = self._undecided.get(new.transaction, _NONE)
        for op in self.conflicts.of(new.op):
            if self._running_ops[op] > own[op]:
                return False
            waiting = self._waiting_of.get(op)
            if waiting is None or any(self.conflicts.between(op, mine) for mine in own):
                continue
            if self._turns[next(iter(waiting))] < turn:
                return False
        return True


_NONE: Counter[str] = Counter()


def _discount(ops: Counter[str], op: str) -> None:
    ops[op] -= 1
    if not ops[op]:
        del ops[op]


def merge(vector: Vector, other: Vector) -> None:
    """Raise each entry of `vector` to that of `other`."""
    for name, id_ in other.items():
        if name not in vector or id_ > vector[name]:
            vector[name] = id_
