"""What peers put on the wire: datagrams that carry frames, with a keyed checksum where the segment has a key.

A datagram is a header, any number of frames, and the checksum if there is a key. All numbers are big-endian.

    header    magic 2 bytes "pS" | version 1 | flags 1 | segment 4 | origin 12
    frame     kind 1 | length of the body 2 | number 8 | body
    checksum  16 bytes: BLAKE2b with the segment's key over everything before it (flag 1)

The origin is the process that sent the datagram: 8 bytes that name it, and 4 that grow with each of its starts. It
numbers its sequenced frames 1, 2, 3, ... and sends each of them once; anyone may send one again inside a repair.
A datagram that breaks a rule is refused as a whole, before anything in it counts. docs/reference/frames.md has it all.
"""

import hashlib
import hmac
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

VERSION: Final = 1
MAGIC: Final = b"pS"
WITH_CHECKSUM: Final = 1
CHECKSUM_BYTES: Final = 16
KEY_BYTES_MIN: Final = 16
KEY_BYTES_MAX: Final = 64

HEADER = Struct(">2sBBI12s")
FRAME = Struct(">BHQ")
ORIGIN = Struct(">8sI")
ORIGIN_AT: Final = slice(8, 20)
REQUEST_ENTRY = Struct(">12sQH")
"""origin, first seq, how many."""
REPAIR_HEAD = Struct(">12sB")
"""origin and kind of the frame that is sent again."""
FIRST_KEPT = Struct(">Q")
VECTOR_ENTRY = Struct(">12sQI")
"""origin, all its frames up to this seq are here, and how far beyond that the highest one is."""

DATAGRAM_BYTES_MAX: Final = 1_452
"""The payload of UDP over IPv6 in an Ethernet frame of 1,500 bytes."""
BUNDLE_BYTES_MAX: Final = 1_400
"""A datagram with several frames is no larger than this."""
FRAGMENT_BYTES: Final = 1_376
"""A larger payload is cut into fragments of this size."""
INCARNATION_MAX: Final = 2**32 - 1

DATA: Final = 1
FRAGMENT: Final = 2
REQUEST: Final = 3
REPAIR: Final = 4
HEARTBEAT: Final = 5
PADDING: Final = 6
ANNOUNCEMENT: Final = 7
SYNC: Final = 8
PAGE: Final = 9

KIND_NAMES: Final = {
    DATA: "data",
    FRAGMENT: "fragment",
    REQUEST: "request",
    REPAIR: "repair",
    HEARTBEAT: "heartbeat",
    PADDING: "padding",
    ANNOUNCEMENT: "announcement",
    SYNC: "sync",
    PAGE: "page",
}
PAYLOADS: Final = frozenset({DATA, ANNOUNCEMENT, SYNC, PAGE})
"""The kinds that users of the broadcast send; a fragment carries a part of one of them."""
SEQUENCED: Final = PAYLOADS | {FRAGMENT}
"""The kinds whose number is a seq of their origin; all of them are repaired."""

RUNT: Final = "runt"
FOREIGN: Final = "foreign"
OTHER_VERSION: Final = "other_version"
OTHER_SEGMENT: Final = "other_segment"
NO_CHECKSUM: Final = "no_checksum"
UNEXPECTED_CHECKSUM: Final = "unexpected_checksum"
FORGED: Final = "forged"
TRUNCATED: Final = "truncated"
UNKNOWN_KIND: Final = "unknown_kind"
BAD_BODY: Final = "bad_body"
BAD_NUMBER: Final = "bad_number"
REFUSED_CODES: Final = (
    *(RUNT, FOREIGN, OTHER_VERSION, OTHER_SEGMENT, NO_CHECKSUM, UNEXPECTED_CHECKSUM, FORGED),
    *(TRUNCATED, UNKNOWN_KIND, BAD_NUMBER, BAD_BODY),
)
"""What no datagram of a peer of this segment, version and key is counted under."""
SEQ_MAX: Final = 2**53 - 1

Frame = tuple[int, int, bytes]
"""kind, number, body."""


class Chance(Protocol):
    """A source of chance, such as random.Random, that the caller hands in."""

    def random(self) -> float:
        """A number from 0 to 1."""

    def uniform(self, a: float, b: float) -> float:
        """A number from a to b."""


class FrameFault(ValueError):
    """A datagram or frame breaks the rules; `code` is what it is counted under."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class VectorEntry(NamedTuple):
    """What a peer has of one origin."""

    origin: bytes
    prefix: int
    highest: int


def make_origin(name: bytes, incarnation: int) -> bytes:
    """The origin of one process: 8 bytes that no other process of the segment has, and the count of its starts."""
    if len(name) != 8:
        raise ValueError(f"an origin is named by 8 bytes, not {len(name)}")
    if not 0 <= incarnation <= INCARNATION_MAX:
        raise ValueError(f"the incarnation must lie between 0 and {INCARNATION_MAX}, not be {incarnation}")
    return ORIGIN.pack(name, incarnation)


def segment_number(name: str) -> int:
    """The number that tells the datagrams of one segment from those of others at the same address."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4, person=b"precede-segment").digest())


def claims_origin(datagram: bytes, origin: bytes) -> bool:
    """Whether a datagram says that it is of this origin, which nothing has verified."""
    return datagram[ORIGIN_AT] == origin


def frame_bytes(kind: int, number: int, body: bytes) -> bytes:
    """One frame, ready to be put into a datagram."""
    return FRAME.pack(kind, len(body), number) + body


