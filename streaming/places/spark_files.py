"""How far a query is, read without Spark from the files that Spark keeps in the query's folder of the checkpoint.

A file that cannot be read, such as one that was written by half, is refused; `way_out` ends that sentence.
"""

from typing import TypeVar

import msgspec

from precede.streaming.places.place import Place
from precede.udfs.errors import Refused

NO_BATCH = -1

Content = TypeVar("Content")


class _Metadata(msgspec.Struct):
    """What Spark notes of a query."""

    id: str


def last_commit(folder: Place) -> int:
    """The newest batch that Spark has committed."""
    return max((int(name) for name in (folder / "commits").files() if name.isdecimal()), default=NO_BATCH)


def query_id(folder: Place, way_out: str) -> str | None:
    """The id by which a query identifies itself to its sink as long as its folder exists."""
    file = folder / "metadata"
    try:
        text = file.read()
    except FileNotFoundError:
        return None
    return _decoded(text, _Metadata, file, way_out).id


def reached(folder: Place, way_out: str) -> dict[str, dict[int, int]]:
    """By topic and partition, the first offset after the last committed batch; empty before the first start.

    Before the first commit it is the offset where the first batch begins.
    """
    batch = last_commit(folder)
    file = folder / "sources" / "0" / "0" if batch == NO_BATCH else folder / "offsets" / str(batch)
    try:
        lines = file.read().splitlines()
    except FileNotFoundError:
        if batch == NO_BATCH:
            return {}
        raise _unusable(file, "it is gone", way_out) from None
    return _decoded(lines[-1] if lines else b"", dict[str, dict[int, int]], file, way_out)


def _decoded(text: bytes, kind: type[Content], file: Place, way_out: str) -> Content:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise _unusable(file, str(error), way_out) from error


def _unusable(file: Place, why: str, way_out: str) -> Refused:
    return Refused(f"Spark's file {file} cannot be used ({why}): restore the checkpoint as it was, or {way_out}.")
