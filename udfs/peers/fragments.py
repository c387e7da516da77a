"""Payloads that are too large for one datagram: cut into fragments, each a frame of its own, and put together again.

IP would cut large datagrams too, but at 1 % loss almost none of them arrive. A lost fragment is repaired like any
other frame. What is not complete after some time, or does not fit into the memory set aside, is dropped and counted:
the payload is then missing here, and the caller has to get it by other means (synchronising).
"""

from collections import OrderedDict
from struct import Struct
from zlib import crc32

import msgspec

from precede.udfs.peers.frames import BAD_BODY, FRAGMENT, FRAGMENT_BYTES, PAYLOADS, DropCounts, FrameFault

HEAD = Struct(">BHHI")
"""kind of the payload, index of this fragment, how many there are, checksum (CRC-32) of the whole payload."""

PAYLOAD_BYTES_MAX = 512 * 1024 + 4096
"""A record of the largest size, and what stands around it."""
PENDING_BYTES_MAX = 8 * 1024 * 1024
PENDING_MS_MAX = 30_000
"""How long a payload waits for its next fragment."""

INCOMPLETE = "incomplete"
"""Dropped, because its other fragments did not come in time."""
CROWDED_OUT = "crowded_out"
"""Dropped, because the memory for incomplete payloads was full."""
MISMATCH = "mismatch"
"""The fragments did not make the payload that they announced."""

Key = tuple[bytes, int, int, int]
"""origin, seq of the first fragment, how many, checksum: a forged fragment cannot enter another one's payload."""


def cut(kind: int, payload: bytes) -> list[tuple[int, bytes]]:
    """The frames of a payload, as kind and body: itself if it is small, else its fragments."""
    if len(payload) <= FRAGMENT_BYTES:
        return [(kind, payload)]
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
    parts = [payload[at : at + FRAGMENT_BYTES] for at in range(0, len(payload), FRAGMENT_BYTES)]
    checksum = crc32(payload)
    return [(FRAGMENT, HEAD.pack(kind, index, len(parts), checksum) + part) for index, part in enumerate(parts)]


class _Pending(msgspec.Struct):
    """A payload of which some fragments are here."""

    parts: dict[int, bytes]
    size: int
    touched_ms: float


class Reassembly:
    """Puts fragments together; memory and time are bounded."""

    def __init__(self, counts: DropCounts, *, bytes_max: int = PENDING_BYTES_MAX) -> None:
        self._counts = counts
        self._bytes_max = bytes_max
        self._pending: OrderedDict[Key, _Pending] = OrderedDict()
        """The one that got a fragment last stands last, so what is on its way is not crowded out by what never ends."""
        self.size = 0
        """The bytes of all fragments that wait."""

    def add(self, origin: bytes, seq: int, body: bytes, now_ms: float) -> tuple[int, bytes] | None:
        """Take in a fragment; returns kind and payload once that is complete. Raises FrameFault."""
        if len(body) < HEAD.size:
            raise FrameFault(BAD_BODY)
        kind, index, count, checksum = HEAD.unpack_from(body)
        part = body[HEAD.size :]
        is_last = index == count - 1
        fits = index < count and seq > index and 2 <= count <= -(-PAYLOAD_BYTES_MAX // FRAGMENT_BYTES)
        if not fits or kind not in PAYLOADS or not part or (len(part) != FRAGMENT_BYTES and not is_last):
            raise FrameFault(BAD_BODY)
        key = origin, seq - index, count, checksum
        pending = self._pending.get(key)
        if pending is None:
            self._make_room(now_ms)
            pending = self._pending[key] = _Pending({}, 0, now_ms)
        if index in pending.parts:
            return None
        self._pending.move_to_end(key)
        pending.parts[index] = part
        pending.touched_ms = now_ms
        pending.size += len(part)
        self.size += len(part)
        if len(pending.parts) < count:
            while self.size > self._bytes_max:
                self._drop_first(CROWDED_OUT)
            return None
        self._forget(key)
        payload = b"".join([pending.parts[at] for at in range(count)])
        if crc32(payload) != checksum:
            raise FrameFault(MISMATCH)
        return kind, payload

    def expire(self, now_ms: float) -> int:
        """Drop what is incomplete for too long; returns how many payloads were dropped."""
        dropped = 0
        while self._pending and next(iter(self._pending.values())).touched_ms + PENDING_MS_MAX <= now_ms:
            self._drop_first(INCOMPLETE)
            dropped += 1
        return dropped

    def deadline_ms(self) -> float | None:
        return next((one.touched_ms + PENDING_MS_MAX for one in self._pending.values()), None)

    def _make_room(self, now_ms: float) -> None:
        """A payload with few bytes here costs memory, too."""
        self.expire(now_ms)
        while len(self._pending) >= self._bytes_max // FRAGMENT_BYTES:
            self._drop_first(CROWDED_OUT)

    def _drop_first(self, code: str) -> None:
        self._forget(next(iter(self._pending)))
        self._counts.add(code)

    def _forget(self, key: Key) -> None:
        self.size -= self._pending.pop(key).size
