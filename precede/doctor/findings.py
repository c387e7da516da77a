"""What the doctor shows: each setting with where it comes from, and what a check found.

Secrets are never settings, and tables of names and values show only their names.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from precede.streaming.settings import PREFIX, Settings, from_environment, from_file
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


def origins(
    settings: Settings, flags: Mapping[str, Any], environ: Mapping[str, str], config_file: str | Path | None
) -> list[tuple[str, str, str]]:
    """Name, value and origin of all settings, those that are not left to their default first."""
    in_file = from_file(Path(config_file)) if config_file else {}
    in_environment = from_environment(environ)
    derived = {"state_topic": settings.state_topic_name}
    found = []
    for field in msgspec.structs.fields(Settings):
        name = field.name
        if flags.get(name) is not None:
            origin = f"--{name.replace('_', '-')}"
        elif name in in_environment:
            origin = PREFIX + name.upper()
        elif name in in_file:
            origin = str(config_file)
        else:
            origin = ""
        found.append((name, _shown(derived.get(name, getattr(settings, name))), origin))
    return sorted(found, key=lambda one: not one[2])


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, msgspec.Struct):
        return ", ".join(f"{name} {number:,}" for name, number in msgspec.structs.asdict(value).items())
    return str(value)
