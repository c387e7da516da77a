"""Objects whose methods are invoked by the messages of a group with the order `object`.

    class Account:
        def __init__(self):
            self.balance = 0
        def deposit(self, amount):
            self.balance += amount
        def show(self):
            return self.balance

    with precede.Member("bank", "account") as member:
        precede.ObjectHost(member, Account()).serve()

and, elsewhere, `ObjectHost(teller).invoke("account", "deposit", 5)`, where `teller` is another member. The table of
conflicts is the group's, from its `create` record: requests that conflict are executed one after the other, in one
order at every object they go to. Requests that do not conflict never wait for each other.

Only declared methods can be invoked: the public functions that the target's class defines, or those that `methods`
names. Attributes, inherited methods of built-in types and names that begin with `_` are never reached by a message.

A method that invokes others is a generator: it yields a `Call`, or a list of them to be answered in any order, and is
given the results; `precede/udfs/member/object_calls.py` lists what else it may yield. It runs while it waits for them,
and what conflicts with it waits. The host does nothing by itself: its caller hands over each delivered record once, in
order, so every replica does the same.

What Kafka did not confirm counts as said: the member sends the same bytes first the next time. Where it does not
confirm that either, Unconfirmed is raised to the caller of the host, in the midst of a step: what the host knows is no
longer whole then, so open the member and a new host again once Kafka is back.

An instance commits once all that it invoked has ended well, and is aborted otherwise (2.2). A method `pay` that an
abort of its caller must undo has a method `_undo_pay(result, ...)` beside it, which takes the same arguments.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from inspect import isfunction, isgenerator
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from precede.udfs.errors import CallFailed, Unconfirmed
from precede.udfs.member.object_calls import (
    AnyOf,
    Awaited,
    Call,
    Caller,
    ForAll,
    ForAny,
    ForData,
    ForTheRest,
    Inbox,
    Nothing,
    ReceiveData,
    Response,
    SendData,
    Started,
    answerable,
)
from precede.udfs.member.objects import Conflicts, Instance, InstanceQueue, Kind, ObjectClient, ObjectMessage, Vector
from precede.udfs.records.messages import Id, ObjectStamp

# ── the records ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Payload(msgspec.Struct, omit_defaults=True):
    """What the messages of this protocol carry as their data."""

    no: int
    vector: Vector
    arguments: list[Any] = []
    answer: bool = True
    """Of a request: whether it is answered; if not, it is one-way."""
    asynchronous: bool = False
    """Of a request: whether its caller goes on meanwhile."""
    transaction: Id | None = None
    """Of a request: the first one of the same transaction, if this is not it."""
    answers: Id | None = None
    """Of a response: its request."""
    result: Any = None
    error: str | None = None
    undecided: bool = False
    """Of a response: whether what was done can still be undone."""
    about: Id | None = None
    """Of data: the request that the two instances have in common."""
    value: Any = None
    outcome: Literal["commit", "abort"] | None = None
    """Of the end of an instance: what becomes of the requests in `of`."""
    of: list[Id] = []


class _Wire(msgspec.Struct):
    """The fields of an ordered record that this protocol reads."""

    sender: str
    seq: int
    object: ObjectStamp
    data: Payload
    epoch: int = 0
    status: str = "delivered"
    after: list[Id] = []
    to: list[str] = []


def read_object_record(record: bytes) -> tuple[ObjectMessage, Payload] | None:
    """A delivered message of this protocol and its data, or None for any other record."""
    try:
        wire = msgspec.json.decode(record, type=_Wire)
        message = _as_message(wire)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return (message, wire.data) if wire.status == "delivered" else None


def _as_message(wire: _Wire) -> ObjectMessage:
    stamp = wire.object
    if not (isinstance(stamp.instance, tuple) and isinstance(stamp.op, str) and isinstance(stamp.type, str)):
        raise ValueError("a message of this protocol names its instance, its method and its type")
    oid, name = stamp.instance
    if not isinstance(name, str):
        raise ValueError("an object of this protocol has a name, and not a number")
    return ObjectMessage(
        id=(wire.sender, wire.epoch, wire.seq),
        source=wire.sender,
        to=tuple(wire.to),
        instance=(int(oid), name),
        no=wire.data.no,
        op=stamp.op,
        sender_op=stamp.sender_op if isinstance(stamp.sender_op, str) else "",
        type=stamp.type,
        vector=wire.data.vector,
        after=tuple(wire.after),
    )


# ── one execution of a method ─────────────────────────────────────────────────────────────────────────────────────────


class Invocation:
    """What was invoked from outside; `done` once all answers are there."""

    def __init__(self) -> None:
        self.done = False
        self._result: Any = None
        self._error: Exception | None = None
        self._abort: Callable[[], None] | None = None

    @property
    def result(self) -> Any:
        """The result; of several objects, a dictionary by their names. Raises CallFailed where a method did."""
        if not self.done:
            raise RuntimeError("the invocation is not answered yet: deliver more records")
        if self._error is not None:
            raise self._error
        return self._result

    def abort(self) -> None:
        """Give up an invocation that is not done: what was executed for it is undone, what waits is dropped."""
        if self._abort is None:
            raise RuntimeError("the invocation is done: it cannot be aborted any more")
        self._abort()

    def end(self, result: Any, error: Exception | None) -> None:
        self.done, self._result, self._error, self._abort = True, result, error, None


class WaitingRequest(NamedTuple):
    """A request whose instance has not started, and the data that came for it."""

    request: ObjectMessage
    payload: Payload
    early: list[tuple[ObjectMessage, Any]]


class Running:
    """One instance: the generator that executes it, what it invoked, and what it waits for."""

    def __init__(
        self, instance: Instance, request: ObjectMessage | None = None, payload: Payload | None = None
    ) -> None:
        self.instance = instance
        self.request = request
        self.answer = payload is not None and payload.answer
        self.asynchronous = payload is not None and (payload.asynchronous or not payload.answer)
        self.arguments = [] if payload is None else payload.arguments
        self.transaction = None if payload is None or request is None else payload.transaction or request.id
        self.outside = Invocation()
        self.steps: Generator[Any, Any, Any] | None = None
        self.wait: Awaited = Nothing()
        self.started: dict[Id, Started] = {}
        self.inbox = Inbox()
        """Data from its caller."""
        self.executed = False
        """Whether its method has come to its end, so that only the object can undo it."""
        self.undecided = False
        """Whether it was answered and can still be undone."""
        self.result: Any = None

    def open_calls(self) -> list[Started]:
        """Invocations that have not ended at every object."""
        return [one for one in self.started.values() if one.open_names()]

    @property
    def caller(self) -> str:
        """The object that invoked it."""
        assert self.request is not None
        return self.request.source

    def partner(self, partner: Started | Caller) -> Inbox:
        """Where the data of a partner come; only who invoked the other without waiting exchanges data with it (2.1)."""
        if isinstance(partner, Started):
            if self.started.get(partner.id) is not partner:
                raise ValueError("a method exchanges data with what it invoked itself, and with its CALLER")
            if not partner.call.exchanges_data:
                raise ValueError(
                    f"{partner.call.op} was invoked synchronously: pass wait=False to exchange data with it"
                )
            return partner.inbox
        if not self.asynchronous:
            raise ValueError("the caller of this method waits for its answer: only one that goes on exchanges data")
        return self.inbox


# ── the host ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class SendingMember(Protocol):
    """What a host needs of its member: `precede.Member` has it, and so has anything else that sends."""

    @property
    def name(self) -> str: ...

    @property
    def conflicts(self) -> Sequence[tuple[str, str]]: ...

    @property
    def send(self) -> Callable[..., Id]:
        """(data, after=, to=, object=) -> id"""


class ObjectHost:
    """The host of one object, or of none: then it only invokes others."""

    def __init__(self, member: SendingMember, target: object = None, *, methods: Iterable[str] | None = None) -> None:
        table = Conflicts(member.conflicts)
        self.name = member.name
        self._member = member
        self._methods = declared_methods(target, methods)
        self._undo = declared_undo(target, self._methods or {})
        self._client = ObjectClient(self.name, table)
        self._queue = InstanceQueue(table)
        self._waiting: dict[Id, WaitingRequest] = {}
        self._instances: dict[Id, Running] = {}
        """Of each request, the instance that it started, until that has ended."""
        self._asked: dict[Id, tuple[Running, Started]] = {}
        """Of each request that this host sent, the instance that sent it, until that has ended."""

    @property
    def waiting(self) -> list[Id]:
        """Requests whose instances wait for conflicting ones."""
        return list(self._waiting)

    @property
    def running(self) -> list[Id]:
        """Requests whose instances run, waiting for answers of their own."""
        return [id_ for id_, one in self._instances.items() if not one.undecided]

    @property
    def undecided(self) -> list[Id]:
        """Requests that were executed and can still be undone; what conflicts with them waits for their end."""
        return [id_ for id_, one in self._instances.items() if one.undecided]

    # ── invoking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def invoke(self, to: str | tuple[str, ...], op: str, *arguments: Any, answer: bool = True) -> Invocation:
        """Invoke one method from outside, as a transaction of its own."""

        def steps() -> Generator[Call, Any, Any]:
            result = yield Call(to, op, arguments, answer)
            return result if answer else None

        return self.perform(op, steps())

    def perform(self, op: str, steps: Generator[Any, Any, Any]) -> Invocation:
        """A transaction of several invocations, written as a generator like a method; `op` names it."""
        running = Running(self._client.start(op))
        running.steps = steps
        running.outside._abort = lambda: self._start_all(self._abort(running))
        self._start_all(self._go_on(running))
        return running.outside

    # ── listening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        """Execute what the member is handed until its iteration ends."""
        if not isinstance(self._member, Iterable):
            raise TypeError("`serve` needs a member that can be iterated: hand over records with `deliver` instead")
        for message in self._member:
            self.deliver(message.record)

    def deliver(self, record: bytes) -> None:
        """One ordered record; records that are not of this protocol are passed over."""
        read = read_object_record(record)
        if read is None:
            return
        message, payload = read
        self._client.deliver(message)
        if self.name not in message.to:
            return
        if message.type == "request":
            self._requested(message, payload)
        elif message.type == "response":
            self._answered(message, payload)
        elif payload.outcome is not None:
            self._decided(message, payload)
        else:
            self._given_data(message, payload)

    def _requested(self, message: ObjectMessage, payload: Payload) -> None:
        if self._methods is None:
            return
        self._waiting[message.id] = WaitingRequest(message, payload, [])
        if self._queue.arrive(message.id, message.op, payload.transaction or message.id):
            self._start_all([message.id])

    def _answered(self, message: ObjectMessage, payload: Payload) -> None:
        running, started = self._asked.get(payload.answers or message.id, (None, None))
        if running is None or started is None or message.source not in started.call.names:
            return
        running.instance.receive(message)
        started.take(message.source, Response(payload.result, payload.error, payload.undecided))
        if started.done and started.error is not None:  # what failed in part is undone in whole
            self._tell_outcome(running, "abort", [started])
        self._start_all(self._go_on(running))

    def _given_data(self, message: ObjectMessage, payload: Payload) -> None:
        """Data for an instance: from one that it invoked, from its caller, or from the caller of one that waits."""
        about = payload.about or message.id
        running, started = self._asked.get(about, (None, None))
        if running is not None and started is not None and message.source in started.call.names:
            several = isinstance(started.call.to, tuple)
            started.inbox.values.append((message.source, payload.value) if several else payload.value)
        elif about in self._waiting and self._waiting[about].request.source == message.source:
            self._waiting[about].early.append((message, payload.value))
            return
        elif about in self._instances and self._instances[about].caller == message.source:
            running = self._instances[about]
            running.inbox.values.append(payload.value)
        else:
            return
        running.instance.receive(message)
        self._start_all(self._go_on(running))

    def _decided(self, message: ObjectMessage, payload: Payload) -> None:
        """The caller of instances has committed or aborted; they are undone in the reverse order of their requests."""
        for id_ in payload.of if payload.outcome == "commit" else reversed(payload.of):
            if id_ in self._waiting and self._waiting[id_].request.source == message.source:
                del self._waiting[id_]
                self._start_all(self._queue.finish(id_))
            elif id_ in self._instances and self._instances[id_].caller == message.source:
                running = self._instances[id_]
                running.instance.receive(message)
                self._start_all(self._commit(running) if payload.outcome == "commit" else self._abort(running))

    # ── executing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_all(self, ready: list[Id]) -> None:
        """Start instances, and those that the end of one lets start."""
        todo = deque(ready)
        while todo:
            id_ = todo.popleft()
            todo.extend(self._start(self._waiting.pop(id_)))

    def _start(self, waiting: WaitingRequest) -> list[Id]:
        request, payload, early = waiting
        running = Running(self._client.start(request.op, request), request, payload)
        self._instances[request.id] = running
        for message, value in early:
            running.instance.receive(message)
            running.inbox.values.append(value)
        assert self._methods is not None
        try:
            if request.op not in self._methods:
                raise LookupError(f"{self.name} has no method {request.op!r}")
            result = self._methods[request.op](*payload.arguments)
        except Exception as error:  # noqa: BLE001 (whatever a method raises is its answer)
            return self._fail(running, error)
        if not isgenerator(result):
            return self._execute(running, result)
        running.steps = result
        return self._go_on(running)

    def _go_on(self, running: Running) -> list[Id]:
        """Let a generator run to its next wait, or to its end."""
        while running.wait.is_over() and not running.undecided:
            try:
                if running.steps is None:
                    return self._execute(running, running.wait.value())
                running.wait = self._step(running, running.steps)
            except Unconfirmed:
                raise  # not the method failed
            except Exception as raised:  # noqa: BLE001 (whatever a method raises is its answer)
                return self._fail(running, raised)
        return []

    def _step(self, running: Running, steps: Generator[Any, Any, Any]) -> Awaited:
        """Give a generator what it waited for; what it waits for next."""
        try:
            try:
                value = running.wait.value()
            except Exception as failed:  # noqa: BLE001 (it is raised in the method)
                wanted = steps.throw(failed)
            else:
                wanted = steps.send(value)
        except StopIteration as stop:
            running.steps, running.executed, running.result = None, True, stop.value
            return ForTheRest(running.started.values(), stop.value)
        try:
            return self._carry_out(running, wanted)
        except (TypeError, ValueError) as wrong:
            return Nothing(error=wrong)

    def _carry_out(self, running: Running, wanted: Any) -> Awaited:
        """Do what a generator asks for; what it waits for now."""
        match wanted:
            case Call():
                started = self._call(running, wanted)
                return ForAll([started], as_list=False) if wanted.answer and wanted.wait else Nothing(started)
            case Started():
                return ForAll([answerable(wanted)], as_list=False)
            case list():
                return ForAll(self._calls(running, wanted), as_list=True)
            case AnyOf():
                calls = [one._replace(wait=False) if isinstance(one, Call) else one for one in wanted.wanted]
                return ForAny([answerable(one) for one in self._calls(running, calls)])
            case SendData():
                self._send_data(running, wanted)
                return Nothing()
            case ReceiveData():
                return ForData(running.partner(wanted.source))
        raise TypeError(f"a method yields a Call, a list of them, AnyOf, SendData or ReceiveData, not {wanted!r}")

    def _calls(self, running: Running, wanted: Sequence[Any]) -> list[Started]:
        """Invoke what is not started yet."""
        for one in wanted:
            if not isinstance(one, Call | Started):
                raise TypeError(f"a method yields a Call or a list of them, and there is {one!r} in the list")
        return [one if isinstance(one, Started) else self._call(running, one) for one in wanted]

    def _call(self, running: Running, call: Call) -> Started:
        said: dict[str, Any] = {"arguments": list(call.arguments)}
        said |= {} if call.answer else {"answer": False}
        said |= {"asynchronous": True} if call.answer and not call.wait else {}
        said |= {} if running.transaction is None else {"transaction": running.transaction}
        id_ = self._say(running.instance, call.op, "request", call.names, said)
        running.transaction = running.transaction or id_
        started = running.started[id_] = Started(id_, call)
        self._asked[id_] = running, started
        return started

    def _send_data(self, running: Running, wanted: SendData) -> None:
        running.partner(wanted.to)
        if isinstance(wanted.to, Started):
            about, op, to = wanted.to.id, wanted.to.call.op, wanted.to.call.names
        else:
            assert running.request is not None
            about, op, to = running.request.id, running.request.op, (running.request.source,)
        self._say(running.instance, op, "data", to, {"about": about, "value": wanted.value})

    # ── ending ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _execute(self, running: Running, result: Any) -> list[Id]:
        """A method has come to its end, and so has all that it invoked: answer, and commit unless it can be undone."""
        running.executed, running.result = True, result
        request = running.request
        undoable = request is not None and (request.op in self._undo or bool(running.open_calls()))
        undecided = running.answer and undoable
        if request is not None and running.answer:
            try:
                self._answer(running, request, {"result": result} | ({"undecided": True} if undecided else {}))
            except ValueError as unsayable:
                return self._fail(running, ValueError(f"{self.name} cannot say its result: {unsayable}"))
        if not undecided:
            return self._commit(running)
        assert request is not None
        running.undecided = True
        return self._queue.keep_undecided(request.id)

    def _commit(self, running: Running) -> list[Id]:
        self._tell_outcome(running, "commit", running.open_calls())
        running.instance.commit()
        return self._end(running, running.result, None)

    def _fail(self, running: Running, error: Exception) -> list[Id]:
        """A method failed, or what it invoked did: undo everything, and answer with the error."""
        if running.steps is not None:
            running.steps.close()
        self._undo_all(running)
        if running.request is not None and running.answer:
            self._answer(running, running.request, {"error": f"{type(error).__name__}: {error}"})
        return self._end(running, None, error)

    def _abort(self, running: Running) -> list[Id]:
        """The caller has aborted: a method that runs is told by CallFailed, one that was executed is undone."""
        aborted = CallFailed("aborted by its caller")
        if running.steps is not None:
            try:
                running.steps.throw(aborted)
                running.steps.close()  # it would go on all the same
            except StopIteration as stop:
                running.executed, running.result = True, stop.value
            except Exception:  # noqa: BLE001, S110 (it ends, as it was told)
                pass
        self._undo_all(running)
        return self._end(running, None, aborted)

    def _undo_all(self, running: Running) -> None:
        """Undo what an instance did and what it invoked."""
        request = running.request
        if running.executed and request is not None and request.op in self._undo:
            self._undo[request.op](running.result, *running.arguments)
        self._tell_outcome(running, "abort", running.open_calls())

    def _end(self, running: Running, result: Any, error: Exception | None) -> list[Id]:
        """Forget an instance; the requests whose instances may start now."""
        for id_ in running.started:
            self._asked.pop(id_, None)
        running.outside.end(result, error)
        if running.request is None:
            return []
        del self._instances[running.request.id]
        return self._queue.finish(running.request.id)

    # ── saying ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell_outcome(self, running: Running, outcome: Literal["commit", "abort"], calls: list[Started]) -> None:
        """Tell all that these calls went to what becomes of them, in one message."""
        names = dict.fromkeys(name for one in calls for name in one.open_names())
        if names:
            said = {"outcome": outcome, "of": [one.id for one in calls]}
            self._say(running.instance, running.instance.op, "data", names, said)
        for one in calls:
            one.settled = True

    def _answer(self, running: Running, request: ObjectMessage, said: dict[str, Any]) -> None:
        self._say(running.instance, request.op, "response", [request.source], said | {"answers": request.id})

    def _say(self, instance: Instance, op: str, type_: Kind, to: Iterable[str], said: dict[str, Any]) -> Id:
        for draft in instance.drafts(op, type_, to):
            data = {"no": draft.no, "vector": draft.vector} | ({} if draft.gathers else said)
            try:
                id_ = self._member.send(data, after=draft.after, to=draft.to, object=draft.object)
            except Unconfirmed as unconfirmed:
                if unconfirmed.id is None:
                    raise
                id_ = unconfirmed.id  # the member keeps it, and sends it before all that it says later
            instance.sent(draft, id_)
        return id_


# ── which methods messages may invoke ─────────────────────────────────────────────────────────────────────────────────


def declared_methods(target: object, names: Iterable[str] | None) -> dict[str, Callable[..., Any]] | None:
    """The methods of the target that messages may invoke, by name; None without a target."""
    if target is None:
        if names is not None:
            raise ValueError("`methods` names the methods of a target: pass the target too")
        return None
    if names is None:
        found = {name for kind in type(target).__mro__ for name, value in vars(kind).items() if isfunction(value)}
        return {name: getattr(target, name) for name in sorted(found) if not name.startswith("_")}
    declared = {}
    for name in names:
        if not callable(getattr(target, name, None)):
            raise ValueError(f"`methods` names {name!r}, and {type(target).__name__} has no such method")
        declared[name] = getattr(target, name)
    return declared


def declared_undo(target: object, methods: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """How to undo these methods, by name: of `pay` it is `_undo_pay`, which no message reaches."""
    found = {name: getattr(target, f"_undo_{name}", None) for name in methods}
    return {name: undo for name, undo in found.items() if callable(undo)}
