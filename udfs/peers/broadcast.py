"""Broadcast that loses nothing: every payload that a peer sends reaches every honest peer that stays reachable.

    payload -> frames -> datagrams      sending.py, with fragments.py and frames.py
    datagram -> frames -> payloads      here
    what is missing                     streams.py knows it, asking.py asks for it, repairing.py sends it again

Payloads are handed over as they arrive, in no order, but for those that keep their turn (origin_order.py); a copy of
one may come more than once, where a peer can no longer tell. What could not be repaired is counted in `lost`: the
caller has to synchronise.

Duties of the caller: hand every datagram that was received to `receive`; call `due` when the socket is drained and
`deadline_ms` has come, and send what it returns; let `now_ms` never run back; and never use an origin twice.
"""

from collections.abc import Callable

from precede.udfs.errors import Refused
from precede.udfs.peers.asking import Asking
from precede.udfs.peers.fragments import PENDING_BYTES_MAX, Reassembly, cut
from precede.udfs.peers.frames import (
    FRAGMENT,
    FRAGMENT_BYTES,
    HEARTBEAT,
    PADDING,
    PAYLOADS,
    REPAIR,
    REQUEST,
    SEQUENCED,
    VECTOR_ENTRY,
    Chance,
    Codec,
    DropCounts,
    Frame,
    FrameFault,
    claims_origin,
    frame_bytes,
    read_heartbeat,
    read_repair,
    read_request,
    write_heartbeat,
)
from precede.udfs.peers.origin_order import Arrival, OriginOrder, none_keeps_turn
from precede.udfs.peers.repairing import STORE_BYTES_MAX, FrameStore, Repairing
from precede.udfs.peers.sending import ROOM, Sending
from precede.udfs.peers.streams import LOOKAHEAD, LOOKBACK, PROVEN_DATAGRAMS, OriginStream, Streams

HEARTBEAT_MS_MIN = 10.0
HEARTBEAT_MS_MAX = 500.0
"""After each own frame the heartbeats come after HEARTBEAT_MS_MIN, then after twice as long each time."""
ACK_MS = 20.0
"""How long after its arrival a frame is confirmed; with more than PEERS_USUAL peers it takes longer in proportion."""
PEERS_USUAL = 8
ACK_FRAMES = 96
"""So many frames of one origin are confirmed at once."""
VECTOR_IDLE = 8
"""How many origins a heartbeat names in turn, beside those that something came from."""
VECTOR_MAX = 48
REQUESTED_MAX = 2_048
"""So many frames of one request are looked up; who needs more asks again."""
SILENT_MS = 600.0
"""What others say about an origin counts once it has been silent for this time; before that it speaks for itself."""
QUEUED_BYTES_MAX = 16 * 1024 * 1024
SPOKEN_BYTES_MAX = 1024 * 1024
"""With more than this in the queue an application has to wait, so that what it says is not old when it goes out."""
HOUSEKEEPING_MS = 1_000.0


