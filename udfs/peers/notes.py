"""What peers tell each other beside records, as MessagePack in the payloads of the broadcast.

data            the group's name, and a raw record as it is (`write_data`, `read_data`)
announcement    who is there, and what gateways and members say of a group: one of the types of `Note`
sync            a `SyncRequest`: what its sender has of a group (synchronising.py)
page            a `SyncAnswer`: some of what another one lacks
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias, TypeVar

import msgspec

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.frames import BAD_BODY, FrameFault
from precede.udfs.peers.streams import AMPLIFICATION
from precede.udfs.records.messages import SEQ_MAX, Id, Who

RUNS_MAX = 100_000
"""How many runs one request may name in all."""


class PeerFault(ValueError):
    """A peer broke the rules; drop what it sent."""


class SyncId(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a request; `number` counts from 1 in each epoch of the requester."""

    name: str
    epoch: int
    group: str
    number: int


Have = tuple[str, int, int | list[int]]
"""sender, epoch, and runs as `Runs.dump` returns them."""


class SyncRequest(msgspec.Struct, frozen=True):
    """Who asks, and what it has: [sender, epoch, runs], the runs as `Runs.dump` returns them."""

    id: SyncId
    have: list[Have]
    controls: int = 0
    """A checksum of the membership records that the requester has."""


class SyncAnswer(msgspec.Struct, frozen=True):
    """Messages for the requester, each with its id, in the order in which the answering member has them."""

    name: str
    id: SyncId
    messages: list[tuple[Id, bytes]]
    has_more: bool = False
    """Whether this is a page, and the requester should ask for the next."""
    settled: list[Have] = []
    """What the answering member has delivered and no longer keeps, and the requester lacks."""
    controls: list[bytes] = []
    """The group's `create`, and the latest records about each member."""
    time: int = 0
    """The linear time that the group has reached; it is in the last of several pages with membership records."""


def is_later(one: SyncId, other: SyncId) -> bool:
    """Whether one request of a member is later than another."""
    return (one.epoch, one.number) > (other.epoch, other.number)


def read_have(have: Iterable[Have], by: str, *, runs_max: int | None = None) -> dict[Who, Runs]:
    """The runs that another member named, checked. Raises PeerFault."""
    found: dict[Who, Runs] = {}
    most = RUNS_MAX if runs_max is None else runs_max
    count = 0
    for name, epoch, dumped in have:
        numbers = [dumped] if isinstance(dumped, int) else dumped
        count += 1 + len(numbers) // 2
        if count > most:
            raise PeerFault(f"The list of {by!r} names more than {most} runs.")
        if not _are_runs(numbers):
            raise PeerFault(f"The list of {by!r} names invalid runs of {name!r} (epoch {epoch}).")
        runs = Runs()
        runs.fill(dumped)
        found[name, epoch] = runs
    return found


def _are_runs(numbers: Iterable[int]) -> bool:
    """A prefix, then growing bounds that do not touch what is before them."""
    prefix, *beyond = list(numbers) or [-1]
    bounds = [prefix + 1, *beyond]
    grow = all(low < high for low, high in pairwise(bounds))
    return 0 <= prefix <= SEQ_MAX and len(beyond) % 2 == 0 and grow and bounds[-1] <= SEQ_MAX + 1


class Announcement(msgspec.Struct, frozen=True, tag="here"):
    """Who is there, and in which groups: the document's advMsg and grpsInfoList in one."""

    name: str
    is_gateway: bool
    asks: bool
    """Whether all others should say what they are in."""
    groups: list[GroupInfo]
    has_more: bool = False
    """Whether those who asked have not earned to be told of all groups yet."""
    limits: tuple[int, int, int] | None = None
    """Of a gateway: how many entries `after`, `to` and `seen` of a record of its log may have."""


class JoinAnswer(msgspec.Struct, frozen=True, tag="welcome"):
    """A member has taken a join into account; nothing that it will deliver before the joiner speaks lies above this."""

    group: str
    joiner: str
    epoch: int
    name: str
    time: int
    members: list[str] = []
    """Who is in the group, as far as this member knows: the joiner waits for their answers, too.

    Of many members those that joined last; the others are in the history of the group.
    """
    join: bytes = b""
    """The record of the join: everyone who hears what this member says from here on must have it."""


class InLog(msgspec.Struct, frozen=True, tag="in_log"):
    """A gateway tells what of a group the log has."""

    group: str
    name: str
    create: bytes | None
    """The `create` record in the log, if there is one: it counts before any other."""
    have: list[Have]


class RefusedByLog(msgspec.Struct, frozen=True, tag="refused"):
    """A gateway tells that the log refused a record."""

    group: str
    id: Id | None
    code: str
    reason: str


ANSWER_COST = 100
"""What an answer to a join takes beside the names in it, about."""

IN_LOG_BYTES_MAX = 256 * 1024
"""What a note about the log takes beside the `create` of its group; more than that goes into several."""
NUMBER_BYTES = 9
"""The most that a number takes."""

Note: TypeAlias = Announcement | JoinAnswer | InLog | RefusedByLog

Said = TypeVar("Said")

encode = msgspec.msgpack.Encoder().encode
_notes: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)
_requests = msgspec.msgpack.Decoder(SyncRequest)
_answers = msgspec.msgpack.Decoder(SyncAnswer)


def newest_members(members: Iterable[str], group: str, join_bytes: int) -> list[str]:
    """Who is named in the answer to a join of this size: as many as make the answer no larger than what draws it."""
    left = (AMPLIFICATION - 1) * join_bytes - ANSWER_COST - len(group)  # the join is in it, too
    found: list[str] = []
    for name in reversed(list(members)):
        left -= 4 * len(name) + NUMBER_BYTES
        if left < 0:
            break
        found.append(name)
    return found


def in_notes(have: list[Have]) -> Iterator[list[Have]]:
    """What the log has, cut into as many notes as it takes; one at least."""
    note: list[Have] = []
    size = 0
    for one in have:
        name, _, runs = one
        bytes_most = 4 * len(name) + NUMBER_BYTES * (2 + (len(runs) if isinstance(runs, list) else 1))
        if note and size + bytes_most > IN_LOG_BYTES_MAX:
            yield note
            note, size = [], 0
        note.append(one)
        size += bytes_most
    yield note


def read_note(payload: bytes) -> Note:
    """An announcement. Raises FrameFault."""
    return _read(_notes, payload)


def read_request(payload: bytes) -> SyncRequest:
    """What somebody lacks. Raises FrameFault."""
    return _read(_requests, payload)


def read_answer(payload: bytes) -> SyncAnswer:
    """A page. Raises FrameFault."""
    return _read(_answers, payload)


def _read(decoder: msgspec.msgpack.Decoder[Said], payload: bytes) -> Said:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # a text that is not UTF-8 is a ValueError
        raise FrameFault(BAD_BODY) from error


def write_data(group: bytes, record: bytes) -> bytes:
    """A record of a group, as a payload."""
    return bytes([len(group)]) + group + record


def read_data(payload: bytes) -> tuple[bytes, bytes]:
    """The group and the record of a payload. Raises FrameFault."""
    end = 1 + payload[0] if payload else 1
    if len(payload) <= end or end == 1:
        raise FrameFault(BAD_BODY)
    return payload[1:end], payload[end:]
