"""What a process on a segment hears: records, announcements, and what gateways tell, each for its group."""

from itertools import islice

from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.peers import notes
from precede.udfs.peers.announcing import Announcing
from precede.udfs.peers.broadcast import Broadcast
from precede.udfs.peers.directory import Directory, GroupInfo
from precede.udfs.peers.events import Event, Missed, Offered, RecordRefused
from precede.udfs.peers.fragments import PAYLOAD_BYTES_MAX
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, PADDING, PAGE, SYNC, Chance, Codec
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX
from precede.udfs.peers.notes import Announcement, GroupNote, JoinAnswer, RefusedByLog, read_have
from precede.udfs.peers.ordering import begins
from precede.udfs.peers.origin_order import Arrival
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.peers.speaking import Signer
from precede.udfs.peers.views import merge
from precede.udfs.records.messages import Create
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

OFFERED_BYTES_MAX = 64 * 1024 * 1024
"""What the groups that are offered may take in memory."""
REFUSALS_MAX = 1_000
"""So many refusals of the log are remembered, so that each is told once."""


class Hearing:
    """The part of a segment that takes in what others say, and passes on what groups have to send."""

    def __init__(
        self,
        name: str,
        origin: bytes,
        codec: Codec,
        chance: Chance,
        *,
        now_ms: float,
        epoch: int,
        clock_offset_ms: float = 0,
        signer: Signer | None = None,
        is_gateway: bool = False,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.name = name
        self.broadcast = Broadcast(origin, codec, chance, now_ms=now_ms, keeps_turn=self._keeps_turn)
        self.counts = self.broadcast.counts
        self.epoch = epoch
        self.clock_offset_ms = clock_offset_ms
        self.is_gateway = is_gateway
        self.groups: dict[str, PeerGroup] = {}
        self._by_key: dict[bytes, PeerGroup] = {}
        self.events: list[Event] = []
        self.directory = Directory(name, epoch=epoch)
        self.announcing = Announcing(name, chance, now_ms, is_gateway=is_gateway)
        self._chance = chance
        self._signer = signer
        self._kept_bytes_max = kept_bytes_max
        self._unsent: list[tuple[int, bytes]] = []
        self._speakers: list[PeerGroup] = []
        """The groups in which something was said that is neither taken in nor sent yet."""
        self._said_ms = now_ms
        self._lost = 0
        self._now_ms = now_ms
        """The time that was told last."""
        self._rests: dict[PeerGroup | Broadcast, float] = {}
        """What has raised an error in its turn, and when it has its next one."""
        self._offered_bytes = 0
        self.is_paused = False
        """As a gateway: whether no records are taken in (gateway_calls.py)."""
        self._refusals: dict[RefusedByLog, None] = {}
        self.limits = Limits()
        """What records may have; as a gateway: in its log; else with lists as long as in the log of a gateway here."""
        self.advertised: dict[str, GroupNote] = {}
        """As a gateway: groups of the log that others may join."""

    def take_limits(self, limits: Limits) -> None:
        """Take records by these limits from now on, in all groups."""
        if limits != self.limits:
            self.limits = limits
            for peer in self.groups.values():
                peer.take_limits(limits)

    def _take_data(self, arrivals: list[Arrival], at: int, now_ms: float) -> int:
        """Take in the records from here on that are of one origin and one group; returns how many."""
        origin, _, payload = arrivals[at]
        key, value = notes.read_data(payload)
        head = payload[: -len(value)]
        values = [value]
        for other, kind, payload in islice(arrivals, at + 1, None):
            if kind != DATA or other != origin or not payload.startswith(head) or len(payload) == len(head):
                break
            values.append(payload[len(head) :])
        peer = self._by_key.get(key)
        if self.is_paused:
            self.counts.add("paused")
        elif peer is not None:
            peer.hear(values, now_ms, is_from_log=self.announcing.is_gateways(origin))
            self._settle(peer, now_ms)
        elif self.is_gateway:
            self._miss(key.decode(errors="replace"))
        return len(values)

    def _keeps_turn(self, kind: int, payload: bytes) -> bool:
        """Whether a payload is of a group by clocks, and may not overtake earlier ones of its origin."""
        if kind == DATA:
            peer = self._by_key.get(notes.read_data(payload)[0])
        elif kind == ANNOUNCEMENT:
            note = notes.read_note(payload)
            peer = self.groups.get(note.group) if isinstance(note, JoinAnswer) else None
        elif kind == PAGE:
            peer = self.groups.get(notes.read_answer(payload).id.group)
        else:
            return False
        return peer is not None and peer.order.waits_for_members

    def _dispatch(self, arrival: Arrival, now_ms: float) -> None:
        origin, kind, payload = arrival
        streams = self.broadcast.streams
        peer: PeerGroup | None = None
        if kind == PAGE and self.is_paused:
            self.counts.add("paused")
        elif kind == ANNOUNCEMENT:
            peer = self._take_note(origin, notes.read_note(payload), now_ms)
        elif kind == SYNC:
            request = notes.read_request(payload)
            peer = self.groups.get(request.id.group)
            if peer is not None:
                peer.receive_request(request, streams.of(origin, now_ms), self.broadcast.peers, now_ms)
            elif self.is_gateway:
                self._miss(request.id.group)
        else:
            answer = notes.read_answer(payload)
            peer = self.groups.get(answer.id.group)
            if peer is not None:
                is_from_log = self.announcing.is_gateways(origin)
                peer.receive_answer(answer, len(payload), streams.of(origin, now_ms), now_ms, is_from_log=is_from_log)
        if peer is not None:
            self._settle(peer, now_ms)

    def _miss(self, group: str) -> None:
        """Tell of a group of the log that somebody here is in."""
        if group in self.advertised:
            self.events.append(Missed(group))

    def _take_note(self, origin: bytes, note: notes.Note, now_ms: float) -> PeerGroup | None:
        if isinstance(note, Announcement):
            self._take_announcement(origin, note, now_ms)
            return None
        peer = self.groups.get(note.group)
        if isinstance(note, JoinAnswer):
            if peer is not None:
                if not self.is_paused:
                    peer.take_join_of(note, now_ms)
                peer.receive_join_answer(note, now_ms)
                peer.check_join(self.present(now_ms), self.announcing.gateways, now_ms)
            return peer
        if not self.announcing.is_gateways(origin):
            self.counts.add("not_from_log")
            return None
        if isinstance(note, RefusedByLog):
            if note not in self._refusals:  # several gateways may tell of it
                self._refusals[note] = None
                self.events.append(RecordRefused(note.group, note.id, note.code, note.reason))
            if len(self._refusals) > REFUSALS_MAX:
                del self._refusals[next(iter(self._refusals))]
            if peer is not None and note.id is not None:
                peer.log_coverage.drop([note.id])
        elif peer is not None:
            peer.log_coverage.tell(note.create, read_have(note.have, note.name))
            if note.create is not None:
                self._meet(peer, note.create, now_ms, is_from_log=True)
        return peer

    def _take_announcement(self, origin: bytes, note: Announcement, now_ms: float) -> None:
        self.announcing.take(origin, note, self.broadcast.streams, now_ms)
        if note.is_gateway and note.limits is not None and not self.is_gateway:
            self.take_limits(self.limits.taking(note.limits))
        infos = []
        for one in note.groups:
            peer = self.groups.get(one.group)
            if peer is None or peer.own_join.left:
                known = self.directory.known.get(one.group)
                is_known = one.create is None or (known is not None and known.create == one.create)
                if is_known or self._is_create(one.create, one.group):
                    infos.append(GroupInfo(one.group, one.order, one.view, one.create))
                continue
            if one.create is not None and one.create != peer.records.create:
                self._meet(peer, one.create, now_ms, is_from_log=False)
                self._settle(peer, now_ms)
            view = peer.speaking.knowledge.view
            if merge(view, one.view) != view:
                peer.sync_schedule.lacks(now_ms)  # it began the group by itself, before any heard of the other
        for info in self.directory.receive(infos):
            self._offer(info)

    def _offer(self, info: GroupInfo) -> None:
        """Tell the application of a group, unless what is offered already takes too much memory."""
        self._offered_bytes += _size_of(info)
        if self._offered_bytes > OFFERED_BYTES_MAX:
            self._offered_bytes = sum(map(_size_of, self.directory.known.values()))  # some were joined or declined
        if self._offered_bytes > OFFERED_BYTES_MAX:
            self.directory.decline(info.group)
            self.counts.add("offers_crowded_out")
            return
        self.events.append(Offered(info))

    def _meet(self, peer: PeerGroup, create: bytes, now_ms: float, *, is_from_log: bool) -> None:
        """Another `create` of a group: the log's stands, else the one whose bytes are the least."""
        mine = peer.records.create
        if mine == create or (peer.log_coverage.create is not None and create != peer.log_coverage.create):
            return
        if (is_from_log or mine is None or create < mine) and self._is_create(create, peer.group):
            peer.adopt(create, now_ms)

    def _is_create(self, value: bytes | None, group: str) -> bool:
        """Whether this is a record that creates this group, and one the kernel takes; else it is counted."""
        try:
            record = None if value is None else read(value, self.limits)
        except Malformed:
            record = None
        if value is not None and isinstance(record, Create) and record.group == group and begins(group, value):
            return True
        self.counts.add("bad_create")
        return False

    def present(self, now_ms: float) -> set[str] | None:
        """The names of all others that are heard; None while some of them are not known."""
        return self.announcing.present(self.broadcast.streams, now_ms)

    def _settle(self, peer: PeerGroup, now_ms: float) -> None:
        """Pass on what a group has to send."""
        if peer.out:
            self._unsent += peer.out
            peer.out.clear()
            self._flush(now_ms)

    def _flush(self, now_ms: float) -> None:
        if not self._unsent:
            return
        sent = 0
        try:
            for kind, payload in self._unsent:
                if kind == PADDING:
                    self.broadcast.pad(len(payload))
                elif len(payload) <= PAYLOAD_BYTES_MAX:
                    self.broadcast.send(kind, payload, now_ms)
                else:
                    self.counts.add("too_large")
                sent += 1
        except Refused:
            pass  # the rest goes when there is room
        del self._unsent[:sent]


def _size_of(info: GroupInfo) -> int:
    return 200 + len(info.create or b"") + len(info.order) + 100 * len(info.view)
