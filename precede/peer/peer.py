"""A member of a group on a segment: it hears the others directly, without Kafka and without a job.

    with precede.Peer("travel", "bob") as bob:
        for message in bob:
            print(message.sender, message.data)
            if message.sender == "ann":
                bob.send("I do.", after=message)
                break

It has the interface of `Member`. Its deliveries have no position, because positions are the log's.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, cast

from precede.client_settings import Config
from precede.member.group_member import GroupMember, as_id, as_ids, as_json, as_meta, check_seconds
from precede.member.status import WAITS_MAX, Connection, Status
from precede.peer.handing_over import Callbacks, as_peer_delivery
from precede.peer.process import SegmentProcess
from precede.reading.delivery import DeliveredMessage, Delivery
from precede.udfs.errors import Refused
from precede.udfs.peers.events import Delivered, Event, RecordRefused
from precede.udfs.records.identifiers import MessageId, as_name
from precede.udfs.records.messages import Id, Message

if TYPE_CHECKING:
    from precede.udfs.engine.held import Held as HeldMessage


class Peer(GroupMember):
    """Sends and receives in one group, under one name, in one place at a time.

    It joins the group if another peer of the segment is in it, and else creates it, with this `order` (s_b) and
    `closed`. `segment` is the address, as for `Segment`, where the keys and `state` are explained, too.
    Iteration yields messages; with `records` everything that takes effect, views and abandoned messages included, and
    without `own` none of its own.
    It waits for ever, or ends if nothing came for `patience_s` seconds. A refused message of its own is a warning.

    To open a peer raises ValueError for a wrong argument, and Refused if the segment, a key or the state file cannot be
    used, the network drops multicast, the order needs the log, the group has another order, or its members do not
    answer. Every call raises PrecedeError if the segment has stopped because of an error.
    """

    def __init__(
        self,
        group: str,
        name: str,
        *,
        config: Config = None,
        segment: str | None = None,
        order: str | None = None,
        closed: bool = False,
        segment_key: str | Path | None = None,
        key: str | Path | None = None,
        state: str | Path | None = None,
        records: bool = False,
        own: bool = True,
        patience_s: float | None = None,
    ) -> None:
        as_name("group", group)
        check_seconds("patience_s", patience_s)
        process = SegmentProcess(
            segment,
            name,
            config=config,
            segment_key=segment_key,
            key=key,
            state=state,
            callbacks=Callbacks(),
            group=group,
        )
        try:
            process.enter(group, order=order, closed=closed)
        except BaseException:
            process.close()
            raise
        self._begin(process, group, owns_process=True, records=records, own=own, patience_s=patience_s)

    @classmethod
    def on(cls, process: SegmentProcess, group: str) -> Self:
        """The peer of a group that a process has entered; `Segment` makes it so."""
        peer = cls.__new__(cls)
        peer._begin(process, group, owns_process=False, records=False, own=True, patience_s=None)
        return peer

    def _begin(
        self,
        process: SegmentProcess,
        group: str,
        *,
        owns_process: bool,
        records: bool,
        own: bool,
        patience_s: float | None,
    ) -> None:
        self.group = group
        self.name = process.name
        self.position: int | None = None
        """Always None: positions are the log's."""
        self._records = records
        self._own = own
        self._patience_s = patience_s
        self._process = process
        self._owns_process = owns_process
        self._inbox = process.inboxes[group]
        with process.use():
            inside = process.inside(group)
        if inside is None:
            raise Refused(f"{self.name} has left {group}: join it again to come back.")
        self._inside = inside
        self._given_up = 0

    # ── what it is ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def order(self) -> str:
        """The group's order, by which this peer stamps its messages."""
        return self._inside.order.name

    @property
    def epoch(self) -> int:
        """The epoch under which this peer sends."""
        return self._inside.speaking.epoch

    @property
    def members(self) -> list[str]:
        """The members as far as this peer knows; in an open group others may send, too."""
        with self._process.use():
            return list(self._inside.members)

    @property
    def conflicts(self) -> list[tuple[str, str]]:
        """Which operations conflict: none, because declared conflicts need the log."""
        return list(self._inside.speaking.knowledge.conflicts)

    @property
    def has_left(self) -> bool:
        """Whether it has left the group."""
        return self._inside.own_join.left

    @property
    def status(self) -> Status:
        """How this peer stands with its group."""
        with self._process.use():
            held = self._inside.ordering.held()
            has_all = self._inside.sync_schedule.synced
        missing = list(dict.fromkeys(id_ for one in held for id_ in one.missing))
        return Status(
            synced=has_all and not held and not self._inbox.has_records,
            missing=len(missing),
            given_up=self._given_up,
            own_pending=sum(one.sender == self.name for one in held),
            waits=tuple(MessageId(*id_) for id_ in missing[:WAITS_MAX]),
            connection=Connection("live" if has_all else "catching up"),
            trouble=self._process.trouble,
        )

    def held(self) -> list["HeldMessage"]:
        """What waits for its turn here, and for what."""
        with self._process.use():
            return self._inside.ordering.held()

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        data: Any,
        *,
        after: Any = None,
        to: Iterable[str] | None = None,
        object: dict[str, Any] | None = None,  # noqa: A002 (the contract's word)
        meta: dict[str, Any] | None = None,
    ) -> MessageId:
        """Send a message, and return its id; it is on its way to all, and is repeated to those that it does not reach.

        `after` is what it answers: a message, its id ("ann:2", or its parts), or a list of them. They must have been
        delivered here. `to` names the destinations if the order has them, `object` the fields of the object-based
        protocol; `meta` is an object of at most 4 KiB that goes with the data, such as trace context.
        It waits while other peers cannot follow.

        Raises ValueError for a wrong argument, and Refused if this peer has left, others cannot follow for long, what
        it says cannot be kept on disk, or the log lacks too much of what it said.
        """
        parents, destinations = as_ids(after), self._destinations(to)
        return MessageId(
            *self._process.send(
                self.group, as_json(data), after=parents, to=destinations, object_=object, meta=as_meta(meta)
            )
        )

    def wait_confirmed(self, timeout_s: float) -> bool:
        """Wait until all that was said is with every peer that is heard; returns whether it is."""
        return self._process.wait_confirmed(timeout_s)

    def has_everyone_all(self) -> bool:
        """Whether all that was said is with every peer that is heard, the last newcomer included."""
        return self._process.has_everyone_all()

    def unlogged(self) -> list[Id]:
        """What this peer said and the log is not known to have; empty where no gateway is known.

        It is kept on disk, after `leave` too, and a gateway gets it from the next start with the same state.
        """
        return self._process.unlogged(self.group)

    def counts(self) -> dict[str, int]:
        """What was received, sent and dropped, by code; docs/reference/frames.md explains the codes."""
        return self._process.counts()

    def leave(self) -> None:
        """End this peer's epoch; what it sent so far still counts. Opened again, it comes with a new epoch.

        Raises Refused if it has left already.
        """
        self._process.leave(self.group)

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def next_events(self, timeout_s: float) -> list[Event]:
        """All that happened, of any kind, as soon as anything did; for programs that show everything."""
        self._process.wait_for(self._inbox, timeout_s)
        events = self._inbox.take_all()
        self._process.resume()
        if not events:
            self.check()
        return events

    def check(self) -> None:
        """Raise PrecedeError if the segment has stopped because of an error."""
        self._process.check()

    def poll(self, timeout_s: float) -> DeliveredMessage | None:
        """The next message, or None if none came in that time."""
        deadline = monotonic() + timeout_s
        while True:
            event = self._inbox.take()
            if event is None:
                self._process.wait_for(self._inbox, deadline - monotonic())
                event = self._inbox.take()
            self._process.resume()
            if isinstance(event, Delivered):
                delivery = as_peer_delivery(event, self.order, self.name)
                self._given_up += event.is_abandoned
                if self._is_wanted(delivery):
                    return cast(DeliveredMessage, delivery)  # or what `records` asks for
            elif isinstance(event, RecordRefused) and event.id is not None and event.id[0] == self.name:
                warnings.warn(f"{event.id} was refused ({event.code}): {event.reason}", stacklevel=2)
            elif event is None:
                self.check()
                if monotonic() >= deadline or self._inbox.is_closed:
                    return None

    def find(self, id_: str | Sequence[Any]) -> Delivery | None:
        """A message of the group by its id, such as what another one answers; None if it was not delivered here, or is
        kept no longer. Raises ValueError if this is no id."""
        wanted = as_id(id_)
        value = self._process.find(self.group, wanted)
        if value is None:
            return None
        record = Message(group=self.group, sender=wanted[0], epoch=wanted[1], seq=wanted[2])
        return as_peer_delivery(Delivered(self.group, value, record, False, 0.0), self.order, self.name)

    # ── ending ────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop, with everything stored; to close again does nothing. This does not leave the group.

        What was said last is given some seconds to reach everyone. A peer of a `Segment` is closed with that.
        """
        if self._owns_process:
            self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
