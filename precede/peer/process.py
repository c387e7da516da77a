"""One process on a segment, as `Segment` and `Peer` use it: the socket, the state on disk, the groups it is in."""

import contextlib
from pathlib import Path
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

from precede.client_settings import Config, client_settings
from precede.ingest.segment.address import read_addresses
from precede.ingest.segment.link import new_epoch, open_link, read_segment_key
from precede.ingest.segment.peer_state import opened_state, peer_file
from precede.ingest.segment.runner import SegmentRunner
from precede.ingest.signing import key_in, public_text
from precede.peer.handing_over import Callbacks, EventQueue
from precede.peer.keeping import Keeper
from precede.udfs.errors import Congested, Refused
from precede.udfs.peers.catalogue import Listing, listing_of
from precede.udfs.peers.directory import RowState
from precede.udfs.peers.events import Event, Offered, ViewChanged
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.records.identifiers import as_name
from precede.udfs.records.messages import Id
from precede.udfs.records.signatures import sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DISCOVER_S = 0.5
"""Everyone answers within 0.05 s; the rest is for what is lost on the way and repaired."""
ALONE_S = 1.0
"""A group that no one has told of in this time since a process was first heard is not there."""
ALONE_S_MAX = 5.0
TURN_S, RANK_MAX = 0.3, 8
"""Of several that start at once, the one whose name is the least creates the group; the others wait a turn longer."""
JOIN_S = 30.0
CONFIRM_S = 5.0
SETTLE_S = 1.5
"""Who joined within this time may still be asking for what was said before."""
CONGESTED_S = 30.0
"""How long saying something waits for others that cannot follow."""
RETRY_S = 0.002
SHARED_WAIT_S = 0.05
"""While another thread drives the segment, this one waits this long before it offers to do so."""


