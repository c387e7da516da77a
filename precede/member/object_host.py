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
given the results. It runs while it waits for them, and what conflicts with it waits. The host does nothing by itself:
its caller hands over each delivered record once, in order, so every replica does the same.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from inspect import isfunction, isgenerator
from typing import Any, NamedTuple, Protocol

import msgspec

from precede.udfs.errors import CallFailed
from precede.udfs.member.objects import Conflicts, Instance, InstanceQueue, ObjectClient, ObjectMessage, Vector
from precede.udfs.records.messages import Id, ObjectStamp


class Speaker(Protocol):
    """What a host needs of its member: `precede.Member` has it, and so has anything else that sends."""

    @property
    def name(self) -> str: ...

    @property
    def conflicts(self) -> Sequence[tuple[str, str]]: ...

    @property
    def send(self) -> Callable[..., Id]:
        """(data, after=, to=, object=) -> id"""


class Call(NamedTuple):
    """A method to invoke: at one object, or at several that are replicas of each other."""

    to: str | tuple[str, ...]
    op: str
    arguments: tuple[Any, ...] = ()
    answer: bool = True
    """Whether the caller waits for the result; if not, the invocation is one-way."""


class Invocation:
    """What was invoked from outside; `done` once all answers are there."""

    def __init__(self) -> None:
        self.done = False
        self._result: Any = None
        self._error: Exception | None = None

    @property
    def result(self) -> Any:
        """The result; of several objects, a dictionary by their names. Raises CallFailed where a method did."""
        if not self.done:
            raise RuntimeError("the invocation is not answered yet: deliver more records")
        if self._error is not None:
            raise self._error
        return self._result


class _Wire(msgspec.Struct):
    """The fields of an ordered record that this protocol reads."""

    sender: str
    seq: int
    object: ObjectStamp
    data: "_Data"
    epoch: int = 0
    status: str = "delivered"
    after: list[Id] = []
    to: list[str] = []


class _Data(msgspec.Struct, omit_defaults=True):
    """What the messages of this protocol carry as their data."""

    no: int
    vector: Vector
    arguments: list[Any] = []
    answer: bool = True
    answers: Id | None = None
    """The request whose response this is."""
    result: Any = None
    error: str | None = None


class _Running:
    """One instance: the generator that executes it, and the answers it waits for."""

    def __init__(self, instance: Instance, request: ObjectMessage | None, done: Invocation) -> None:
        self.instance = instance
        self.request = request
        self.answer = False
        self.steps: Generator[Any, Any, Any] | None = None
        self.done = done
        self.calls: list[tuple[Id, Call]] = []
        self.is_list = False
        self.answers: dict[tuple[Id, str], Any] = {}
        self.error: str | None = None

    def missing(self) -> bool:
        return any((id_, name) not in self.answers for id_, call in self.calls for name in _names(call.to))

    def results(self) -> Any:
        """What the generator is given: of a list of calls a list, of several objects a dictionary."""
        found = []
        for id_, call in self.calls:
            by_name = {name: self.answers[id_, name] for name in _names(call.to)}
            found.append(by_name if isinstance(call.to, tuple) else by_name[call.to])
        return found if self.is_list else found[0]


