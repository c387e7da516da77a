"""Delta's history, read for a member: in order, without a hole, for one group and destination."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from precede.reading import from_delta as past
from precede.reading.from_delta import DeltaHistory
from precede.streaming.history import rows as history_rows
from precede.udfs.errors import Refused
from tests.door.test_following import ordered


def write(root: Path, *records: bytes) -> None:
    """The rows that the history query writes for these ordered records."""
    batch = pa.RecordBatch.from_pydict({"value": pa.array(records, pa.binary())})
    write_deltalake(root / "deliveries", pa.Table.from_batches(history_rows.deliveries(iter([batch]))), mode="append")


def changed(record: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(record) | fields).encode()


def positions(found: Any) -> list[int]:
    return [delivery.position for delivery in found]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, *(ordered(position) for position in (3, 1, 2)), ordered(1, group="h"))
    write(tmp_path, ordered(5), ordered(4), ordered(7))
    return tmp_path


def test_positions_come_in_order_and_end_where_one_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "CHUNK", 2)
    assert positions(DeltaHistory(root, "g").between(1, 7)) == [1, 2, 3, 4, 5]
    assert positions(DeltaHistory(root, "g").between(2, 3)) == [2, 3]
    assert positions(DeltaHistory(root, "g").between(6, 7)) == []
    assert [DeltaHistory(root, group).last() for group in ("g", "h", "nobody")] == [7, 1, 0]


def test_a_record_comes_back_byte_for_byte_by_its_id(root: Path) -> None:
    found = DeltaHistory(root, "g").find(("ann", 0, 4))
    assert found is not None
    assert found.record == ordered(4)
    assert DeltaHistory(root, "g").find(("ann", 1, 4)) is None


def test_views_and_destinations_are_told_apart(tmp_path: Path) -> None:
    create = changed(ordered(1), kind="create", options={"order": "s_b"})
    write(tmp_path, create, ordered(1, destination="bob"), ordered(2, destination="bob"), ordered(1, destination="cem"))
    assert [one.kind for one in DeltaHistory(tmp_path, "g").views()] == ["create"]
    assert positions(DeltaHistory(tmp_path, "g", "bob").between(1, 5)) == [1, 2]


def test_a_folder_without_the_table_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="There is no Delta table"):
        DeltaHistory(tmp_path, "g").last()