class _Signer:
    """Signs with a private key."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key
        self.public_key = public_text(key)

    def __call__(self, record: bytes) -> bytes:
        return sign(record, self._key)


class SegmentProcess:
    """One process under one name. `group` is named where it is for one group only, which then has a state file of its
    own."""

    def __init__(
        self,
        url: str | None,
        name: str,
        *,
        config: Config,
        segment_key: str | Path | None,
        key: str | Path | None,
        state: str | Path | None,
        callbacks: Callbacks,
        group: str | None = None,
    ) -> None:
        self.name = as_name("name", name)
        settings = client_settings(config, reaches_kafka=False, segment=url, segment_key=segment_key, key=key)
        addresses = read_addresses(settings.segment)
        if len(addresses) > 1:
            raise Refused(f"A peer is on one segment, and {settings.segment} names {len(addresses)}: name one.")
        self.address = addresses[0]
        self.inboxes: dict[str, EventQueue] = {}
        """What was told of each group and is not handed over yet; used under the lock of the runner."""
        self._offers: list[Listing] = []
        self._view_s = 0.0
        """When members came or went."""
        self._callbacks = callbacks
        path = peer_file(self.address.name, self.name, group, settings.state) if state is None else Path(state)
        with contextlib.ExitStack() as opened:
            self._open(opened, path, settings.segment_key, settings.key)
            self._opened = opened.pop_all()

    def _open(self, opened: contextlib.ExitStack, path: Path, segment_key: str | None, key: str | None) -> None:
        secret = None if segment_key is None else read_segment_key(segment_key)
        private = key_in(key)
        self._signs = private is not None
        kept = opened.enter_context(opened_state(path.expanduser(), self.address.name, self.name))
        epoch = max(new_epoch(), kept.epoch + 1)
        # Without a state, a start in the same second may have had the same epoch: it is used when that is over.
        self._free_s = epoch + 1.0 if kept.dumped is None else 0.0
        link = self._link = open_link(
            self.address,
            self.name,
            self._take,
            key=secret,
            keep=kept.flush,
            signer=None if private is None else _Signer(private),
            state=kept.dumped,
            is_clean=kept.is_clean,
            epoch=epoch,
        )
        opened.callback(link.socket.close)
        self._segment = link.segment
        self.inboxes = {group: EventQueue() for group in link.segment.groups if self.inside(group) is not None}
        self._keeper = Keeper(kept, link.segment, self._not_handed_over)
        self._runner = SegmentRunner()
        opened.callback(self._finish)
        self._callbacks.start()
        self._tell(self._keeper.waited)
        self._runner.add(link)
        self._keeper.start(self._runner, link)
        self._opened_s = monotonic()

    def use(self) -> contextlib.AbstractContextManager[float]:
        """Alone with the segment, at the time that this gives."""
        return self._runner.use(self._link)

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────

    def discover(self, wait_s: float) -> None:
        """Ask everyone what they are in, and wait for the answers."""
        with self.use() as now_ms:
            self._segment.discover(now_ms)
        sleep(wait_s)

    def take_offers(self) -> list[Listing]:
        """What was offered since the last call."""
        with self.use():
            offers, self._offers = self._offers, []
        return offers

    def pending(self) -> list[Listing]:
        """The groups that are offered and not decided yet."""
        with self.use():
            directory = self._segment.directory
            found = [group for group, row in directory.rows.items() if row is RowState.PENDING]
            return [listing_of(directory.known[group]) for group in found]

    def inside(self, group: str) -> PeerGroup | None:
        found = self._segment.groups.get(group)
        return None if found is None or found.own_join.left else found

    def mine(self) -> list[str]:
        with self.use():
            return sorted(group for group in self._segment.groups if self.inside(group) is not None)

    def members(self, group: str) -> dict[str, int]:
        """The current members of a group, each with its epoch."""
        with self.use():
            inside = self.inside(group)
            if inside is not None:
                return inside.members
            known = self._segment.directory.known.get(group)
        if known is None:
            raise Refused(f"No group {group} is known on {self.address}: discover first.")
        return listing_of(known).members

    def create(self, group: str, options: dict[str, Any], *, wait_s: float) -> None:
        self._wait_for_epoch()
        with self.use() as now_ms:
            if self.inside(group) is not None:
                raise Refused(f"{self.name} is in {group} already: take its peer with join.")
            before = self.inboxes.get(group)
            self.inboxes[group] = EventQueue()
            try:
                self._segment.create(group, options, now_ms)
            except BaseException:
                del self.inboxes[group]
                if before is not None:
                    self.inboxes[group] = before
                raise
        self._wait_joined(group, wait_s)

    def join(self, group: str, *, wait_s: float) -> None:
        """Enter a group that is offered, unless this process is in it. Raises Refused."""
        self._wait_for_epoch()
        with self.use() as now_ms:
            if self.inside(group) is None:
                self._check_key(group)
                self._segment.join(group, now_ms)
                self.inboxes[group] = EventQueue()  # events are told at the end of this block
        self._wait_joined(group, wait_s)

    def _check_key(self, group: str) -> None:
        known = self._segment.directory.known.get(group)
        if known is not None and not self._signs and listing_of(known).options.get("keys"):
            raise Refused(f"{group} accepts only signed records: open {self.name} with its private key.")

    def _wait_for_epoch(self) -> None:
        left_s = self._free_s - time()
        if 0 < left_s <= 1:  # more only where the clock was set back, and then there is no telling
            sleep(left_s)

    def enter(self, group: str, *, order: str | None, closed: bool, wait_s: float = JOIN_S) -> None:
        """Join the group if it is here, else create it. Raises Refused, also if it has another order."""
        heard: set[bytes] = set()
        newest_s = self._opened_s
        while self.inside(group) is None:
            listed = next((one for one in self.pending() if one.group == group), None)
            if listed is not None:
                _check_same(group, order, listed.order)
                break
            with self.use() as now_ms:
                present = self._segment.present(now_ms) or set()
                now_heard = set(self._segment.broadcast.streams.by_origin)
            if now_heard - heard and monotonic() < self._opened_s + ALONE_S_MAX:
                heard, newest_s = now_heard, monotonic()
            rank = min(RANK_MAX, sum(name < self.name for name in present))
            if monotonic() >= newest_s + ALONE_S + rank * TURN_S:
                chosen: dict[str, Any] = {} if order is None else {"order": order}
                self.create(group, chosen | ({"closed": True} if closed else {}), wait_s=wait_s)
                return
            sleep(0.01)
        self.join(group, wait_s=wait_s)
        _check_same(group, order, self._segment.groups[group].order.name)

    def _wait_joined(self, group: str, wait_s: float) -> None:
        joining = self._segment.groups[group].own_join
        if not self._runner.wait_until(lambda _now_ms: joining.joined or joining.left, wait_s):
            raise Refused(
                f"The join of {self.name} does not count in {group} yet: not every member that is heard has answered it"
                f" within {wait_s:g} s, or the group refused it. Try again, or end the member that does not answer."
            )
        self._keeper.save()  # the epoch and the group's records are on disk from here on

    def decline(self, group: str) -> None:
        """Refuse an offer. Raises Refused if there is none."""
        with self.use():
            try:
                self._segment.decline(group)
            except ValueError as error:
                raise Refused(f"{error}.") from error

    def leave(self, group: str) -> None:
        """Leave a group. Raises Refused if this process is not in it."""
        with self.use() as now_ms:
            if self.inside(group) is None:
                raise Refused(f"{self.name} is not in {group}: there is nothing to leave.")
            self._segment.leave(group, now_ms)
        self._keeper.has_news = True

    # ── saying ────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        group: str,
        data: bytes,
        *,
        after: list[Id],
        to: list[str] | None,
        object_: dict[str, Any] | None,
        meta: bytes | None,
    ) -> Id:
        """Say something; waits while others cannot follow. Raises Refused and ValueError."""
        deadline = monotonic() + CONGESTED_S
        while True:
            try:
                with self.use() as now_ms:
                    self._keeper.make_room(self._segment.limits.record_bytes_max)
                    id_, value = self._segment.say(
                        group, data, now_ms=now_ms, after=after, to=to, object_=object_, meta=meta
                    )
                    self._keeper.said((group, id_[1], id_[2], value))
                    return id_
            except Congested:
                if monotonic() > deadline:
                    raise
            sleep(RETRY_S)

    def find(self, group: str, id_: Id) -> bytes | None:
        """The record of a message that was delivered here and is kept."""
        with self.use():
            value = self._segment.record_of(group, id_)
            return value if self._segment.groups[group].ordering.is_settled(id_) else None

    def wait_confirmed(self, timeout_s: float) -> bool:
        """Wait until all that was said is with every peer that is heard; returns whether it is."""
        return self._runner.wait_until(self._segment.is_confirmed, timeout_s)

    def has_everyone_all(self) -> bool:
        """Whether all that was said is with every peer that is heard, the last newcomer included."""
        return monotonic() > self._view_s + SETTLE_S and self.wait_confirmed(0.0)

    def unlogged(self, group: str) -> list[Id]:
        """What was said in a group and the log is not known to have, where a gateway is known."""
        with self.use():
            return self._segment.owed(group)

    @property
    def trouble(self) -> str | None:
        """Why what is said cannot be kept on disk."""
        return self._keeper.trouble

    def counts(self) -> dict[str, int]:
        return self._runner.counts(self._link)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, events: list[Event]) -> None:
        """Called under the lock of the runner, in the order in which things happen."""
        self._keeper.happened()
        self._tell(events)

    def _tell(self, events: list[Event]) -> None:
        told: set[str] = set()
        calls = self._callbacks
        for event in events:
            if isinstance(event, Offered):
                listing = listing_of(event.info)
                self._offers.append(listing)
                calls.offer(listing)
                continue
            group = event.group
            if group not in self.inboxes:
                continue  # it was left by an earlier start, and is kept for the log
            if isinstance(event, ViewChanged):
                self._view_s = monotonic()
            if calls.wanted:
                calls.tell(event, self._segment.groups[group].order.name, self.name)
            if not calls.takes_messages:
                self.inboxes[group].put(event)
                told.add(group)
        for group in told:
            self.inboxes[group].wake()
            if self.inboxes[group].is_full:
                self._link.is_paused = True

    def _not_handed_over(self, is_end: bool) -> dict[str, list[Event]] | None:
        """What waits to be handed over, by group; None if callbacks are about to get it."""
        if self._callbacks.takes_messages:
            return {} if self._callbacks.are_made else None
        return {group: inbox.waiting(is_end=is_end) for group, inbox in self.inboxes.items()}

    def wait_for(self, inbox: EventQueue, timeout_s: float) -> None:
        """Wait until something is in there, driving the segment meanwhile if no other thread does."""
        deadline = monotonic() + timeout_s
        while not inbox.is_ready() and self._runner.is_running and (left_s := deadline - monotonic()) > 0:
            if not self._runner.drive(inbox.is_ready, left_s):
                inbox.wait(min(left_s, SHARED_WAIT_S))

    def resume(self) -> None:
        """Take in again what comes, if little waits to be handed over."""
        if not self._link.is_paused:
            return
        with self.use():
            if all(inbox.is_low for inbox in self.inboxes.values()):
                self._link.is_paused = False
                self._link.deadline_ms = 0.0

    # ── ending ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        return self._runner.is_running

    def check(self) -> None:
        """Raise PrecedeError if the segment has stopped because of an error."""
        if self._runner.failure is not None:
            self._runner.check()

    def close(self) -> None:
        """Stop, with everything stored. What was said last is given some seconds to reach everyone."""
        if self.is_open:
            self.wait_confirmed(CONFIRM_S)
        self._opened.close()

    def _finish(self) -> None:
        self._runner.close()
        for inbox in self.inboxes.values():
            inbox.close()
        self._callbacks.close()
        self._keeper.close(is_complete=self._runner.failure is None)


def _check_same(group: str, wanted: str | None, found: str) -> None:
    if wanted not in (None, found):
        raise Refused(f"The group {group} has the order {found}, not {wanted}: leave the order out to join it.")
