"""What members say when they synchronise (synchronising.py): a request names what its sender has, answers are pages."""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from precede.udfs.engine.runs import Runs
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
