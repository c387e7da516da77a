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
from inspect import isgenerator
from typing import Any, Literal, Protocol

from precede.member.object_instances import Invocation, Running, WaitingRequest
from precede.member.object_methods import declared_methods, declared_undo
from precede.member.object_records import Payload, read_object_record
from precede.udfs.errors import CallFailed, Unconfirmed
from precede.udfs.member.object_calls import (
    AnyOf,
    Call,
    ForAll,
    ForAny,
    ForData,
    ForTheRest,
    Nothing,
    ReceiveData,
    Response,
    SendData,
    Started,
    Wait,
    Wrong,
    answerable,
)
from precede.udfs.member.objects import Conflicts, Instance, InstanceQueue, Kind, ObjectClient, ObjectMessage
from precede.udfs.records.messages import Id


class Speaker(Protocol):
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

    def __init__(self, member: Speaker, target: object = None, *, methods: Iterable[str] | None = None) -> None:
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

    def _step(self, running: Running, steps: Generator[Any, Any, Any]) -> Wait:
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
            return Wrong(wrong)

    def _carry_out(self, running: Running, wanted: Any) -> Wait:
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
