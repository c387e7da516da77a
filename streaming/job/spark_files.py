"""How far a query is, read without Spark from the files that Spark keeps in the query's folder of the checkpoint."""

from pathlib import Path

import msgspec

NO_BATCH = -1


def last_commit(folder: Path) -> int:
    """The newest batch that Spark has committed."""
    commits = (folder / "commits").glob("[0-9]*")
    return max((int(one.name) for one in commits if one.name.isdigit() and one.is_file()), default=NO_BATCH)


def query_id(folder: Path) -> str | None:
    """The id by which a query identifies itself to its sink as long as its folder exists."""
    try:
        return str(msgspec.json.decode((folder / "metadata").read_bytes())["id"])
    except FileNotFoundError:
        return None


def reached(folder: Path) -> dict[str, dict[int, int]]:
    """By topic and partition, the first offset after the last committed batch; empty before the first start.

    Before the first commit it is the offset where the first batch begins.
    """
    batch = last_commit(folder)
    if batch == NO_BATCH:
        first = folder / "sources" / "0" / "0"
        lines = first.read_text().splitlines() if first.exists() else []
    else:
        lines = (folder / "offsets" / str(batch)).read_text().splitlines()
    topics = msgspec.json.decode(lines[-1] if lines else "{}", type=dict[str, dict[str, int]])
    return {topic: {int(at): offset for at, offset in places.items()} for topic, places in topics.items()}
