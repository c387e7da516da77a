"""A Delta table's owner, its missing parts and its removal: what a start checks without Spark."""

import os
import shutil
from itertools import count
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from precede.ingest.kafka.topics import Topic
from precede.streaming.history import tables
from precede.streaming.history.tables import DEAD_LETTERS, DELIVERIES
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint
from precede.udfs.errors import Refused

ROWS = pa.table({"record": ["one", "two"], "day": ["2026-01-01", "2026-01-02"]})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Two tables written under one checkpoint, two batches each."""
    settings = Settings(checkpoint=str(tmp_path / "checkpoint"), delta=str(tmp_path / "del ta"))
    for table in (DELIVERIES, DEAD_LETTERS):
        folder = Path(settings.history_checkpoint(table).location)
        (folder / "commits").mkdir(parents=True)
        (folder / "metadata").write_bytes(msgspec.json.encode({"id": table}))
        for batch in range(2):
            written = CommitProperties(app_transactions=[Transaction(table, batch)])
            path = Path(tables.path(settings, table).location)
            write_deltalake(path, ROWS, partition_by=["day"], mode="append", commit_properties=written)
            (folder / "commits" / str(batch)).touch()
    return settings


def id_of(settings: Settings, table: str) -> str:
    return str(DeltaTable(Path(tables.path(settings, table).location)).metadata().id)


def test_a_table_that_is_whole_and_one_s_own_is_welcome(settings: Settings) -> None:
    tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))


def test_a_crash_between_the_table_and_its_checkpoint_is_welcome(settings: Settings) -> None:
    (Path(settings.history_checkpoint(DELIVERIES).location) / "commits" / "1").unlink()
    tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))


def test_a_table_and_a_checkpoint_of_two_moments_are_refused(settings: Settings) -> None:
    folder = Path(settings.history_checkpoint(DELIVERIES).location)
    (folder / "commits" / "2").touch()
    with pytest.raises(
        Refused,
        match=r"are from different times: the table has the batches up to 1, the checkpoint has the batches up to 2",
    ):
        tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))
    shutil.rmtree(folder / "commits")
    with pytest.raises(Refused, match=r"table has the batches up to 1, the checkpoint has no batches.*--rebuild-d"):
        tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))
    shutil.rmtree(folder)
    with pytest.raises(
        Refused, match=r"no longer knows how far the Delta table .* is written; restore .*--rebuild-delta"
    ):
        tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))


def test_a_table_that_lacks_a_file_is_refused_with_its_name_and_the_way_out(settings: Settings) -> None:
    lost = next(Path(tables.path(settings, DELIVERIES).location).glob("day=*/*.parquet"))
    lost.unlink()
    with pytest.raises(Refused, match=rf"lacks .*{lost.name}, which its log names.*precede run --rebuild-delta"):
        tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))


def test_a_table_of_another_checkpoint_is_refused_with_the_way_out(settings: Settings) -> None:
    with pytest.raises(Refused, match=r"did not write; choose another .*precede run --rebuild-delta"):
        tables.check(settings, DELIVERIES, None)


def test_throwing_away_takes_both_tables_and_how_far_they_were_written(settings: Settings) -> None:
    tables.remove(settings)
    for table in (DELIVERIES, DEAD_LETTERS):
        assert tables.find(settings, table) is None
        assert not Path(settings.history_checkpoint(table).location).exists()
        tables.check(settings, table, None)
    tables.remove(settings)  # again, as after a crash in between


def test_throwing_away_that_was_killed_anywhere_is_finished_by_the_next_start(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink
    for least in count():
        copy = msgspec.structs.replace(settings, delta=str(tmp_path / f"copy {least}"))
        shutil.copytree(settings.delta, copy.delta)
        left = iter(range(least))

        def dying(*what: object, _left: object = left, **where: object) -> None:
            if next(_left, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt
            unlink(*what, **where)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "unlink", dying)
        try:
            tables.remove(copy)
            break
        except KeyboardInterrupt:
            monkeypatch.setattr(os, "unlink", unlink)
            tables.remove(copy)
            assert tables.find(copy, DELIVERIES) is tables.find(copy, DEAD_LETTERS) is None
    assert least > 2 * 4, "nothing was cut short"


def test_nothing_is_thrown_away_where_the_job_is_stopped_before_the_topics_say_what_they_have(
    settings: Settings,
) -> None:
    names = settings.ordered_topic, settings.dead_letter_topic, settings.control_topic
    topics = {name: Topic(name, f"id of {name}", 1) for name in names}
    checkpoint.rebuild_history(settings, None, topics, lambda _: None, lambda _: None)
    for table in (DELIVERIES, DEAD_LETTERS):
        assert tables.find(settings, table) is not None


@pytest.mark.parametrize("table", tables.TABLES)
def test_a_table_of_another_topic_is_never_thrown_away(settings: Settings, table: str) -> None:
    names = settings.ordered_topic, settings.dead_letter_topic, settings.control_topic
    topics = {name: Topic(name, f"id of {name}", 1) for name in names}
    shutil.rmtree(Path(tables.path(settings, table).location), ignore_errors=True)
    told = tables.origin(Topic(tables.topic(settings, table), "id of an earlier one", 1))
    write_deltalake(Path(tables.path(settings, table).location), ROWS, description=told)
    with pytest.raises(Refused, match=rf"/{table} holds the records of another topic than this precede\.[a-z.-]*, and"):
        checkpoint.rebuild_history(settings, None, topics, lambda _: 0, lambda _: None)
    for each in (DELIVERIES, DEAD_LETTERS):
        assert tables.find(settings, each) is not None


def test_a_table_of_the_very_topic_is_thrown_away_where_it_has_all_of_it(settings: Settings, tmp_path: Path) -> None:
    names = settings.ordered_topic, settings.dead_letter_topic, settings.control_topic
    topics = {name: Topic(name, f"id of {name}", 1) for name in names}
    shutil.rmtree(Path(tables.path(settings, DELIVERIES).location))
    told = tables.origin(topics[settings.ordered_topic])
    write_deltalake(Path(tables.path(settings, DELIVERIES).location), ROWS, description=told)
    fresh = msgspec.structs.replace(settings, checkpoint=str(tmp_path / "fresh"))
    Path(fresh.checkpoint).mkdir()
    checkpoint.rebuild_history(fresh, None, topics, lambda _: 0, lambda _: None)
    for each in (DELIVERIES, DEAD_LETTERS):
        assert tables.find(settings, each) is None


def test_a_folder_of_something_else_is_never_thrown_away(settings: Settings) -> None:
    log = Path(tables.path(settings, DEAD_LETTERS).location) / "_delta_log"
    log.rename(log.with_name("notes"))
    with pytest.raises(Refused, match="is not empty and not a Delta table"):
        tables.remove(settings)
    assert tables.find(settings, DELIVERIES) is not None


def test_a_half_written_file_of_spark_is_refused_and_a_rebuild_is_the_way_out(settings: Settings) -> None:
    file = Path(settings.history_checkpoint(DELIVERIES).location) / "metadata"
    file.write_bytes(b'{"id":"deli')
    way_out = "restore the checkpoint as it was, or rebuild the table from the topic: precede run --rebuild-delta"
    with pytest.raises(Refused, match=f"Spark's file {file} cannot be used .*: {way_out}"):
        tables.check(settings, DELIVERIES, id_of(settings, DELIVERIES))
    tables.remove(settings)
    tables.check(settings, DELIVERIES, None)


@pytest.mark.parametrize("partitions", [None, ["day"]], ids=["whole", "by day"])
@pytest.mark.parametrize("second", ["compact", "z_order"])
def test_a_compaction_that_another_one_has_overtaken_is_refused(
    tmp_path: Path, second: str, partitions: list[str] | None
) -> None:
    """Releases of delta-rs that commit it double all rows; none of them may be installed beside precede."""
    for _ in range(4):
        write_deltalake(tmp_path / "table", ROWS, mode="append", partition_by=partitions)
    first, overtaken = (DeltaTable(tmp_path / "table").optimize for _ in range(2))
    first.compact()
    with pytest.raises(CommitFailedError, match="concurrent transaction deleted the same data"):
        overtaken.compact() if second == "compact" else overtaken.z_order(["record"])
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 4 * ROWS.num_rows
