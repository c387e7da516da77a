"""Rows that somebody's tool has lost or doubled are noticed before a start, by what the table's log says."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.ingest.service.running import Announcer
from precede.streaming.history import row_counts, tables
from precede.streaming.history.tables import BY_BATCHES, DELIVERIES
from precede.streaming.monitoring.history_monitor import HistoryMonitor
from precede.streaming.monitoring.metrics import Metrics
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused
from tests.door.peer_table import until

BATCHES = 3
IN_ONE = 2


@pytest.fixture(params=BY_BATCHES)
def table(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(tmp_path: Path, table: str) -> Settings:
    """A table of three batches, as Spark's sink and its checkpoint leave them."""
    settings = Settings(checkpoint=str(tmp_path / "checkpoint"), delta=str(tmp_path / "del ta"))
    checkpoint = Path(settings.history_checkpoint(table).location)
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_bytes(msgspec.json.encode({"id": "query"}))
    for batch in range(BATCHES):
        write_batch(settings, table, batch)
    return settings


def folder(settings: Settings, table: str) -> Path:
    return Path(tables.path(settings, table).location)


def opened(settings: Settings, table: str) -> DeltaTable:
    return DeltaTable(folder(settings, table))


def rows(*names: str) -> pa.Table:
    return pa.table({"record": names, "day": ["2026-01-01"] * len(names)})


def write_batch(settings: Settings, table: str, batch: int) -> None:
    written = CommitProperties(app_transactions=[Transaction("query", batch)])
    some = rows(*(f"{batch} {number}" for number in range(IN_ONE)))
    path = folder(settings, table)
    write_deltalake(path, some, partition_by=["day"], mode="append", commit_properties=written)
    (Path(settings.history_checkpoint(table).location) / "commits" / str(batch)).touch()


def check(settings: Settings, table: str) -> None:
    tables.check(settings, table, str(opened(settings, table).metadata().id))


def keep(settings: Settings, table: str) -> None:
    compared = tables.compare_rows(settings, table)
    assert compared is not None
    tables.keep_rows(settings, table, compared)


def restore(settings: Settings, table: str) -> None:
    opened(settings, table).restore(1)


def delete(settings: Settings, table: str) -> None:
    opened(settings, table).delete("record = '1 0'")


def append(settings: Settings, table: str) -> None:
    write_deltalake(folder(settings, table), rows("0 0", "0 1", "1 0"), mode="append")


def double(settings: Settings, table: str) -> None:
    """Add a compacted copy and leave what was compacted, as a compaction does that another one has overtaken."""
    opened(settings, table).create_write_transaction(
        actions=copied(settings, table), mode="append", schema=opened(settings, table).schema()
    )


def copied(settings: Settings, table: str) -> list[Any]:
    from deltalake.transaction import AddAction

    copies = []
    for number, path in enumerate(sorted(folder(settings, table).rglob("part-*.parquet"))):
        copy = path.with_name(f"copy-{number}.parquet")
        copy.write_bytes(path.read_bytes())
        statistics = msgspec.json.encode({"numRecords": IN_ONE}).decode()
        name = copy.relative_to(folder(settings, table)).as_posix()
        size, now_ms = copy.stat().st_size, int(time.time() * 1000)
        copies.append(AddAction(name, size, {"day": "2026-01-01"}, now_ms, False, statistics))
    return copies


WRONG: list[tuple[Callable[[Settings, str], None], str]] = [
    (restore, r"has 4 rows, but 6 were written to it: 2 are missing since its version 3 \(RESTORE of 20.* UTC\)"),
    (delete, r"has 5 rows, but 6 were written to it: 1 are missing since its version 3 \(DELETE of"),
    (append, r"has 9 rows, but 6 were written to it: 3 are too many since its version 3 \(WRITE of"),
    (double, r"has 12 rows, but 6 were written to it: 6 are too many since its version 3 \(WRITE of"),
]


@pytest.mark.parametrize("is_kept", [False, True], ids=["by the log alone", "from what is kept"])
@pytest.mark.parametrize(("harm", "sentence"), WRONG, ids=[harm.__name__ for harm, _ in WRONG])
def test_rows_that_were_lost_or_doubled_refuse_a_start(
    settings: Settings, table: str, harm: Callable[[Settings, str], None], sentence: str, is_kept: bool
) -> None:
    check(settings, table)
    if is_kept:
        keep(settings, table)
    harm(settings, table)
    way_out = "bring its version 2 back with Delta's RESTORE, or rebuild the table from .*: precede run --rebuild-delta"
    for _ in range(2):
        with pytest.raises(Refused, match=f"{sentence}.*{way_out}"):
            check(settings, table)
        keep(settings, table)  # what is wrong is never taken for right
    opened(settings, table).restore(2)
    check(settings, table)


def test_what_was_written_since_is_not_given_up_for_a_restore(settings: Settings, table: str) -> None:
    delete(settings, table)
    for batch in range(BATCHES, BATCHES + 4):
        write_batch(settings, table, batch)
    with pytest.raises(Refused, match=r"since its version 3 \(DELETE of .*\)\. To mend it, rebuild the table"):
        check(settings, table)


