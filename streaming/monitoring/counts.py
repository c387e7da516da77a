"""What was processed since the job began, and what each shard holds, counted on the driver from the packed rows."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from precede.streaming.places.place import Place
from precede.udfs.steps import NOTHING_WAITS, Records, ShardWaiting

FILE = "held.json"
EVERY_S = 10.0


@dataclass
class Counts:
    """The counts of one batch, or of all batches so far."""

    batches: int = 0
    read: int = 0
    delivered: int = 0
    dead: int = 0
    duplicates: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Dead letters by code."""
    next: dict[int, int] = field(default_factory=dict)
    """Per raw partition, the offset after the last processed one."""
    held: dict[int, int] = field(default_factory=dict)
    """Per shard, how many messages it holds; for one batch, only the shards that had records in it."""
    waiting: dict[int, ShardWaiting] = field(default_factory=dict)
    """Per shard, when the oldest held message arrived, and how many gaps there are."""
    state_bytes: dict[int, int] = field(default_factory=dict)
    """Per shard, the size of its state."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long the parts of the last batch took."""

    def add_row(self, shard: int, partition: int, offset: int, records: Records) -> None:
        """Count a packed row, whether or not its records are published already."""
        self.next[partition] = max(offset + 1, self.next.get(partition, 0))
        self.held[shard] = records.held
        if records.waiting is not None:
            self.waiting[shard] = records.waiting
            self.state_bytes[shard] = records.state_bytes

    def add_published(self, records: Records) -> None:
        """Count records that are published now."""
        self.read += records.read
        self.delivered += len(records.ordered)
        self.dead += len(records.dead)
        self.duplicates += records.duplicates
        self.codes.update(records.dead_codes)

    def add_batch(self, batch: "Counts") -> None:
        """Add the counts of a batch that is committed."""
        for name in ("batches", "read", "delivered", "dead", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(batch, name))
        for name in ("codes", "next", "held", "waiting", "state_bytes", "seconds"):
            mine = getattr(self, name)
            mine.update(getattr(batch, name))

    def forget_shards(self) -> None:
        """The query begins with other state, so what an earlier one said of its shards does not count."""
        for name in ("held", "waiting", "state_bytes"):
            getattr(self, name).clear()

    def lag(self, ends: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Raw records not yet processed, by partition; `ends` are the first and next offset of each partition."""
        return {at: max(0, end - max(first, self.next.get(at, 0))) for at, (first, end) in ends.items()}

    @property
    def held_now(self) -> int:
        return sum(self.held.values())

    @property
    def gaps_now(self) -> int:
        return sum(gaps for _, gaps in list(self.waiting.values()))

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest of the messages held now arrived."""
        return min((oldest for oldest, _ in list(self.waiting.values()) if oldest), default=None)


class _Shards(msgspec.Struct):
    """The file: per shard, messages held, bytes of its state, arrival of the oldest message held, gaps."""

    shards: dict[int, tuple[int, int, int, int]]
    v: int = 1


class CountsFile:
    """Keeps what each shard holds in the checkpoint's folder: a shard reports it only in batches with its records.

    It is written when it has changed and some seconds have passed, and at the end, because in a store each write costs.
    """

    def __init__(self, folder: Place) -> None:
        self._folder = folder
        self._written: dict[int, tuple[int, int, int, int]] | None = None
        self._written_at = time.monotonic()

    def save_if_due(self, counts: Counts) -> None:
        if time.monotonic() >= self._written_at + EVERY_S:
            self.save(counts)

    def save(self, counts: Counts) -> None:
        """Write it now, unless it is written like this already."""
        shards = {
            shard: (held, counts.state_bytes.get(shard, 0), *counts.waiting.get(shard, NOTHING_WAITS))
            for shard, held in counts.held.items()
        }
        self._written_at = time.monotonic()
        if shards == self._written:
            return
        self._written = shards
        with suppress(OSError):  # these numbers only inform; a full disk is reported by what needs the disk
            (self._folder / FILE).replace(msgspec.json.encode(_Shards(shards)), durable=False)


def load(folder: Place) -> Counts:
    """The counts at the start of a job: nothing is processed yet, but what is held is known."""
    counts = Counts()
    with suppress(OSError, msgspec.DecodeError):
        for shard, (held, size, oldest, gaps) in msgspec.json.decode(
            (folder / FILE).read(), type=_Shards
        ).shards.items():
            counts.held[shard] = held
            counts.state_bytes[shard] = size
            counts.waiting[shard] = (oldest, gaps)
    return counts
