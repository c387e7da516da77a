"""Whether a table still has the rows that were written to it; only its log and the statistics in it are read.

Delta keeps the newest transaction of a query through a RESTORE, and lets every tool delete and append. So a table may
have all batches and not all rows. Each commit says how many rows it adds, and a compaction changes no number: what the
batches of the table's query added must be what the table has. As logs are cleaned, the number that was right last is
kept in the checkpoint, beside what Spark keeps of the query.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from precede.streaming.places.place import Place
from precede.udfs.errors import Refused

FILE = "rows.json"
VERSION = 1
LOG = "_delta_log"
COMMIT, CHECKPOINT = ".json", ".checkpoint"
DIGITS = 20
"""Of a version, in the names of the log's files."""


class RowCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: how many rows a table had when it was right last."""

    table: str
    """Its id."""
    version: int
    batch: int
    """The newest batch of its query that was in it."""
    rows: int
    v: int = VERSION


@dataclass(frozen=True)
class Comparison:
    """What a table has, beside what its batches wrote."""

    found: RowCount
    expected: int
    broken: str | None
    """Where it broke, as a part of a sentence; None where the numbers are the same."""
    undone_by: int | None = None
    """The version that a RESTORE may bring back, since no batch was written after it."""

    @property
    def difference(self) -> int:
        """Rows too many, or, below 0, rows that are missing."""
        return self.found.rows - self.expected


class _Metrics(msgspec.Struct):
    numOutputRows: int | str | None = None  # noqa: N815 (Delta's own names, here and below)


class _Info(msgspec.Struct):
    operation: str = "a commit without a name"
    timestamp: int | None = None
    operationMetrics: _Metrics | None = None  # noqa: N815


class _Added(msgspec.Struct):
    stats: str | None = None


class _Statistics(msgspec.Struct):
    numRecords: int | None = None  # noqa: N815


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815


class _Action(msgspec.Struct):
    """A line of a commit, as far as it concerns rows and who wrote them."""

    commitInfo: _Info | None = None  # noqa: N815
    add: _Added | None = None
    txn: _Transaction | None = None


_read_action = msgspec.json.Decoder(_Action).decode
_read_statistics = msgspec.json.Decoder(_Statistics).decode


def load(folder: Place) -> RowCount | None:
    """What was kept in a query's folder of the checkpoint; None before the first time."""
    file = folder / FILE
    try:
        text = file.read()
    except FileNotFoundError:
        return None
    try:
        version = msgspec.json.decode(text, type=dict[str, Any]).get("v")
        if isinstance(version, int) and version > VERSION:
            raise Refused(
                f"The file {file} has version {version}, written by a newer precede; this one knows version {VERSION}: "
                "use the newer one."
            )
        return msgspec.json.decode(text, type=RowCount)
    except msgspec.DecodeError as error:
        raise Refused(
            f"The file {file} cannot be used: {error}. Remove it, and the rows of the table are compared as far back "
            "as its log reaches."
        ) from error


def save(folder: Place, count: RowCount) -> None:
    """Keep a number that is right, unless it is kept already."""
    if load(folder) != count:
        (folder / FILE).replace(msgspec.json.encode(count))


def compare(folder: Place, opened: Any, query: str, batch: int, kept: RowCount | None) -> Comparison:
    """The rows of an opened table, and those that the batches of this query wrote."""
    found = RowCount(str(opened.metadata().id), opened.version(), batch, rows_in(opened))
    log = _Log(folder, opened, query)
    kept = None if kept is None or kept.table != found.table else kept
    if kept is not None and kept.batch == batch:  # no other batch is in it, whatever the log still has
        expected = kept.rows
    elif kept is not None and log.has_all_after(kept.version):
        expected = kept.rows + log.written(kept.version)
    else:
        version, rows = log.oldest()
        # Where not even this reaches back to what was kept, batches were only added since.
        rows = rows if kept is None or version < kept.version else max(rows, kept.rows)
        expected = rows + log.written(version)
    if expected == found.rows:
        return Comparison(found, expected, None)
    last_good = None if kept is None or kept.version >= found.version else kept.version
    version, is_exact = log.first_broken(expected, last_good)
    later = "" if is_exact else " or an earlier one, which its log no longer shows"
    undone_by = version - 1 if is_exact and version > 0 and not log.written(version - 1) else None
    return Comparison(found, expected, f"since its version {version}{log.what(version)}{later}", undone_by)


