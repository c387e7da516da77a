"""Circles: held messages that wait for each other, so that no message that may still come can free them.

In `causal` and `object` such a circle is simply held (contract, section 3); in `s_b` it is refused when it closes, and
in the other orders there is none. When hope ends, the message that closed the circle is abandoned, which frees the
others.
"""

from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.watches import arrival, waits_for_id
from precede.udfs.records.messages import Id


def closing_messages(group: Group) -> list[HeldMessage]:
    """Of each circle the message that arrived last, the first of these first."""
    held = group.held
    walk_of: dict[Id, int] = {}
    found: list[HeldMessage] = []
    for number, start in enumerate(held.values()):
        one: HeldMessage | None = start
        path: list[HeldMessage] = []
        while one is not None and one.id not in walk_of:
            walk_of[one.id] = number
            path.append(one)
            one = held.get(one.watch) if waits_for_id(one.watch) else None
        if one is not None and walk_of[one.id] == number:  # this walk came back to itself
            found.append(max((each for each in path[path.index(one) :] if each.value is not None), key=arrival))
    return sorted(found, key=arrival)
