"""How the naive loop of oracle.py abandons messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kernel.oracle_orders import IN_TURN
from tests.kernel.oracle_state import Waiting

if TYPE_CHECKING:
    from tests.kernel.oracle import Oracle
    from tests.kernel.oracle_state import Group, Id


def abandon(oracle: Oracle, group: Group, ranges: list[list[Any]]) -> str | None:
    ids = []
    for name, epoch, first, last in ranges:
        if last > group.highest.get((name, epoch), 0) + group.window:
            return "seq_jump"
        ids += [(name, epoch, seq) for seq in range(first, last + 1)]
    settled = {*group.delivered, *group.condemned, *(one.id for one in group.held if one.value is None)}
    if settled.issuperset(ids):
        return "late"
    if any(oracle._runs(group, who, ids) > oracle.limits.runs_max for who in {id_[:2] for id_ in ids}):
        return "backpressure"
    has_turns = group.order in (*IN_TURN, "causal_p2p")
    if has_turns and _would_wait(group, ids) > oracle.limits.held_max - oracle._held_count(group):
        return "backpressure"
    group.accepted = True
    for rank, id_ in enumerate(ids, start=1):
        if id_ in {*group.delivered, *group.condemned, *(one.id for one in group.held if one.value is None)}:
            continue
        held = next((one for one in group.held if one.id == id_), None)
        if held is not None:
            group.held.remove(held)
            oracle._bury_held(group, "abandoned" if oracle._is_in(group, held) else "not_member", held)
        if group.fence_of(id_[:2]) == 0:  # an epoch that ended before any of its messages were seen stays ended
            group.fences[id_[:2]] = 0
        group.highest[id_[:2]] = max(group.highest.get(id_[:2], 0), id_[2])
        group.give_up(id_, oracle.limits.runs_max)
        group.held.append(Waiting(id_, None, None, oracle.now[0], rank, oracle.now[1]))
        oracle._settle(group)
    return None


def _would_wait(group: Group, ids: list[Id]) -> int:
    """How many of these ids need a new held place until their turn; 0 if all can be released."""
    there = {*group.delivered, *ids}
    here = {one.id for one in group.held}
    waits = [id_ for id_ in set(ids) if any((*id_[:2], seq) not in there for seq in range(1, id_[2]))]
    count = sum(1 for id_ in waits if id_ not in here and id_ not in group.delivered)
    return count or -len(here)
