"""What a check found: a line for a person, and whether it would stop a start."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from precede.udfs.errors import PrecedeError

Level = Literal["ok", "note", "stop"]


class Finding(NamedTuple):
    """One line: it is well, it is worth knowing, or a start would stop there."""

    level: Level
    what: str


def ok(what: str) -> Finding:
    return Finding("ok", what)


def note(what: str) -> Finding:
    return Finding("note", what)


def stop(what: str) -> Finding:
    return Finding("stop", what)


def tried(check: Callable[[], object], good: str) -> Iterator[Finding]:
    """Run a check that raises a sentence where something is wrong."""
    try:
        check()
    except PrecedeError as error:
        yield stop(str(error))
    else:
        yield ok(good)