class ObjectHost:
    """The host of one object, or of none: then it only invokes others."""

    def __init__(self, member: Speaker, target: object = None, *, methods: Iterable[str] | None = None) -> None:
        table = Conflicts(member.conflicts)
        self.name = member.name
        self._member = member
        self._methods = _declared(target, methods)
        self._client = ObjectClient(self.name, table)
        self._queue = InstanceQueue(table)
        self._waiting: dict[Id, tuple[ObjectMessage, _Data]] = {}
        self._asked: dict[Id, _Running] = {}
        """Of each request that waits for answers, the instance that sent it."""

    @property
    def waiting(self) -> list[Id]:
        """Requests whose instances wait for conflicting ones."""
        return list(self._waiting)

    @property
    def running(self) -> list[Id]:
        """Requests whose instances run, waiting for answers of their own."""
        return list(self._queue.running)

    # ── invoking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def invoke(self, to: str | tuple[str, ...], op: str, *arguments: Any, answer: bool = True) -> Invocation:
        """Invoke one method from outside, as a transaction of its own."""

        def steps() -> Generator[Call, Any, Any]:
            return (yield Call(to, op, arguments, answer))

        return self.perform(op, steps())

    def perform(self, op: str, steps: Generator[Any, Any, Any]) -> Invocation:
        """A transaction of several invocations, written as a generator like a method; `op` names it."""
        running = _Running(self._client.start(op), None, Invocation())
        running.steps = steps
        self._go_on(running, None)
        return running.done

    # ── listening ─────────────────────────────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        """Execute what the member is handed until its iteration ends."""
        if not isinstance(self._member, Iterable):
            raise TypeError("`serve` needs a member that can be iterated: hand over records with `deliver` instead")
        for message in self._member:
            self.deliver(message.record)

    def deliver(self, record: bytes) -> None:
        """One ordered record; records that are not of this protocol are passed over."""
        try:
            wire = msgspec.json.decode(record, type=_Wire)
            message = _as_message(wire)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return
        if wire.status != "delivered":
            return
        self._client.deliver(message)
        if self.name not in message.to:
            return
        if message.type == "request" and self._methods is not None:
            self._waiting[message.id] = message, wire.data
            if self._queue.arrive(message.id, message.op):
                self._start_all([message.id])
        elif message.type == "response" and wire.data.answers in self._asked:
            self._answered(self._asked[wire.data.answers], message, wire.data)

    def _start_all(self, ready: list[Id]) -> None:
        """Start instances, and those that the end of one lets start."""
        todo = deque(ready)
        while todo:
            request, data = self._waiting.pop(todo.popleft())
            todo.extend(self._start(request, data))

    def _start(self, request: ObjectMessage, data: _Data) -> list[Id]:
        running = _Running(self._client.start(request.op, request), request, Invocation())
        running.answer = data.answer
        assert self._methods is not None
        try:
            if request.op not in self._methods:
                raise LookupError(f"{self.name} has no method {request.op!r}")
            result = self._methods[request.op](*data.arguments)
        except Exception as error:  # noqa: BLE001 (whatever a method raises is its answer)
            return self._end(running, None, error)
        if not isgenerator(result):
            return self._end(running, result, None)
        running.steps = result
        return self._go_on(running, None)

    def _answered(self, running: _Running, message: ObjectMessage, data: _Data) -> None:
        assert data.answers is not None
        running.instance.receive(message)
        running.answers[data.answers, message.source] = data.result
        running.error = running.error or data.error
        if running.missing():
            return
        for id_, _ in running.calls:
            self._asked.pop(id_, None)
        error = None if running.error is None else CallFailed(running.error)
        self._start_all(self._go_on(running, None if error else running.results(), error))

    # ── executing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _go_on(self, running: _Running, value: Any, error: Exception | None = None) -> list[Id]:
        """Let a generator run to its next invocations that must be answered, or to its end."""
        assert running.steps is not None
        while True:
            try:
                wanted = running.steps.send(value) if error is None else running.steps.throw(error)
                self._call(running, wanted)
            except StopIteration as stop:
                return self._end(running, stop.value, None)
            except Exception as raised:  # noqa: BLE001 (whatever a method raises is its answer)
                return self._end(running, None, raised)
            value, error = None, None
            if running.calls:
                return []

    def _call(self, running: _Running, wanted: Any) -> None:
        """Send what a generator asks for."""
        running.is_list = isinstance(wanted, list)
        calls = wanted if isinstance(wanted, list) else [wanted]
        if not all(isinstance(call, Call) for call in calls):
            raise TypeError(f"a method yields a Call or a list of them, not {wanted!r}")
        running.calls, running.answers, running.error = [], {}, None
        for call in calls:
            data = {"arguments": list(call.arguments)} | ({} if call.answer else {"answer": False})
            id_ = self._say(running.instance, call.op, "request", _names(call.to), data)
            if call.answer:
                running.calls.append((id_, call))
                self._asked[id_] = running

    def _end(self, running: _Running, result: Any, error: Exception | None) -> list[Id]:
        """Commit or abort an instance, and answer who asked; the requests whose instances may start now."""
        if error is None:
            running.instance.commit()
        running.done.done, running.done._result, running.done._error = True, result, error
        request = running.request
        if request is None:
            return []
        if running.answer:
            said = {"result": result} if error is None else {"error": f"{type(error).__name__}: {error}"}
            try:
                self._answer(running, request, said)
            except ValueError as unsayable:
                self._answer(running, request, {"error": f"{self.name} cannot say its result: {unsayable}"})
        return self._queue.finish(request.id)

    def _answer(self, running: _Running, request: ObjectMessage, said: dict[str, Any]) -> None:
        self._say(running.instance, request.op, "response", [request.source], said | {"answers": list(request.id)})

    def _say(self, instance: Instance, op: str, type_: Any, to: Iterable[str], said: dict[str, Any]) -> Id:
        draft = instance.draft(op, type_, to)
        data = {"no": draft.no, "vector": draft.vector, **said}
        id_ = self._member.send(data, after=draft.after, to=draft.to, object=draft.object)
        instance.sent(draft, id_)
        return id_


def _declared(target: object, names: Iterable[str] | None) -> dict[str, Callable[..., Any]] | None:
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


def _names(to: str | tuple[str, ...]) -> tuple[str, ...]:
    return (to,) if isinstance(to, str) else to


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