class Broadcast:
    """One peer's part of a segment."""

    def __init__(
        self,
        origin: bytes,
        codec: Codec,
        chance: Chance,
        *,
        now_ms: float,
        store_bytes_max: int = STORE_BYTES_MAX,
        keeps_turn: Callable[[int, bytes], bool] = none_keeps_turn,
    ) -> None:
        """`keeps_turn` says of a payload, by kind, whether it may not overtake earlier ones of its origin."""
        self.origin = origin
        self.counts = DropCounts()
        self._lost = 0
        self._codec = codec
        self.streams = Streams()
        self._store = FrameStore(store_bytes_max)
        self._origin_order = OriginOrder(keeps_turn)
        self._reassembly = Reassembly(self.counts, bytes_max=PENDING_BYTES_MAX)
        self.asking = Asking(self.streams, chance)
        self.repairing = Repairing(origin, self._store, chance, self.counts)
        self.sending = Sending(origin, self._store)
        self._heartbeat_ms = now_ms
        self._heartbeat_pause_ms = HEARTBEAT_MS_MIN
        self._ack_ms: float | None = None
        self._next_named = 0
        self._peers = 1
        self._padding = 0
        self._hears_itself = False
        """Whether an own datagram has come back, and was verified."""
        self._housekeeping_ms = now_ms + HOUSEKEEPING_MS

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, kind: int, payload: bytes, now_ms: float) -> None:
        """Send a payload to all. Raises Refused while too much waits to be sent."""
        if kind not in PAYLOADS:
            raise ValueError(f"a payload is of one of the kinds {sorted(PAYLOADS)}, not {kind}")
        if self.sending.queued_bytes + len(payload) > QUEUED_BYTES_MAX:
            raise Refused(
                f"{self.sending.queued_bytes:,} bytes wait to be sent, as the peers of the segment cannot follow: wait,"
                " and send it again."
            )
        self.sending.put(cut(kind, payload), self._peers, now_ms)

    def pad(self, size: int) -> None:
        """Say so many bytes that mean nothing: they earn what others will send (streams.py)."""
        self._padding += size

    def has_room(self, size: int) -> bool:
        """Whether a payload of this size, and some small ones beside it, may be sent now."""
        return not self.sending.queued_bytes or self.sending.queued_bytes + size <= SPOKEN_BYTES_MAX

    def due(self, now_ms: float, *, is_drained: bool = True) -> list[bytes]:
        """The datagrams to send now; where more lies in the socket, nothing is asked for yet."""
        if now_ms >= self._housekeeping_ms:
            self._keep_house(now_ms)
        datagrams = self.sending.due(self._peers, now_ms)
        if datagrams:
            self._heartbeat_pause_ms = HEARTBEAT_MS_MIN
            self._heartbeat_ms = now_ms + HEARTBEAT_MS_MIN
        is_beat = now_ms >= self._heartbeat_ms
        if is_beat or (self._ack_ms is not None and now_ms >= self._ack_ms):
            beat = self._heartbeat(is_beat)
            if datagrams and sum(map(len, datagrams[-1])) + len(beat) <= ROOM:
                datagrams[-1].append(beat)
            else:
                datagrams.append([beat])
            if is_beat:
                self._heartbeat_pause_ms = min(2 * self._heartbeat_pause_ms, HEARTBEAT_MS_MAX)
                self._heartbeat_ms = now_ms + self._heartbeat_pause_ms
        while self._padding:
            size = min(self._padding, FRAGMENT_BYTES)
            self._padding -= size
            datagrams.append([frame_bytes(PADDING, 0, bytes(size))])
        datagrams += self.repairing.due(now_ms)
        if is_drained:
            datagrams += self.asking.due(now_ms)
        encoded = [self._codec.encode(self.origin, frames) for frames in datagrams]
        for datagram in encoded:
            self.asking.say(len(datagram))
        return encoded

    def deadline_ms(self) -> float:
        times = [self._heartbeat_ms, self._housekeeping_ms]
        parts = self.sending.deadline_ms(), self._ack_ms, self.repairing.deadline_ms(), self.asking.deadline_ms()
        return min(times + [time for time in parts if time is not None])

    @property
    def lost(self) -> int:
        """How many frames or payloads could not be repaired."""
        return self._lost + self.asking.given_up

    @property
    def peers(self) -> int:
        """How many processes are present, this one included."""
        return self._peers

    def is_confirmed(self, now_ms: float) -> bool:
        """Whether all that was sent is with every present peer."""
        return self.sending.queued_bytes == 0 and self.sending.confirmed(now_ms) == self.sending.seq

    def _heartbeat(self, is_beat: bool) -> bytes:
        """The frame that tells what this peer has sent, and what it has of others."""
        named = [stream for stream in self.streams.by_origin.values() if stream.unacked][:VECTOR_MAX]
        rest = list(self.streams.by_origin.values()) if is_beat else []
        for _ in range(min(len(rest), VECTOR_IDLE)):
            self._next_named = (self._next_named + 1) % len(rest)
            if not rest[self._next_named].unacked and rest[self._next_named].begun:
                named.append(rest[self._next_named])
        for stream in named:
            stream.unacked = 0
        self._ack_ms = None
        first_kept = self._store.first_kept(self.origin) or self.sending.seq + 1
        body = write_heartbeat(first_kept, [stream.entry() for stream in named])
        return frame_bytes(HEARTBEAT, self.sending.seq + 1, body)

    def _keep_house(self, now_ms: float) -> None:
        self._housekeeping_ms = now_ms + HOUSEKEEPING_MS
        self._lost += self._reassembly.expire(now_ms)
        self.streams.forget_silent(now_ms)
        live = list(self.streams.live(now_ms))
        self.sending.forget({stream.origin for stream in live})
        self._peers = 1 + sum(stream.datagrams >= PROVEN_DATAGRAMS for stream in live)

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, datagram: bytes, now_ms: float) -> list[Arrival]:
        """Take in a datagram; returns the payloads that are complete now."""
        if self._hears_itself and claims_origin(datagram, self.origin):
            self.counts.add("own")
            return []
        try:
            origin, frames = self._codec.decode(datagram)
        except FrameFault as fault:
            self.counts.add(fault.code)
            return []
        if origin == self.origin:
            self._hears_itself = True
            self.counts.add("own")
            return []
        stream = self.streams.get(origin)
        if stream is None:
            stream = self.streams.heard(origin, now_ms)
        else:
            stream.heard_ms = now_ms
            stream.datagrams += 1
            if stream.datagrams == PROVEN_DATAGRAMS:
                self._peers += 1
        stream.earn(len(datagram))
        arrived = self._origin_order.take_all(self.streams) if self._origin_order.size else []
        taken = self._take_next(stream, frames, now_ms)
        arrived += taken
        for kind, number, body in frames[len(taken) :] if taken else frames:
            try:
                if kind in SEQUENCED:
                    self._take(stream, kind, number, body, arrived, now_ms)
                elif kind == HEARTBEAT:
                    self._take_heartbeat(stream, number, body, now_ms)
                elif kind == REPAIR:
                    self._take_repair(number, body, arrived, now_ms)
                elif kind == REQUEST:
                    self._take_request(stream, body, now_ms)
                else:
                    assert kind == PADDING
            except FrameFault as fault:
                self.counts.add(fault.code)
            except Exception as error:  # noqa: BLE001 (frames.py)
                self.counts.fault(error)
        return arrived

    def _take_next(self, stream: OriginStream, frames: list[Frame], now_ms: float) -> list[Arrival]:
        """The usual case: all goes on where the origin was, and nothing is missing. Takes the frames that do so."""
        runs = stream.runs
        if not stream.begun or runs.beyond or stream.wanted:
            return []
        origin = stream.origin
        first = seq = runs.prefix + 1
        arrived: list[Arrival] = []
        for kind, number, body in frames:
            if number != seq or kind not in PAYLOADS:
                break
            arrived.append((origin, kind, body))
            seq += 1
        if not arrived:
            return []
        self._store.put_next(origin, first, [(kind, body) for _, kind, body in arrived])
        stream.advance(seq - first, sum([len(body) for _, _, body in arrived]))
        if stream.noticed < stream.highest:
            self.asking.notice(stream, now_ms)
        self._owe(stream, len(arrived), now_ms)
        return arrived

    def _take(
        self, stream: OriginStream, kind: int, seq: int, body: bytes, arrived: list[Arrival], now_ms: float
    ) -> None:
        """A frame of an origin, from itself or in a repair."""
        if not stream.begun:
            stream.begin(max(1, seq - LOOKBACK))
        is_known = seq <= stream.runs.prefix or seq in stream.runs
        if is_known:
            if self._store.get(stream.origin, seq) == (kind, body):
                self.counts.add("copies")
                return
            self.counts.add("unknown_copies")  # perhaps forged, perhaps the true one: those above can tell
        elif not stream.is_taken(seq):
            self.counts.add("lookahead")
            stream.claim(seq)
            self.asking.notice(stream, now_ms)
            return
        complete = self._reassembly.add(stream.origin, seq, body, now_ms) if kind == FRAGMENT else (kind, body)
        if not is_known:
            self._note(stream, kind, seq, body, now_ms)
        if complete is not None:
            self._arrive(stream, seq, *complete, arrived)
        if self._origin_order.size:
            arrived += self._origin_order.take(stream.origin, stream)

    def _arrive(self, stream: OriginStream, seq: int, kind: int, payload: bytes, arrived: list[Arrival]) -> None:
        """A payload is complete with this frame, and may have to wait for the ones before."""
        if seq <= stream.runs.prefix or not self._origin_order.keeps_turn(kind, payload):
            arrived.append((stream.origin, kind, payload))
        elif self._origin_order.has_room(len(payload)):
            self._origin_order.put(stream.origin, seq, kind, payload)
        else:
            self._lost += 1

    def _note(self, stream: OriginStream, kind: int, seq: int, body: bytes, now_ms: float) -> None:
        """A frame is here that was not here before."""
        runs = stream.runs
        if seq == runs.prefix + 1 and not runs.beyond:
            runs.prefix = seq
        else:
            runs.add(seq)
        self._store.put(stream.origin, seq, kind, body)
        stream.mean_bytes += (len(body) - stream.mean_bytes) / 16
        if stream.wanted and stream.wanted.pop(seq, None) is not None:
            stream.unanswered = 0
        if seq > stream.highest:
            stream.highest = seq
            if seq == stream.noticed + 1:
                stream.noticed = seq
        if stream.noticed < stream.highest:
            self.asking.notice(stream, now_ms)
        self._owe(stream, 1, now_ms)

    def _owe(self, stream: OriginStream, count: int, now_ms: float) -> None:
        """So many frames have to be confirmed: after a while, or now if they are many."""
        before = stream.unacked
        stream.unacked += count
        if self._ack_ms is None:
            self._ack_ms = now_ms + ACK_MS * max(1.0, self._peers / PEERS_USUAL)
        elif before < ACK_FRAMES <= stream.unacked:
            self._ack_ms = now_ms

    def _take_heartbeat(self, stream: OriginStream, next_seq: int, body: bytes, now_ms: float) -> None:
        first_kept, vector = read_heartbeat(body)
        if not stream.begun:
            stream.begin(max(1, first_kept, next_seq - LOOKBACK))
        elif first_kept > stream.runs.prefix + LOOKAHEAD and first_kept <= next_seq:
            self._lost += 1  # it has forgotten what is missing here
            stream.begin(first_kept)
        elif next_seq + LOOKAHEAD < stream.runs.prefix:
            stream.begin(max(1, next_seq - LOOKBACK))  # it has never been as far as others said
        stream.first_kept = first_kept
        stream.deny(next_seq)
        self._claim(stream, next_seq - 1, now_ms)
        for origin, prefix, highest in vector:
            if origin == self.origin:
                if not self.sending.confirm(stream.origin, prefix, now_ms):
                    self.counts.add("bad_vector")
                continue
            named = self.streams.get(origin)
            is_silent = named is not None and named.begun and named.heard_ms + SILENT_MS < now_ms
            if named is not None and is_silent and highest > named.runs.prefix:
                named.ask_credit += VECTOR_ENTRY.size
                self._claim(named, highest, now_ms)

    def _claim(self, stream: OriginStream, highest: int, now_ms: float) -> None:
        """Somebody says that these frames exist."""
        stream.claim(highest)
        if stream.noticed < stream.highest:
            self.asking.notice(stream, now_ms)

    def _take_repair(self, seq: int, body: bytes, arrived: list[Arrival], now_ms: float) -> None:
        origin, kind, content = read_repair(body)
        self.repairing.heard(origin, seq, now_ms)
        stream = self.streams.get(origin)
        if stream is not None and stream.begun and seq > 0:
            self._take(stream, kind, seq, content, arrived, now_ms)

    def _take_request(self, stream: OriginStream, body: bytes, now_ms: float) -> None:
        left = REQUESTED_MAX
        may_ask = True
        for origin, first, last in read_request(body):
            last = min(last, first + left - 1)
            left -= last - first + 1
            may_ask = may_ask and self.repairing.request(stream, origin, first, last, peers=self._peers, now_ms=now_ms)
            self.asking.others_ask(origin, first, last, now_ms)