class Codec:
    """Writes and reads the datagrams of one segment."""

    def __init__(self, segment: int, key: bytes | None = None) -> None:
        if key is not None and not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
            raise ValueError(f"a segment key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, not {len(key)}")
        self._head = HEADER.pack(MAGIC, VERSION, 0 if key is None else WITH_CHECKSUM, segment, bytes(12))[:8]
        self._segment = segment
        self._keyed = None
        if key is not None:
            self._keyed = hashlib.blake2b(key=key, digest_size=CHECKSUM_BYTES, person=b"precede-frames")
        self.overhead = HEADER.size + (0 if key is None else CHECKSUM_BYTES)
        """How many bytes a datagram has beside its frames."""

    def encode(self, origin: bytes, frames: list[bytes]) -> bytes:
        """A datagram of these frames; the caller keeps it within the size."""
        datagram = b"".join((self._head, origin, *frames))
        return datagram if self._keyed is None else datagram + self._checksum(datagram)

    def decode(self, datagram: bytes) -> tuple[bytes, list[Frame]]:
        """The origin of a datagram and its frames. Raises FrameFault."""
        end = len(datagram)
        if end < self.overhead:
            raise FrameFault(RUNT)
        magic, version, flags, segment, origin = HEADER.unpack_from(datagram)
        if magic != MAGIC:
            raise FrameFault(FOREIGN)
        if version != VERSION:
            raise FrameFault(OTHER_VERSION)
        if segment != self._segment:
            raise FrameFault(OTHER_SEGMENT)
        if self._keyed is not None:
            if flags != WITH_CHECKSUM:
                raise FrameFault(NO_CHECKSUM)
            end -= CHECKSUM_BYTES
            if not hmac.compare_digest(datagram[end:], self._checksum(datagram[:end])):
                raise FrameFault(FORGED)
        elif flags:
            raise FrameFault(UNEXPECTED_CHECKSUM)
        frames: list[Frame] = []
        unpack, head_bytes = FRAME.unpack_from, FRAME.size
        at = HEADER.size
        while at < end:
            begin = at + head_bytes
            if begin > end:
                raise FrameFault(TRUNCATED)
            kind, length, number = unpack(datagram, at)
            at = begin + length
            if at > end:
                raise FrameFault(TRUNCATED)
            if kind not in KIND_NAMES:
                raise FrameFault(UNKNOWN_KIND)
            if number > SEQ_MAX or (number == 0 and kind in SEQUENCED):
                raise FrameFault(BAD_NUMBER)
            frames.append((kind, number, datagram[begin:at]))
        return origin, frames

    def _checksum(self, content: bytes) -> bytes:
        assert self._keyed is not None
        keyed = self._keyed.copy()
        keyed.update(content)
        return keyed.digest()


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_request(body: bytes) -> list[tuple[bytes, int, int]]:
    """Which frames are asked for: origin, first seq, last seq. Raises FrameFault."""
    if len(body) % REQUEST_ENTRY.size:
        raise FrameFault(BAD_BODY)
    entries = [(origin, first, first + count - 1) for origin, first, count in REQUEST_ENTRY.iter_unpack(body)]
    if any(not 1 <= first <= last <= SEQ_MAX for _, first, last in entries):
        raise FrameFault(BAD_BODY)
    return entries


def write_request(entries: list[tuple[bytes, int, int]]) -> bytes:
    """The body of a request: for each entry the origin, the first and the last seq, at most 65,535 of them."""
    return b"".join([REQUEST_ENTRY.pack(origin, first, last - first + 1) for origin, first, last in entries])


def read_repair(body: bytes) -> tuple[bytes, int, bytes]:
    """The origin, the kind and the body of a frame that is sent again. Raises FrameFault."""
    if len(body) < REPAIR_HEAD.size:
        raise FrameFault(BAD_BODY)
    origin, kind = REPAIR_HEAD.unpack_from(body)
    if kind not in SEQUENCED:
        raise FrameFault(BAD_BODY)
    return origin, kind, body[REPAIR_HEAD.size :]


def write_repair(origin: bytes, kind: int, body: bytes) -> bytes:
    return REPAIR_HEAD.pack(origin, kind) + body


def read_heartbeat(body: bytes) -> tuple[int, Iterator[VectorEntry]]:
    """The first own frame that the sender still keeps, and what it has of others. Raises FrameFault."""
    if len(body) < FIRST_KEPT.size or (len(body) - FIRST_KEPT.size) % VECTOR_ENTRY.size:
        raise FrameFault(BAD_BODY)
    (first_kept,) = FIRST_KEPT.unpack_from(body)
    entries = VECTOR_ENTRY.iter_unpack(body[FIRST_KEPT.size :])
    return first_kept, (VectorEntry(origin, prefix, prefix + beyond) for origin, prefix, beyond in entries)


def write_heartbeat(first_kept: int, vector: list[VectorEntry]) -> bytes:
    """The body of a heartbeat; its number is the next seq that the sender will use."""
    entries = [VECTOR_ENTRY.pack(one.origin, one.prefix, one.highest - one.prefix) for one in vector]
    return FIRST_KEPT.pack(first_kept) + b"".join(entries)


INTERNAL_ERROR = "internal_error"
"""An error of precede itself; the datagram, the frame or the turn of the group that raised it was passed over."""
FAULTS_MAX = 16
"""How many different errors are kept to be told."""


class DropCounts(dict[str, int]):
    """How often, by code."""

    def __init__(self) -> None:
        self._faults: list[Exception] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, code: str) -> None:
        self[code] = self.get(code, 0) + 1

    def fault(self, error: Exception) -> None:
        """Count an error of precede itself, and keep it where its kind and place are new."""
        self.add(INTERNAL_ERROR)
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = type(error).__name__, "" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        if place not in self._known and len(self._known) < FAULTS_MAX:
            self._known.add(place)
            self._faults.append(error)

    def take_faults(self) -> list[Exception]:
        """The errors that were not told yet."""
        faults, self._faults = self._faults, []
        return faults
