"""What is read of the files that Spark keeps of a query, and what is said where one of them is not whole."""

from pathlib import Path

import pytest

from precede.streaming.places import spark_files
from precede.streaming.places.place import LocalPlace
from precede.udfs.errors import Refused

WAY_OUT = "take a new one"
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"raw":{"0":12,"1":7}}'


def query(folder: Path, **files: bytes) -> LocalPlace:
    """The folder of a query; `__` stands for a slash in a name."""
    for name, content in files.items():
        file = folder.joinpath(*name.split("__"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return LocalPlace(folder)


def test_a_query_without_files_has_reached_nothing(tmp_path: Path) -> None:
    folder = query(tmp_path)
    assert (spark_files.query_id(folder, WAY_OUT), spark_files.reached(folder, WAY_OUT)) == (None, {})


def test_what_spark_wrote_says_how_far_the_query_is(tmp_path: Path) -> None:
    folder = query(tmp_path, metadata=b'{"id":"abc"}', sources__0__0=b'v1\n{"raw":{"0":5}}')
    assert spark_files.query_id(folder, WAY_OUT) == "abc"
    assert spark_files.reached(folder, WAY_OUT) == {"raw": {0: 5}}
    query(tmp_path, commits__3=b"", offsets__3=OFFSETS)
    assert spark_files.reached(folder, WAY_OUT) == {"raw": {0: 12, 1: 7}}


@pytest.mark.parametrize("size", [0, 2, 30, len(OFFSETS) - 1])
def test_half_a_file_of_offsets_is_refused_and_named(tmp_path: Path, size: int) -> None:
    folder = query(tmp_path, commits__3=b"", offsets__3=OFFSETS[:size])
    with pytest.raises(Refused) as refusal:
        spark_files.reached(folder, WAY_OUT)
    assert str(refusal.value).startswith(f"Spark's file {tmp_path}/offsets/3 cannot be used (")
    assert str(refusal.value).endswith("): restore the checkpoint as it was, or take a new one.")


def test_a_lost_file_of_offsets_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"Spark's file {tmp_path}/offsets/3 cannot be used .it is gone.: restore"):
        spark_files.reached(query(tmp_path, commits__3=b""), WAY_OUT)


@pytest.mark.parametrize("content", [b"", b'{"id":"ab', b"[]", b"{}"])
def test_half_a_file_of_metadata_is_refused_and_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Refused, match=f"Spark's file {tmp_path}/metadata cannot be used .*, or take a new one"):
        spark_files.query_id(query(tmp_path, metadata=content), WAY_OUT)
