"""One execution of a method at its host: what it invoked, what it waits for, and how it ends."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from precede.member.object_records import Payload
from precede.udfs.member.object_calls import Caller, Inbox, Nothing, Started, Wait
from precede.udfs.member.objects import Instance, ObjectMessage
from precede.udfs.records.messages import Id


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
        self.wait: Wait = Nothing()
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
