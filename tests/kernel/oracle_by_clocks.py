"""How the naive loop of oracle.py handles a record in the orders by clocks, and what it then releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kernel import oracle_clocks
from tests.kernel.oracle_clocks import BY_CLOCKS

if TYPE_CHECKING:
    from tests.kernel.judge import Fields
    from tests.kernel.oracle import Oracle
    from tests.kernel.oracle_state import Group, Waiting, Who


def who_of(fields: Fields) -> Who:
    return fields["sender"], fields["epoch"]


def message(oracle: Oracle, group: Group, one: Waiting) -> str | None:
    """Entering messages are checked by their clocks; others wait for their turn, or for their sender's join."""
    who, seq = one.id[:2], one.id[2]
    its_turn = oracle._is_in(group, one) and seq == oracle_clocks.count(group, who) + 1
    code = oracle_clocks.fault_on_entry(group, one) if its_turn else None
    if code is not None:
        return code
    if (oracle._no_room(group, one.value or b"") or oracle._too_many_runs(group, one.id)) and not (
        its_turn and oracle_clocks.lets_one_go(group, one, oracle.now[1])
    ):
        return "backpressure"
    group.accepted = True
    group.highest[who] = max(group.highest.get(who, 0), seq)
    group.held.append(one)
    if oracle._is_in(group, one):
        take_time(oracle, group, who, oracle_clocks.key_of(one)[0], begins_at_time=its_turn)
    oracle._settle(group)
    return None


def take_time(oracle: Oracle, group: Group, who: Who, time: int, *, begins_at_time: bool) -> None:
    """Take in a valid time. The first one of a sender in an open group makes it a member and ends its older epochs."""
    group.clocks.time_max = max(group.clocks.time_max, time)
    if who not in group.clocks.began:
        oracle_clocks.begin(group, who, time if begins_at_time else 1)
        if group.members.get(who[0], (-1, False))[0] < who[1]:
            oracle._fence_older(group, *who)
            group.members[who[0]] = (who[1], True)


def heartbeat(oracle: Oracle, group: Group, fields: Fields) -> str | None:
    """Check it like the message it announces; its sender counts as seen."""
    who, following = who_of(fields), fields["seq"]
    clocked = group.order in BY_CLOCKS
    if following > group.fence_of(who) or (clocked and oracle_clocks.is_over(group, who)):
        return "fenced"
    code = oracle_clocks.stamp_fault(group, fields) if clocked else None
    if code is not None:
        return code
    if following > group.highest.get(who, 0) + group.window:
        return "seq_jump"
    if clocked:
        if oracle_clocks.is_poison(group, fields["time"]):
            return "clock_poison"
        if group.closed and who not in group.joined:
            return "not_member"
        take_time(oracle, group, who, fields["time"], begins_at_time=following == 1)
        beat = (following, fields["time"], fields.get("clock_ms", oracle_clocks.NEVER))
        group.clocks.beats.setdefault(who, []).append(beat)
    group.accepted = True
    group.highest.setdefault(who, 0)
    oracle._settle(group)
    return None


def tick(oracle: Oracle, partition: int) -> None:
    for group in sorted(oracle.groups.values(), key=lambda group: group.name.encode()):
        if group.partition == partition and group.order in BY_CLOCKS and group.accepted:
            settle(oracle, group, max(oracle.now[1], group.clocks.log_ms))


def settle(oracle: Oracle, group: Group, now_ms: int) -> None:
    while _enter_one(oracle, group) or _deliver_one(oracle, group, now_ms):
        pass


def _enter_one(oracle: Oracle, group: Group) -> bool:
    for one in group.held:
        if one.id[2] != oracle_clocks.count(group, one.id[:2]) + 1 or not oracle._is_in(group, one):
            continue
        code = None if one.fields is None else oracle_clocks.fault_on_entry(group, one)
        if code is not None:
            group.held.remove(one)
            oracle._bury_held(group, code, one)
            return True
        if one.fields is not None:
            take_time(oracle, group, one.id[:2], oracle_clocks.key_of(one)[0], begins_at_time=True)
        oracle_clocks.enter(group, one)
        return True
    return False


def _deliver_one(oracle: Oracle, group: Group, now_ms: int) -> bool:
    stand_ins = [one for one in group.held if one.fields is None and oracle._ready(group, one)]
    one = stand_ins[0] if stand_ins else oracle_clocks.ready(group, now_ms)
    if one is None:
        return False
    if one.fields is not None:
        group.clocks.delivered.append((oracle_clocks.key_of(one), oracle_clocks.clock_of(group, one)))
    group.held.remove(one)
    oracle._deliver(group, one)
    return True
