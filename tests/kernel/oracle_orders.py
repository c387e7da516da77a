"""The naive loop's part for each order: stamps, the ids a message names, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kernel import oracle_clocks
from tests.kernel.judge import Fields
from tests.kernel.oracle_clocks import BY_CLOCKS
from tests.kernel.oracle_state import Group, Id, Waiting

KNOWN = ("s_b", "fifo", "causal", "causal_p2p", "total", "object", *BY_CLOCKS)
"""The orders that this loop implements."""

IN_TURN = ("fifo", "causal", *BY_CLOCKS)


def stamp_fault(group: Group, fields: Fields) -> str | None:
    """What is wrong with the stamp itself."""
    if group.order in BY_CLOCKS:
        return oracle_clocks.stamp_fault(group, fields)
    if group.order in ("s_b", "object") and "after" not in fields:
        return "missing_stamp"
    if group.order == "s_b" and len(fields["after"]) > 1:
        return "bad_stamp"
    if group.order == "causal_p2p" and not {"to", "sent"} <= fields.keys():
        return "missing_stamp"
    if group.order in ("causal", "causal_p2p"):
        if "seen" not in fields:
            return "missing_stamp"
        own = [entry[2] for entry in fields["seen"] if entry[:2] == [fields["sender"], fields["epoch"]]]
        if own != [fields["seq"]]:
            return "bad_stamp"
    return None


def poison(group: Group, fields: Fields) -> str | None:
    """Whether a clock claims messages that cannot exist."""
    if group.order in BY_CLOCKS and oracle_clocks.is_poison(group, fields["time"]):
        return "clock_poison"
    if group.order in ("causal", "causal_p2p"):
        for name, epoch, seq in fields["seen"]:
            is_own = (name, epoch) == (fields["sender"], fields["epoch"])
            if not is_own and seq > group.highest.get((name, epoch), 0) + group.window:
                return "clock_poison"
    return None


def named(group: Group, one: Waiting) -> list[Id]:
    """All that must precede a message: the ids it names, and earlier messages if senders keep their turn."""
    name, epoch, seq = one.id
    ids = [(name, epoch, number) for number in range(1, seq)] if group.order in IN_TURN else []
    if one.fields is None:
        return ids
    if group.order in ("s_b", "object"):
        ids += [id_of(entry) for entry in one.fields["after"]]
    if group.order == "causal":
        entries = [id_of(entry) for entry in one.fields["seen"] if id_of(entry) != one.id]
        ids += [(other, of, number) for other, of, last in entries for number in range(1, last + 1)]
    return ids


def waits_for(group: Group, one: Waiting, is_in: Callable[[Group, Waiting], bool]) -> dict[str, Any]:
    """The named ids that are missing, or members that must join.

    A vector names everything to wait for, so the search goes deeper only if all named ids are here and held. A list of
    direct predecessors does not, so there the search always goes deeper.
    """
    if group.order in BY_CLOCKS and is_in(group, one):
        return oracle_clocks.waits_for(group, one)
    held = {other.id: other for other in group.held}
    level, known = [one], {one.id}
    missing: set[Id] = set()
    silent: list[str] = []
    while level and not (group.order in IN_TURN and (missing or silent)):
        ids: list[Id] = []
        for at in level:
            if is_in(group, at):
                ids += [id_ for id_ in named(group, at) if id_ not in group.delivered]
            else:
                silent.append(at.id[0])
        missing |= {id_ for id_ in ids if id_ not in held}
        level = [held[id_] for id_ in dict.fromkeys(ids) if id_ in held and id_ not in known]
        known |= {at.id for at in level}
    joins = {"joins": sorted(silent)} if silent else {}
    return {"missing": sorted(missing)[:20], "silent": sorted(silent), **joins}


def id_of(given: list[Any]) -> Id:
    """An id as a record writes it."""
    name, epoch, seq = given
    return name, epoch, seq