def rows_in(opened: Any) -> int:
    """The rows of an opened table, by the statistics of its files.

    Only where these do not say it, because a file has none or another tool has marked rows in it as deleted, delta-rs
    is asked to count.
    """
    from deltalake import QueryBuilder

    numbers = opened.get_add_actions(flatten=True)
    if not numbers.num_rows:
        return 0
    counts: list[int | None] = numbers.column("num_records").to_pylist()
    known = [count for count in counts if count is not None]
    if len(known) == len(counts) and "deletionVectors" not in (opened.protocol().reader_features or ()):
        return sum(known)
    [number] = QueryBuilder().register("t", opened).execute("SELECT count(*) FROM t").read_all().column(0).to_pylist()
    return int(number)


class _Log:
    """The log of a table up to the version that is opened."""

    def __init__(self, folder: Place, opened: Any, query: str) -> None:
        self._folder = folder / LOG
        self._opened = opened
        self._query = query
        self._newest = int(opened.version())
        versions: dict[str, set[int]] = {COMMIT: set(), CHECKPOINT: set()}
        for name in self._folder.names():
            number, kind = name[:DIGITS], name[DIGITS:]
            if number.isdecimal() and (kind == COMMIT or kind.startswith(CHECKPOINT)):
                versions[COMMIT if kind == COMMIT else CHECKPOINT].add(int(number))
        self._first = self._newest + 1
        """The oldest commit from which on none lacks."""
        while self._first - 1 in versions[COMMIT]:
            self._first -= 1
        self._checkpoints = sorted(at for at in versions[CHECKPOINT] if self._first - 1 <= at <= self._newest)
        self._commits: dict[int, tuple[_Info, int]] = {}

    def has_all_after(self, version: int) -> bool:
        return self._first - 1 <= version <= self._newest

    def oldest(self) -> tuple[int, int]:
        """The oldest version that the log still shows, and its rows; before the first commit there are none."""
        version = self._oldest()
        return version, self._rows_at(version)

    def written(self, after: int) -> int:
        """How many rows the query's commits after this version added."""
        return sum(self._commit(version)[1] for version in range(max(after + 1, self._first), self._newest + 1))

    def first_broken(self, expected: int, last_good: int | None) -> tuple[int, bool]:
        """The first version whose rows are not those written, and whether that is known exactly.

        The newest one has not the `expected` rows. Between a good and a broken one there are few looks, not one each.
        """
        oldest = self._oldest()
        good = max(oldest - 1, -1 if last_good is None else last_good)
        is_known = good == last_good or oldest < 0
        broken = self._newest
        while broken - good > 1:
            middle = (good + broken) // 2
            if self._rows_at(middle) == expected - self.written(middle):
                good, is_known = middle, True
            else:
                broken = middle
        return broken, is_known

    def what(self, version: int) -> str:
        """What a commit says of itself, in brackets."""
        if not self._first <= version:
            return ""
        info = self._commit(version)[0]
        at = "" if info.timestamp is None else f" of {datetime.fromtimestamp(info.timestamp / 1000, UTC):%F %H:%M} UTC"
        return f" ({info.operation}{at})"

    def _oldest(self) -> int:
        """Commits alone show only what began with them; a log that was cleaned begins at its oldest checkpoint."""
        return -1 if self._first == 0 else next(iter(self._checkpoints), self._newest)

    def _rows_at(self, version: int) -> int:
        if version < 0:
            return 0
        if version != self._opened.version():
            self._opened.load_as_version(version)
        return rows_in(self._opened)

    def _commit(self, version: int) -> tuple[_Info, int]:
        """What a commit says of itself, and how many rows it adds if the query wrote it."""
        if version not in self._commits:
            info, own, added = _Info(), False, list[_Added]()
            for line in (self._folder / f"{version:0{DIGITS}}{COMMIT}").read().splitlines():
                action = _read_action(line)
                info = action.commitInfo or info
                own = own or (action.txn is not None and action.txn.appId == self._query)
                added += [action.add] if action.add is not None else []
            self._commits[version] = info, _rows_of(added, info) if own else 0
        return self._commits[version]


def _rows_of(added: list[_Added], info: _Info) -> int:
    numbers = [None if one.stats is None else _read_statistics(one.stats).numRecords for one in added]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) and info.operationMetrics is not None:
        return int(info.operationMetrics.numOutputRows or 0)
    return sum(known)
