"""Circles: held messages that wait for each other, so that no message that may still come can free them.

In `causal` and `object` such a circle is simply held (contract, section 3); in `s_b` it is refused when it closes, and
in the other orders there is none. When hope ends, the message that closed the circle is given up on, and the others go.
"""

from typing import TYPE_CHECKING

from precede.udfs.engine.held import HeldMessage, arrival

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group
    from precede.udfs.records.messages import Id


def closing_messages(group: "Group") -> list[HeldMessage]:
    """Of each circle the message that arrived last, the first of them first."""
    if group.order.waits_once or group.order.by_clocks:
        return []
    held = group.held
    walk_of: dict[Id, int] = {}
    found: list[HeldMessage] = []
    for number, start in enumerate(held.values()):
        one: HeldMessage | None = start
        path: list[HeldMessage] = []
        while one is not None and one.id not in walk_of:
            walk_of[one.id] = number
            path.append(one)
            one = held.get(one.watch) if one.watch is not None and len(one.watch) == 3 else None
        if one is not None and walk_of[one.id] == number:  # this walk came back to itself
            found.append(max((each for each in path[path.index(one) :] if each.value is not None), key=arrival))
    return sorted(found, key=arrival)
