"""Small scope, whole: every history of a few messages, in every arrival order, cut everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

from udfs.holdback import Holdback
from udfs.orders import ORDERS

Id = tuple[str, int]


def vectors(protocol: str) -> list[dict[str, Any]]:
    """The vectors of one protocol from the shared file."""
    every = json.loads((Path(__file__).parent / "vectors.json").read_text())
    return [one for one in every if one["proto"] == protocol]


def every_history(order: str, messages: int) -> Iterator[tuple[dict[Id, set[Id]], list[Id], list[Id]]]:
    """(the true past of each message, an arrival order, what was delivered), the kernel restarted at every record.

    A history: who speaks, one of two members after the other, and which of the earlier messages each had heard.
    """
    for speakers in product("ab", repeat=messages):
        if speakers[0] == "b":
            continue  # the same but for the names
        for heard in product((False, True), repeat=messages - 1):
            yield from _played(order, speakers, (False, *heard))


def _played(
    order: str, speakers: tuple[str, ...], heard: tuple[bool, ...]
) -> Iterator[tuple[dict[Id, set[Id]], list[Id], list[Id]]]:
    """Each member says its messages in turn; where `heard`, it had heard all that was said before it spoke."""
    members = {name: ORDERS[order].publisher(name) for name in "ab"}
    knows: dict[str, set[Id]] = {"a": set(), "b": set()}
    said: list[dict[str, Any]] = []
    past: dict[Id, set[Id]] = {}
    for name, has_heard in zip(speakers, heard, strict=True):
        if has_heard:
            for record in said:
                members[name].observe(record)
            knows[name] |= past.keys()
        last = [(one["sender"], 0, one["seq"]) for one in said[-1:]] if has_heard else []
        record = {"group": "g", **members[name].stamp(after=last, clock_ms=10 * len(said))}
        id_ = (name, record["seq"])
        past[id_] = set(knows[name])
        knows[name].add(id_)
        said.append(record)
    for arrival in permutations(said):
        delivered: list[Id] = []
        kernel = Holdback(order=order)
        for offset, record in enumerate(arrival):
            kernel.receive(json.dumps(record).encode(), b"g", 0, offset, 0)
            delivered += [(one["sender"], one["seq"]) for one in map(json.loads, kernel.ordered)]
            blobs = dict(kernel.dump())
            kernel = Holdback(order=order)
            kernel.load(blobs)
        yield past, [(one["sender"], one["seq"]) for one in arrival], delivered
