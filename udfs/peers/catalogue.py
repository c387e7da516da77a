"""The groups of a log, each with its order, options and members, from the ordered records.

In the central form of the join/leave protocol the log answers an advertisement: every reader of the ordered records
knows every group, whether or not any of its members is online. All who have read equally far know the same.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from precede.udfs.engine.interfaces import is_closed
from precede.udfs.engine.signers import SERVICE
from precede.udfs.orders import ORDERS
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.views import View, members, merge, raise_standing, standings, view_of


class Listing(msgspec.Struct):
    """One group, as far as its sequence was read."""

    group: str
    order: str
    created: bool = False
    """Whether a `create` record began it; other groups are open to every sender."""
    closed: bool = False
    options: dict[str, Any] = {}
    """The options of its `create` record."""
    position: int = 0
    """The last position that was read."""
    view: View = {}

    @property
    def description(self) -> str:
        """What the group is about, as its `create` record says; "" where it says nothing."""
        found: str = self.options.get("description", "")
        return found

    @property
    def members(self) -> dict[str, int]:
        """The members by `create` or `join`, each with its epoch; in an open group others may send, too."""
        return members(self.view)

    def only_signs(self, name: str) -> bool:
        """Whether this is the service of a group with keys: its joins change its key and do not make it a member."""
        return name == SERVICE and name in self.options.get("keys", {}) and name not in self.view

    @property
    def info(self) -> GroupInfo:
        """What the join/leave protocol says about it."""
        return GroupInfo(self.group, None, dict(self.view), self.order)


def listing_of(info: GroupInfo) -> Listing:
    """What peers tell of a group, as a log would list it."""
    found: dict[str, Any] = {} if info.create is None else msgspec.json.decode(info.create)
    options = found.get("options", {})
    order = options.get("order", info.order or "s_b")
    closed = is_closed(options.get("closed"), ORDERS.get(order))
    view = view_of(found.get("members", []))
    return Listing(info.group, order, info.create is not None, closed, options, 0, merge(view, info.view))


class Catalogue:
    """All groups found in the records. Reading a record twice changes nothing."""

    def __init__(self) -> None:
        self.groups: dict[str, Listing] = {}

    def sorted(self) -> list[Listing]:
        """All groups, by name."""
        return [self.groups[group] for group in sorted(self.groups)]

    def learn(self, record: Mapping[str, Any]) -> Listing | None:
        """Take in an ordered record; returns its group if that is new, or its members may have changed."""
        group: str = record["group"]
        listing = self.groups.get(group)
        is_new = listing is None
        if listing is None:
            listing = self.groups[group] = Listing(group, record["order"])
        if record["position"] > listing.position and record.get("destination") is None:
            listing.position = record["position"]
        if record.get("kind", "message") == "message":
            return listing if is_new else None
        if record["kind"] == "create":
            listing.created = True
            listing.options = dict(record.get("options", {}))
            listing.closed = is_closed(listing.options.get("closed"), ORDERS.get(listing.order))
        if record["kind"] == "join" and listing.only_signs(record["sender"]):
            return listing if is_new else None
        changed = [raise_standing(listing.view, name, standing) for name, standing in standings(record)]
        return listing if is_new or any(changed) else None
