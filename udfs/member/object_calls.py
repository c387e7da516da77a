"""What a method asks its host for while it runs, and what it waits for (object-based protocol, 2.1).

A method that invokes others is a generator. It yields one of these, and is given what the last column says.

    Call(...)                       synchronous: the method waits             its result
    Call(..., wait=False)           asynchronous: the method goes on          a Started, to be waited for later
    Call(..., answer=False)         one-way: there is never an answer         a Started, for data only
    started, or [call, started]     waits for one, or for all                 the result, or the list of them
    AnyOf(started, started)         waits for the first answer                the Started that was answered
    SendData(started, value)        sends data to what it invoked             None
    ReceiveData(started)            waits for data                            the value

`CALLER` stands for who invoked the method, in `SendData` and `ReceiveData`.
A failure is raised in the method as CallFailed. A method that does not catch it is aborted.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple, Protocol

from precede.udfs.errors import CallFailed
from precede.udfs.records.messages import Id


class Call(NamedTuple):
    """A method to invoke: at one object, or at several that are replicas of each other."""

    to: str | tuple[str, ...]
    op: str
    arguments: tuple[Any, ...] = ()
    answer: bool = True
    """Whether there is an answer; if not, the invocation is one-way."""
    wait: bool = True
    """Whether the method waits for the answer now; if not, the invocation is asynchronous."""

    @property
    def names(self) -> tuple[str, ...]:
        """The objects that execute it."""
        return (self.to,) if isinstance(self.to, str) else self.to

    @property
    def exchanges_data(self) -> bool:
        """Whether caller and called may exchange data (2.1): not where the caller stands still."""
        return not (self.answer and self.wait)


class Caller(Enum):
    """Stands for the caller of the method that says it."""

    CALLER = "caller"


CALLER = Caller.CALLER


class Response(NamedTuple):
    """What one object answered."""

    result: Any = None
    error: str | None = None
    undecided: bool = False
    """Whether that object can still undo what it did, and waits to be told."""


class Inbox:
    """Data that came for an instance from one partner, until the method takes it."""

    def __init__(self) -> None:
        self.values: deque[Any] = deque()
        self.over = False
        """Whether nothing can come any more, because the partner has ended."""


class Started:
    """An invocation that was sent: what was answered so far, and the data that came."""

    def __init__(self, id_: Id, call: Call) -> None:
        self.id = id_
        self.call = call
        self.answers: dict[str, Response] = {}
        self.inbox = Inbox()
        self.was_told = False
        """Whether the method was told of a failure, and so could handle it."""
        self.settled = False
        """Whether the objects were told to commit or to abort."""

    @property
    def done(self) -> bool:
        """Whether every object that it went to has answered."""
        return self.call.answer and len(self.answers) == len(self.call.names)

    @property
    def error(self) -> str | None:
        """The first failure, by the order of the names."""
        return next((self.answers[name].error for name in self.call.names if self._failed(name)), None)

    @property
    def result(self) -> Any:
        """The result; of several objects, a dictionary by their names. Raises CallFailed where a method failed."""
        if not self.done:
            raise RuntimeError(f"{self.call.op} is not answered yet: yield what was started to wait for it")
        if self.error is not None:
            raise CallFailed(self.error)
        by_name = {name: self.answers[name].result for name in self.call.names}
        return by_name if isinstance(self.call.to, tuple) else by_name[self.call.to]

    def take(self, name: str, response: Response) -> None:
        """Take in the answer of one object; another one of the same object changes nothing."""
        self.answers.setdefault(name, response)
        self.inbox.over = self.done

    def open_names(self) -> list[str]:
        """The objects that may still be executing it, or can undo it and wait to be told."""
        if self.settled or not self.call.answer:
            return []
        return [name for name in self.call.names if name not in self.answers or self.answers[name].undecided]

    def _failed(self, name: str) -> bool:
        return name in self.answers and self.answers[name].error is not None


class AnyOf:
    """The or-wait: until one of these invocations is answered."""

    def __init__(self, *wanted: Call | Started) -> None:
        self.wanted = wanted


class SendData(NamedTuple):
    """Data for what this method invoked, or for its caller."""

    to: Started | Caller
    value: Any


class ReceiveData(NamedTuple):
    """The next data from what this method invoked, or from its caller."""

    source: Started | Caller


# ── what an instance waits for ────────────────────────────────────────────────────────────────────────────────────


class Awaited(Protocol):
    """Why an instance stands still."""

    def is_over(self) -> bool:
        """Whether the instance can go on."""

    def value(self) -> Any:
        """What the method is given; what this raises, is raised in the method."""


class Nothing:
    """No wait: the method is given a value at once, or the error of what cannot be done, where it asked for it."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value = value
        self._error = error

    def is_over(self) -> bool:
        return True

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class ForAll:
    """The and-wait: every invocation is answered. The first failure is raised."""

    def __init__(self, wanted: Iterable[Started], *, as_list: bool) -> None:
        self._wanted = list(wanted)
        self._as_list = as_list

    def is_over(self) -> bool:
        return all(one.done or not one.call.answer for one in self._wanted)

    def value(self) -> Any:
        answered = [one for one in self._wanted if one.call.answer]
        for one in answered:
            one.was_told = True
        found = [one.result if one.call.answer else None for one in self._wanted]
        return found if self._as_list else found[0]


class ForAny:
    """The or-wait: one invocation is answered. If it failed, that is raised."""

    def __init__(self, wanted: Iterable[Started]) -> None:
        self._wanted = list(wanted)

    def is_over(self) -> bool:
        return any(one.done for one in self._wanted)

    def value(self) -> Started:
        first = next(one for one in self._wanted if one.done)
        if first.error is not None:
            first.was_told = True
            raise CallFailed(first.error)
        return first


class ForData:
    """The next data of a partner; one that ended without is a failure."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def is_over(self) -> bool:
        return bool(self._inbox.values) or self._inbox.over

    def value(self) -> Any:
        if not self._inbox.values:
            raise CallFailed("the other method ended and sent no more data")
        return self._inbox.values.popleft()


class ForTheRest:
    """The end of a method: every invocation that is still open is answered (2.2: it commits only if they all did)."""

    def __init__(self, started: Iterable[Started], result: Any) -> None:
        self._open = [one for one in started if one.call.answer]
        self._result = result

    def is_over(self) -> bool:
        return all(one.done for one in self._open)

    def value(self) -> Any:
        for one in self._open:
            if one.error is not None and not one.was_told:
                raise CallFailed(one.error)
        return self._result


def answerable(started: Started) -> Started:
    """What can be waited for; raises ValueError for a one-way invocation."""
    if not started.call.answer:
        raise ValueError(f"{started.call.op} was invoked one-way: there is no answer to wait for")
    return started
