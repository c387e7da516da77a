"""The groups of a segment for one process: the documents' GroupManager (M2MC, chapter 8), without a log.

    with precede.Segment("udp://239.255.70.80:17080%eth0", "ann") as segment:
        for offer in segment.discover():
            print(offer.group, offer.order, list(offer.members))
        travel = segment.create("travel", order="causal")
        chess = segment.join("chess")
        travel.send("Who comes along?")
        segment.leave("chess")

It finds the groups that others are in, creates, joins and leaves them. What joining gives is a `Peer`, which has the
interface of a `Member`. Callbacks may take the place of loops.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from precede.client_settings import Config
from precede.peer.handing_over import Callbacks
from precede.peer.peer import Peer
from precede.peer.process import DISCOVER_S, JOIN_S, SegmentProcess
from precede.reading.delivery import Delivery
from precede.udfs.peers.catalogue import Listing
from precede.udfs.records.identifiers import as_description, as_name
from precede.udfs.records.messages import Id


class Segment:
    """One process on a segment, under one name, in one place at a time.

    `url` is the address of the segment, such as udp://239.255.70.80:17080%eth0; None takes that of the settings, which
    are found as by `follow`. `segment_key` is the file of the key that all its peers have, `key` that of the private
    key that signs, and `state` the file in which the own epochs and seqs are kept.
    `on_message(delivery)`, `on_view(group, members)`, `on_offer(listing)` and `on_refused(group, id, code, reason)` are
    called in a thread of their own, one after the other. With `on_message`, peers hand over nothing by themselves.

    Groups that this name was in when it was closed are entered again: `join` gives their peers.
    To open it raises ValueError for a wrong argument, and Refused if the address, a key or the state file cannot be
    used, or the network drops multicast. Every call raises PrecedeError if the segment has stopped because of an error.
    """

    def __init__(
        self,
        url: str | None,
        name: str,
        *,
        config: Config = None,
        segment_key: str | Path | None = None,
        key: str | Path | None = None,
        state: str | Path | None = None,
        on_message: Callable[[Delivery], object] | None = None,
        on_view: Callable[[str, list[str]], object] | None = None,
        on_offer: Callable[[Listing], object] | None = None,
        on_refused: Callable[[str, Id | None, str, str], object] | None = None,
    ) -> None:
        callbacks = Callbacks(on_message=on_message, on_view=on_view, on_offer=on_offer, on_refused=on_refused)
        self._process = SegmentProcess(
            url, name, config=config, segment_key=segment_key, key=key, state=state, callbacks=callbacks
        )
        self._peers: dict[str, Peer] = {}

    @property
    def name(self) -> str:
        """The name of this process."""
        return self._process.name

    @property
    def address(self) -> str:
        """The address of the segment."""
        return str(self._process.address)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def discover(self, *, wait_s: float = DISCOVER_S) -> list[Listing]:
        """Ask all others, and return every group that this process is not in, declined ones included."""
        self._process.discover(wait_s)
        self._process.take_offers()
        return self._process.pending()

    def offers(self) -> list[Listing]:
        """New groups that were not offered yet."""
        return self._process.take_offers()

    def mine(self) -> list[str]:
        """The groups that this process is in."""
        return self._process.mine()

    def members(self, group: str) -> dict[str, int]:
        """The current members, each with its epoch. Raises Refused if no such group is known."""
        return self._process.members(group)

    def counts(self) -> dict[str, int]:
        """What was received, sent and dropped, by code; docs/reference/frames.md explains the codes."""
        return self._process.counts()

    # ── changing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def create(
        self,
        group: str,
        *,
        order: str | None = None,
        description: str | None = None,
        wait_s: float = JOIN_S,
        **options: Any,
    ) -> Peer:
        """Create a group with this process in it; options are those of the `create` record.

        `description` says what the group is about, in at most 1,000 characters; others see it in their offers.
        Raises Refused if there is such a group, or it cannot be without the log, and ValueError for a wrong argument.
        """
        as_name("group", group)
        named = {"order": order, "description": as_description(description), **options}
        chosen = {name: value for name, value in named.items() if value is not None}
        self._process.create(group, chosen, wait_s=wait_s)
        return self._peer(group)

    def join(self, group: str, *, wait_s: float = JOIN_S) -> Peer:
        """Become a member of a group that is offered; of a group that this process is in, its peer.

        Raises Refused if it is not offered, cannot be without the log, or its members do not answer in that time.
        """
        self._process.join(group, wait_s=wait_s)
        return self._peer(group)

    def _peer(self, group: str) -> Peer:
        peer = self._peers.get(group)
        if peer is None or peer.has_left:
            peer = self._peers[group] = Peer.on(self._process, group)
        return peer

    def decline(self, group: str) -> None:
        """Refuse an offer: the group is not offered again before the next `discover`."""
        self._process.decline(group)

    def leave(self, group: str) -> None:
        """Stop being a member; what this process said so far counts. Raises Refused if it is not in the group."""
        self._process.leave(group)

    # ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop, with everything stored; this leaves no group. To close again does nothing.

        What was said last is given some seconds to reach everyone.
        """
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
