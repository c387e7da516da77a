"""Which methods of an object messages may invoke, and which of them can be undone."""

from collections.abc import Callable, Iterable
from inspect import isfunction
from typing import Any


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
