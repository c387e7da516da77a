"""Rows of a Delta table by SQL: values are quoted, types kept, files skipped, and what cannot be read is told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from precede.reading.from_delta import Condition, DeltaRows
from precede.streaming.places import place
from precede.udfs.errors import Refused

NAMES = ["ann", "o'hara", "' OR '1'='1", "back\\slash\\'", "two\nlines", "nul\0", "--", "$1", "", "é😀", "Ann", '"']


def write(folder: Path, names: list[str], first: int) -> None:
    seqs = range(first, first + len(names))
    write_deltalake(folder, pa.table({"group": names, "seq": pa.array(seqs, pa.int64())}), mode="append")


def rows(folder: Path) -> DeltaRows:
    return DeltaRows(place.at(folder), {})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_found_and_nothing_else(name: str, tmp_path: Path) -> None:
    write(tmp_path, NAMES, 1)
    expected = [{"group": name, "seq": NAMES.index(name) + 1}]
    for condition in [("group", "=", name), ("group", "IN", [name, "nobody"])]:
        found = rows(tmp_path).select('"group", "seq"', condition)  # type: ignore[arg-type] # both are conditions
        assert list(found) == expected


def test_conditions_hold_together_and_rows_are_ordered_and_grouped(tmp_path: Path) -> None:
    write(tmp_path, ["b", "a", "b", "b"], 1)
    write(tmp_path, ["a", "b"], 2**53 - 2)
    mine: list[Condition] = [("group", "=", "b"), ("seq", ">", 1), ("seq", "!=", 3)]
    assert [row["seq"] for row in rows(tmp_path).select('"seq"', *mine, then='ORDER BY "seq" DESC')] == [2**53 - 1, 4]
    ends = rows(tmp_path).select('"group", min("seq") AS first', then='GROUP BY "group" ORDER BY "group"')
    assert list(ends) == [{"group": "a", "first": 2}, {"group": "b", "first": 1}]


def test_files_without_a_matching_row_are_not_opened_and_one_that_is_lost_is_told(tmp_path: Path) -> None:
    write(tmp_path, ["a", "a"], 1)
    write(tmp_path, ["b", "b"], 3)
    files = DeltaTable(tmp_path).get_add_actions(flatten=True)
    paths = dict(zip(files.column("min.group").to_pylist(), files.column("path").to_pylist(), strict=True))
    (tmp_path / paths["a"]).unlink()
    assert [row["seq"] for row in rows(tmp_path).select('"seq"', ("group", "=", "b"))] == [3, 4]
    with pytest.raises(Refused, match=rf"The Delta table {tmp_path} cannot be read: .*{paths['a'][:20]}"):
        list(rows(tmp_path).select('"seq"', ("group", "=", "a")))


def test_a_reader_sees_the_table_as_it_was_opened(tmp_path: Path) -> None:
    write(tmp_path, ["a"], 1)
    opened = rows(tmp_path)
    write(tmp_path, ["b"], 2)
    assert [row["group"] for row in opened.select('"group"')] == ["a"]