@pytest.mark.parametrize("is_kept", [False, True], ids=["by the log alone", "from what is kept"])
def test_a_compaction_and_a_vacuum_keep_the_number(settings: Settings, table: str, is_kept: bool) -> None:
    if is_kept:
        keep(settings, table)
    opened(settings, table).optimize.compact()
    check(settings, table)
    opened(settings, table).optimize.z_order(["record"])
    opened(settings, table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    check(settings, table)
    write_batch(settings, table, BATCHES)
    check(settings, table)


def clean_log(settings: Settings, table: str) -> int:
    """Leave of the log what its newest checkpoint needs; the version from which on it shows something."""
    opened(settings, table).create_checkpoint()
    newest = opened(settings, table).version()
    for version in range(newest):
        (folder(settings, table) / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)
    return newest


def test_a_log_that_was_cleaned_is_compared_with_what_was_kept(settings: Settings, table: str) -> None:
    keep(settings, table)
    clean_log(settings, table)
    check(settings, table)
    write_batch(settings, table, BATCHES)
    check(settings, table)
    keep(settings, table)
    delete(settings, table)
    opened(settings, table).delete("record = '0 0'")
    assert clean_log(settings, table) == 5
    sentence = (
        r"6 rows, but 8 were .*: 2 are missing since its version 5 \(DELETE .*\) or an earlier one, which its log"
    )
    with pytest.raises(Refused, match=sentence):
        check(settings, table)


def test_where_neither_log_nor_checkpoint_reaches_back_the_oldest_version_shown_counts_as_right(
    settings: Settings, table: str
) -> None:
    delete(settings, table)
    clean_log(settings, table)
    check(settings, table)
    write_batch(settings, table, BATCHES)
    check(settings, table)
    append(settings, table)
    with pytest.raises(Refused, match="has 10 rows, but 7 were written to it: 3 are too many since its version 5 "):
        check(settings, table)


def test_rows_that_a_job_kept_before_it_was_killed_are_a_lower_bound(settings: Settings, table: str) -> None:
    keep(settings, table)
    write_batch(settings, table, BATCHES)
    restore(settings, table)
    clean_log(settings, table)
    with pytest.raises(Refused, match="has 4 rows, but 6 were written to it: 2 are missing since"):
        check(settings, table)


def test_files_without_statistics_are_counted_by_their_own_ends(settings: Settings, table: str) -> None:
    append(settings, table)
    log = folder(settings, table) / "_delta_log" / f"{BATCHES:020d}.json"
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    log.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    with pytest.raises(Refused, match="has 9 rows, but 6 were written to it: 3 are too many since its version 3 "):
        check(settings, table)


def test_many_versions_are_looked_at_by_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(checkpoint=str(tmp_path / "checkpoint"), delta=str(tmp_path / "delta"))
    checkpoint = Path(settings.history_checkpoint(DELIVERIES).location)
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_bytes(msgspec.json.encode({"id": "query"}))
    for batch in range(40):
        write_batch(settings, DELIVERIES, batch)
        if batch == 17:
            delete(settings, DELIVERIES)
    looks: list[int] = []
    load = DeltaTable.load_as_version

    def counted(one: DeltaTable, version: int) -> None:
        looks.append(version)
        load(one, version)

    monkeypatch.setattr(DeltaTable, "load_as_version", counted)
    with pytest.raises(Refused, match="has 79 rows, but 80 were .* since its version 18 "):
        check(settings, DELIVERIES)
    assert len(looks) <= 6


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"v":1}', b'{"table":"x","version":"1","batch":0,"rows":1,"v":1}']
)
def test_a_damaged_file_of_what_is_kept_is_refused_with_the_way_out(
    settings: Settings, table: str, text: bytes
) -> None:
    file = Path(settings.history_checkpoint(table).location) / row_counts.FILE
    file.write_bytes(text)
    with pytest.raises(Refused, match=f"The file {file} cannot be used: .*Remove it, and the rows of the table are"):
        check(settings, table)


def test_a_file_of_a_newer_release_is_refused(settings: Settings, table: str) -> None:
    file = Path(settings.history_checkpoint(table).location) / row_counts.FILE
    file.write_bytes(b'{"v":2,"sum":6}')
    with pytest.raises(Refused, match=f"The file {file} has version 2, written by a newer precede; this one"):
        check(settings, table)


def test_a_running_job_keeps_what_is_right_and_says_once_what_is_wrong(settings: Settings, table: str) -> None:
    said: list[str] = []

    def looked() -> dict[str, int]:
        monitor = HistoryMonitor(settings, Announcer(said.append))
        monitor.start()
        until(lambda: table in monitor.differences)
        monitor.stop()  # after one more look
        return monitor.differences

    assert looked() == {table: 0}
    kept = row_counts.load(settings.history_checkpoint(table))
    assert kept is not None
    assert (kept.version, kept.batch, kept.rows) == (2, 2, 6)
    write_batch(settings, table, BATCHES)
    append(settings, table)
    assert looked() == {table: 3}
    [sentence] = said
    assert re.search(r"has 11 rows, but 8 were written to it: 3 are too many since its version 4 \(WRITE", sentence)
    assert row_counts.load(settings.history_checkpoint(table)) == kept
    opened(settings, table).restore(3)
    assert looked() == {table: 0}
    assert row_counts.load(settings.history_checkpoint(table)) != kept
    metrics = Metrics(settings, BrokerMonitor(settings.bootstrap, settings.raw_topic), lambda: True)
    metrics.history = HistoryMonitor(settings, Announcer(said.append))
    metrics.history.differences[table] = -2
    assert f'precede_history_difference_rows{{table="{table}"}} -2.0' in metrics.text().decode()


def test_what_is_kept_has_this_form(settings: Settings, table: str) -> None:
    keep(settings, table)
    kept = msgspec.json.decode((Path(settings.history_checkpoint(table).location) / row_counts.FILE).read_bytes())
    assert kept == {"table": str(opened(settings, table).metadata().id), "version": 2, "batch": 2, "rows": 6, "v": 1}
