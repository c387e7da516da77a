"""A local copy of the state topic, so that memory stays small and a start need not read that topic again.

It is only a copy: it holds, of each group, the state that the topic has, up to the topic's offsets in its mark. If
anything is wrong with it (torn, of another topic, of an earlier start of the machine, ahead of the token), it is thrown
away and made again from the topic.

Nothing is synced: a process that is killed leaves what it wrote, but a machine that goes down may not. So the mark
names the boot of the machine, and each state carries its checksum.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from confluent_kafka import KafkaException

from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import TopicReader
from precede.ingest.service.running import Say
from precede.ingest.sqlite_file import Rows, SqliteFile
from precede.ingest.state_topic import NewState, new_states
from precede.udfs.engine.snapshot import deadline_ms
from precede.udfs.rules import RULES
from precede.udfs.state_log import Waiting

VERSION = 1
FILE = "groups.sqlite"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PENDING_MAX = 10_000
"""So many states are written to the file at once."""
MEMORY_KIB = 16 * 1024
WAL_PAGES = 16_000
SETUP = f"""
PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -{MEMORY_KIB}; PRAGMA wal_autocheckpoint = {WAL_PAGES}
"""

SCHEMA = """
CREATE TABLE mark (value BLOB NOT NULL);
CREATE TABLE groups (
    key BLOB PRIMARY KEY, partition INTEGER NOT NULL, next INTEGER NOT NULL, rules INTEGER NOT NULL,
    pieces INTEGER NOT NULL, held INTEGER NOT NULL, oldest_ms INTEGER NOT NULL, gaps INTEGER NOT NULL,
    due_ms INTEGER, checksum INTEGER NOT NULL, blob BLOB NOT NULL
)
"""
INDEXES = """
CREATE INDEX by_next ON groups (partition, next);
CREATE INDEX those_due ON groups (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX those_holding ON groups (held) WHERE held > 0;
CREATE INDEX those_in_pieces ON groups (pieces) WHERE pieces > 1
"""
PUT = "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class CacheError(Exception):
    """The cache cannot be used any more; the state topic has all that was in it."""


class CacheSource(msgspec.Struct, frozen=True):
    """What a cache is a copy of."""

    state_topic_id: str
    stream: str
    """The id of the ordered topic."""
    partitions: tuple[int, ...]
    """The partitions of the job."""
    rules: int = RULES


class _Mark(msgspec.Struct):
    source: CacheSource
    positions: dict[int, int]
    """Per partition of the state topic, the offset up to which all is in the cache."""
    boot: str
    is_closed: bool = False
    """Whether it was closed in order, and synced; else it is good only until the machine starts again."""
    v: int = VERSION


class Cache(MutableMapping[bytes, bytes]):
    """The states by key of the group, as the kernel reads them; `put` writes them."""

    def __init__(self, source: CacheSource, folder: Path | None) -> None:
        """Make a new one, in memory where there is no folder; `open_cache` goes on with one that is there."""
        self.path = None if folder is None else folder / FILE
        self._pending: dict[bytes, NewState] = {}
        self._mark = _Mark(source, {}, _boot_id())
        self._connect()
        # A new file has no journal: nothing of it counts before it is complete.
        self._file.run("PRAGMA journal_mode = OFF", *SCHEMA.split(";"))

    @property
    def positions(self) -> dict[int, int]:
        """Per partition of the state topic, the offset up to which all is here."""
        return self._mark.positions

    # ── as the kernel reads it ────────────────────────────────────────────────────────────────────────────────────

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        """The state of a group; most groups that are looked for are new."""
        pending = self._pending.get(key)
        if pending is not None:
            return pending.state.blob
        found = self._file.one("SELECT blob, checksum FROM groups WHERE key = ?", (key,))
        if found is None:
            return default
        blob: bytes = found[0]
        checksum: int = found[1]
        if crc32(blob) != checksum:
            raise CacheError(f"the state of group {key.decode(errors='replace')!r} is damaged")
        return blob

    def __getitem__(self, key: bytes) -> bytes:
        blob = self.get(key)
        if blob is None:
            raise KeyError(key)
        return blob

    def __setitem__(self, key: bytes, blob: bytes) -> None:
        """Ignored: the kernel puts only groups away whose state is in the topic, and so here, as it is."""

    def __delitem__(self, key: bytes) -> None:
        raise NotImplementedError("a group never ends")

    def __iter__(self) -> Iterator[bytes]:
        self._write_pending()
        for (key,) in self._ask("SELECT key FROM groups ORDER BY key"):
            yield key

    def __len__(self) -> int:
        self._write_pending()
        return int(next(self._ask("SELECT COUNT(*) FROM groups"))[0])

    # ── as the engine writes it ───────────────────────────────────────────────────────────────────────────────────

    def put(self, one: NewState) -> None:
        """Take a state that the topic has; the mark still says where the topic was before."""
        self._pending[one.group] = one
        if len(self._pending) >= PENDING_MAX:
            self._write_pending()

    def note_positions(self, positions: Mapping[int, int]) -> None:
        """All that the topic has below these offsets was put."""
        self._mark.positions = self._mark.positions | dict(positions)
        self._write_pending(with_mark=True)

    def complete(self, positions: Mapping[int, int]) -> None:
        """The first filling has ended: from now on the file is of use to a later start."""
        self._write_pending()
        self._file.run(*INDEXES.split(";"), "PRAGMA journal_mode = WAL")
        self.note_positions(positions)

    def close(self) -> None:
        """Write all to the disk, so that it also counts after the machine has started again."""
        with suppress(CacheError):
            if self.path is not None and self._mark.positions:
                self._file.run("PRAGMA synchronous = FULL")
                self._mark.is_closed = True
                self._write_pending(with_mark=True)
                self._file.run("PRAGMA wal_checkpoint(TRUNCATE)")
        self._file.close()

    def abandon(self) -> None:
        """Close it as it is; what was put since the last mark is read from the topic again."""
        self._file.close()

    # ── what a start asks ─────────────────────────────────────────────────────────────────────────────────────────

    def reaches_above(self, token: Mapping[int, int]) -> bool:
        """Whether a state stands above what is published: then a step is in it that was never committed."""
        found = self._ask("SELECT partition, MAX(next) FROM groups GROUP BY partition")
        return any(next_offset > token.get(partition, 0) for partition, next_offset in found)

    def covered(self, horizon: Mapping[int, int]) -> dict[bytes, int]:
        """The groups whose state reaches further than the horizon, and how far."""
        covered: dict[bytes, int] = {}
        for (partition,) in list(self._ask("SELECT DISTINCT partition FROM groups")):
            above = (partition, horizon.get(partition, 0))
            covered |= dict(self._ask("SELECT key, next FROM groups WHERE partition = ? AND next > ?", above))
        return covered

    def deadlines(self) -> dict[bytes, int]:
        """The groups to which passing time may matter, and from when on."""
        return dict(self._ask("SELECT key, due_ms FROM groups WHERE due_ms IS NOT NULL"))

    def waiting(self) -> dict[bytes, Waiting]:
        """The groups that hold messages: since when, how many gaps, how many messages."""
        found = self._ask("SELECT key, oldest_ms, gaps, held FROM groups WHERE held > 0")
        return {key: (oldest_ms, gaps, held) for key, oldest_ms, gaps, held in found}

    def piece_counts(self) -> dict[bytes, int]:
        """How many pieces a state has in the topic, where it is more than one."""
        return dict(self._ask("SELECT key, pieces FROM groups WHERE pieces > 1"))

    def states_bytes(self) -> int:
        """About how large all states are."""
        pages, size = (next(self._ask(f"PRAGMA {name}"))[0] for name in ("page_count", "page_size"))
        return int(pages) * int(size)

    # ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> None:
        self._file = SqliteFile(self.path, SETUP, broken=lambda error: CacheError(str(error)))

    def _ask(self, question: str, values: tuple[object, ...] = ()) -> Iterator[Any]:
        self._write_pending()
        yield from self._file.ask(question, values)

    def _write_pending(self, *, with_mark: bool = False) -> None:
        if not self._pending and not with_mark:
            return
        steps: list[tuple[str, Rows]] = [(PUT, [_row(one) for one in self._pending.values()])]
        if with_mark:
            steps += [("DELETE FROM mark", [()]), ("INSERT INTO mark VALUES (?)", [(msgspec.json.encode(self._mark),)])]
        self._file.write(*steps)
        self._pending = {}


class _StoredCache(Cache):
    """One that a process before this one left."""

    def __init__(self, source: CacheSource, folder: Path) -> None:
        self.path = folder / FILE
        self._pending = {}
        self._connect()
        self._mark = self._read_mark()
        if self._mark.source != source:
            raise CacheError("it is of another topic, of other partitions, or of another release")
        boot = _boot_id()
        if not self._mark.is_closed and (not boot or self._mark.boot != boot):
            raise CacheError("the machine has started again since, and it was not closed before")
        self._mark.boot, self._mark.is_closed = boot, False
        self._write_pending(with_mark=True)

    def _read_mark(self) -> _Mark:
        try:
            found = list(self._ask("SELECT value FROM mark"))
            if not found:
                raise CacheError("it was not completed")
            return msgspec.json.decode(found[0][0], type=_Mark)
        except msgspec.DecodeError as error:
            raise CacheError(f"its mark cannot be read: {error}") from error


def open_cache(source: CacheSource, folder: Path) -> Cache | None:
    """The cache in this folder; None where there is none yet. Raises CacheError for one that is of no use."""
    if not (folder / FILE).exists():
        return None
    return _StoredCache(source, folder)


def remove_cache(folder: Path) -> None:
    """Remove the file of a cache, and what sqlite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            (folder / (FILE + suffix)).unlink()


def _row(one: NewState) -> tuple[object, ...]:
    state = one.state
    head = one.group, one.partition, state.next, state.rules, state.pieces, state.held, state.oldest_ms, state.gaps
    return (*head, deadline_ms(state.blob), crc32(state.blob), state.blob)


def _boot_id() -> str:
    """Names this start of the machine; empty where the system does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


# ── the copy of the state topic ───────────────────────────────────────────────────────────────────────────────────────

ANSWER_S = 1.0


class StateTopic:
    """The state topic of one stream, of which the partitions of this job are read.

    At a start the cache becomes the copy of the topic as it is now, or a new one is made.
    """

    def __init__(
        self, bootstrap: Address | str, name: str, source: CacheSource, *, check_stop: Callable[[], object]
    ) -> None:
        """`check_stop` raises where the job is to stop: a large state is not read to its end then."""
        self.bootstrap = bootstrap
        self.name = name
        self.source = source
        self._check_stop = check_stop
        self._reader: TopicReader | None = None

    def copy(self, folder: Path, token: Mapping[int, int], say: Say) -> Cache:
        """The cache in this folder, with all that the topic has now. Raises Refused and Unreachable."""
        try:
            cache = open_cache(self.source, folder)
            if cache is not None:
                return self._continued(cache, token)
        except CacheError as error:
            say(f"The cache {folder} cannot be used ({error}): it is made again from {self.name}.")
        remove_cache(folder)
        try:
            return self._filled(Cache(self.source, folder))
        except CacheError as error:
            remove_cache(folder)
            say(f"The cache {folder} cannot be written ({error}): until the next start the state is kept in memory.")
            return self._filled(Cache(self.source, None))

    def ends(self) -> dict[int, int]:
        """Up to which offset of each partition everything is committed; empty where Kafka does not say it now."""
        if self._reader is None:
            self._reader = TopicReader(self.bootstrap)
        try:
            found = self._reader.ends(self.name, self.source.partitions, ANSWER_S)
        except KafkaException:
            return {}
        return {at: end for at, (_, end) in found.items()}

    def close(self) -> None:
        """Close the connection that `ends` opened."""
        if self._reader is not None:
            self._reader.close()

    def _continued(self, cache: Cache, token: Mapping[int, int]) -> Cache:
        """A cache of an earlier start, brought up to date."""
        try:
            ends = self._all_ends()
            if any(offset > ends.get(at, 0) for at, offset in cache.positions.items()):
                raise CacheError(f"{self.name} has lost records that are in it")
            if cache.reaches_above(token):
                raise CacheError("it has a state above what is published")
            self._read(cache, cache.positions, ends)
            cache.note_positions(ends)
        except BaseException:
            cache.abandon()
            raise
        return cache

    def _filled(self, cache: Cache) -> Cache:
        """A new cache with everything in it."""
        try:
            ends = self._all_ends()
            self._read(cache, {}, ends)
            cache.complete(ends)
        except BaseException:
            cache.abandon()
            raise
        return cache

    def _all_ends(self) -> dict[int, int]:
        """The ends, also of what is not committed: open transactions may hide what was there before."""
        found = reading.ends_of(self.bootstrap, self.name, self.source.partitions, committed=False)
        return {at: end for at, (_, end) in found.items()}

    def _read(self, cache: Cache, positions: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Put all states in the cache from these offsets on; partitions where nothing came are not read."""
        behind = {at: positions.get(at, 0) for at, end in ends.items() if end > positions.get(at, 0)}
        if behind:
            upto = {at: ends[at] for at in behind}
            states = new_states(
                self.bootstrap,
                self.name,
                behind,
                upto,
                stream=self.source.stream,
                is_known=lambda group: cache.get(group) is not None,
                check_stop=self._check_stop,
            )
            for one in states:
                cache.put(one)
