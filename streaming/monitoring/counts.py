"""What went through since the job began, and what each shard holds: counted on the driver from what a batch carries."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from precede.ingest.files import replace_file
from precede.udfs.shard import NOTHING_WAITS, Records, Waiting

FILE = "held.json"


@dataclass
class Counts:
    """Of one batch, or of all of them so far."""

    batches: int = 0
    read: int = 0
    delivered: int = 0
    dead: int = 0
    duplicates: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Dead letters by code."""
    next: dict[int, int] = field(default_factory=dict)
    """Per raw partition, the offset after the last one that is through."""
    held: dict[int, int] = field(default_factory=dict)
    """Per shard, how many messages it holds; of a batch, the shards that it touched."""
    waiting: dict[int, Waiting] = field(default_factory=dict)
    """Per shard, since when a message waits, and how many gaps there are."""
    state_bytes: dict[int, int] = field(default_factory=dict)
    """Per shard, what Spark keeps of it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long the parts of the last batch took."""

    def see(self, shard: int, partition: int, offset: int, records: Records) -> None:
        """A packed row passes, whether its records are still to be published or are out already."""
        self.next[partition] = max(offset + 1, self.next.get(partition, 0))
        self.held[shard] = records.held
        if records.waiting is not None:
            self.waiting[shard] = records.waiting
            self.state_bytes[shard] = records.state_bytes

    def publish(self, records: Records) -> None:
        """Its records are published now."""
        self.read += records.read
        self.delivered += len(records.ordered)
        self.dead += len(records.dead)
        self.duplicates += records.duplicates
        self.codes.update(records.dead_codes)

    def add(self, batch: "Counts") -> None:
        """A batch is out."""
        for name in ("batches", "read", "delivered", "dead", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(batch, name))
        for name in ("codes", "next", "held", "waiting", "state_bytes", "seconds"):
            mine = getattr(self, name)
            mine.update(getattr(batch, name))

    @property
    def held_now(self) -> int:
        return sum(self.held.values())

    @property
    def gaps_now(self) -> int:
        return sum(gaps for _, gaps in list(self.waiting.values()))

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest message that is held now arrived."""
        return min((oldest for oldest, _ in list(self.waiting.values()) if oldest), default=None)


class _Shards(msgspec.Struct):
    """The file: per shard, messages held, bytes of its state, arrival of the oldest message held, gaps."""

    shards: dict[int, tuple[int, int, int, int]]
    v: int = 1


def keep(folder: Path, counts: Counts) -> None:
    """Write what each shard holds beside the checkpoint: a shard says it only when a record touches it."""
    shards = {
        shard: (held, counts.state_bytes.get(shard, 0), *counts.waiting.get(shard, NOTHING_WAITS))
        for shard, held in counts.held.items()
    }
    with suppress(OSError):  # it only tells; a full disk is said by what needs the disk
        replace_file(folder / FILE, msgspec.json.encode(_Shards(shards)), durable=False)


def recall(folder: Path) -> Counts:
    """The counts of a job that goes on: nothing went through yet, but what is held is known."""
    counts = Counts()
    with suppress(OSError, msgspec.DecodeError):
        for shard, (held, size, oldest, gaps) in msgspec.json.decode(
            (folder / FILE).read_bytes(), type=_Shards
        ).shards.items():
            counts.held[shard] = held
            counts.state_bytes[shard] = size
            counts.waiting[shard] = (oldest, gaps)
    return counts
