"""The groups of a log, each with its order, its options and its members, as the ordered records tell them.

In the central form of the join/leave protocol nobody answers an advertisement but the log: whoever has read the ordered
records knows every group, whether one of its members is there or not. All who have read as far know the same.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from precede.udfs.membership.keyring import SERVICE
from precede.udfs.orders import ORDERS
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.views import View, members, raise_to, standings


class Listing(msgspec.Struct):
    """One group, as far as its sequence was read."""

    group: str
    order: str
    created: bool = False
    """Whether a `create` record began it; a group nobody created is open to everybody."""
    closed: bool = False
    options: dict[str, Any] = {}
    """What its `create` record set."""
    position: int = 0
    """The last one that was read."""
    view: View = {}

    @property
    def members(self) -> dict[str, int]:
        """Who is in, by `create` or `join`, each with its epoch; in an open group others may speak, too."""
        return members(self.view)

    def only_signs(self, name: str) -> bool:
        """Whether this is the service of a group with keys, which joins to change its key, and is no member by it."""
        return name == SERVICE and name in self.options.get("keys", {}) and name not in self.view

    @property
    def info(self) -> GroupInfo:
        """What the join/leave protocol tells of it."""
        return GroupInfo(self.group, self.order, dict(self.view))


class Catalogue:
    """All groups that were read of. To hear a record again changes nothing."""

    def __init__(self) -> None:
        self.groups: dict[str, Listing] = {}

    def learn(self, record: Mapping[str, Any]) -> Listing | None:
        """An ordered record of any group; its group where that is new, or its members may have changed."""
        group: str = record["group"]
        listing = self.groups.get(group)
        told = listing is None
        if listing is None:
            listing = self.groups[group] = Listing(group, record["order"])
        if record["position"] > listing.position and record.get("destination") is None:
            listing.position = record["position"]
        if record.get("kind", "message") == "message":
            return listing if told else None
        if record["kind"] == "create":
            listing.created = True
            listing.options = dict(record.get("options", {}))
            # Where clocks decide, a created group waits for its members, so it has to know them: it is closed.
            listing.closed = listing.options.get("closed") is True or ORDERS[listing.order].by_clocks
        if record["kind"] == "join" and listing.only_signs(record["sender"]):
            return listing if told else None
        changed = [raise_to(listing.view, name, standing) for name, standing in standings(record)]
        return listing if told or any(changed) else None
