"""The state of a stream beside a fresh checkpoint: one file for each shard, written once, and a manifest, written last.

Spark gives a new query no state. So each shard takes its file in its first call; a tick reaches them all. A shard that
has no state in the last committed batch needs its file again, so the files stay until every shard has reported in a
committed batch. The manifest stays: without it a copy of the checkpoint from before that moment would look complete.
"""

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from precede.streaming import faults
from precede.streaming.order.counts import JobCounts
from precede.streaming.places.place import LocalPlace, Place
from precede.streaming.places.spark_files import NO_BATCH
from precede.udfs.errors import Refused
from precede.udfs.shard import ShardState, decode_file, encode_file
from precede.udfs.steps import NOTHING_WAITS, waiting_of_all

VERSION = 2
MANIFEST = "manifest.json"
TAKEN = "taken.json"


class ShardFacts(msgspec.Struct, array_like=True):
    """What is known of a shard before it reports."""

    held: int
    oldest_ms: int
    gaps: int
    bytes: int


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Which shards have files, and where the log goes on behind their state."""

    shards: dict[int, ShardFacts]
    offsets: dict[int, int]
    folder: str
    """The folder of the files beside the manifest. Each restore has another one, because workers may keep copies."""
    taken_by: int | None = None
    """The batch in which the last shard took its state; the files are gone then."""
    v: int = VERSION


class ShardFiles:
    """Reads the files of the shards, in workers too: only this class knows where they are and how they are opened.

    A worker has no JVM to reach a store with, so Spark brings it the files: `send_to_workers` asks for it.
    """

    def __init__(self, folder: Place, shards: Iterable[int]) -> None:
        self._folder = folder
        self._shards = frozenset(shards)
        self._sent = ""

    def send_to_workers(self, send: Callable[[str], object]) -> None:
        """Where the files are in a store, let Spark fetch this folder wherever it runs a task."""
        if not isinstance(self._folder, LocalPlace):
            send(self._folder.location)
            self._sent = self._folder.name

    def __call__(self, shard: int) -> ShardState | None:
        """The state that a shard begins with; None where it has no groups."""
        if shard not in self._shards:
            return None
        path = self._path(str(shard))
        try:
            content = path.read_bytes() if isinstance(path, Path) else path.read()
        except OSError as error:
            raise Refused(
                f"The restored state {path} cannot be read ({error.strerror}): take a new checkpoint folder, and the "
                "state is restored again."
            ) from error
        return decode_file(content, str(path))

    def _path(self, name: str) -> Path | Place:
        if not self._sent:
            return self._folder / name
        from pyspark import SparkFiles

        return Path(SparkFiles.get(self._sent), name)


class RestoredFiles:
    """The files of one restore, from the moment when all are written."""

    def __init__(self, folder: Place, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._taken = _read_taken(folder)

    @property
    def offsets(self) -> dict[int, int]:
        """Where the log is read from behind the state."""
        return self._manifest.offsets

    @property
    def reader(self) -> ShardFiles | None:
        """What the shards take their state from; None where all have it."""
        return None if self._manifest.taken_by is not None else ShardFiles(self._files, self._manifest.shards)

    def is_needed_by(self, last_commit: int) -> bool:
        """Whether a checkpoint that ends with this batch lacks state whose files are gone."""
        return self._manifest.taken_by is not None and last_commit < self._manifest.taken_by

    def not_taken(self, last_commit: int) -> set[int]:
        """The shards that are not known to have taken their state in a batch up to this one."""
        if self._manifest.taken_by is not None:
            return set()
        return {shard for shard in self._manifest.shards if self._taken.get(shard, last_commit + 1) > last_commit}

    def show_in(self, counts: JobCounts, last_commit: int) -> None:
        """Count what the shards hold that have not reported yet."""
        for shard in self.not_taken(last_commit):
            facts = self._manifest.shards[shard]
            counts.held[shard] = facts.held
            counts.waiting[shard] = (facts.oldest_ms, facts.gaps)
            counts.state_bytes[shard] = facts.bytes

    def begins(self, batch: int) -> None:
        """Spark hands over a batch, so all before it are committed: remove the files where nothing needs them."""
        if self._manifest.taken_by is not None:
            return
        taken_by = max(self._taken.values(), default=NO_BATCH)
        if self._manifest.shards.keys() <= self._taken.keys() and taken_by < batch:
            faults.reach("restore.taken")
            self._manifest.taken_by = taken_by
            _write_manifest(self._folder, self._manifest)
            self.remove()

    def published(self, batch: int, shards: Iterable[int]) -> None:
        """These shards have taken their state, if this batch is committed."""
        if self._manifest.taken_by is not None:
            return
        new = {shard: batch for shard in shards if shard in self._manifest.shards and shard not in self._taken}
        if new:
            self._taken |= new
            (self._folder / TAKEN).replace(msgspec.json.encode(self._taken))

    def remove(self) -> None:
        """Remove the files that no shard needs any more."""
        if self._manifest.taken_by is not None:
            for name in self._folder.names():
                if name != MANIFEST:
                    (self._folder / name).remove_all()

    @property
    def _files(self) -> Place:
        return self._folder / self._manifest.folder


def write(folder: Place, states: Iterable[tuple[int, ShardState]], offsets: dict[int, int]) -> RestoredFiles:
    """Write the files; what an earlier try has left is replaced. Afterwards they survive a crash."""
    forget(folder)
    files = folder / uuid.uuid4().hex
    files.make_folder()
    shards: dict[int, ShardFacts] = {}
    for shard, state in states:
        content = encode_file(state)
        (files / str(shard)).replace(content)
        oldest_ms, gaps = waiting_of_all(state.waiting) if state.waiting else NOTHING_WAITS
        shards[shard] = ShardFacts(state.held, oldest_ms, gaps, len(content))
    faults.reach("restore.files")
    files.keep_names()
    manifest = Manifest(shards, offsets, folder=files.name)
    _write_manifest(folder, manifest)
    faults.reach("restore.written")
    return RestoredFiles(folder, manifest)


def forget(folder: Place) -> None:
    """Remove what a restore has left that no query began with."""
    folder.remove_all()


def find(folder: Place) -> RestoredFiles | None:
    """The files of the restore with which this checkpoint began; None where it began with the log."""
    path = folder / MANIFEST
    try:
        text = path.read()
    except FileNotFoundError:
        return None
    try:
        version = msgspec.json.decode(text).get("v")
        if isinstance(version, int) and version != VERSION:
            which = "a newer" if version > VERSION else "an older"
            raise Refused(f"The file {path} has version {version}, written by {which} precede.")
        return RestoredFiles(folder, msgspec.json.decode(text, type=Manifest))
    except (msgspec.DecodeError, AttributeError) as error:
        raise Refused(f"The file {path} is damaged ({error}): take a new checkpoint folder.") from error


def _write_manifest(folder: Place, manifest: Manifest) -> None:
    manifest.v = VERSION
    (folder / MANIFEST).replace(msgspec.json.encode(manifest))
    folder.keep_names()


def _read_taken(folder: Place) -> dict[int, int]:
    try:
        return msgspec.json.decode((folder / TAKEN).read(), type=dict[int, int])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
