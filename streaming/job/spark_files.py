"""How far a query is, as Spark keeps it in the query's folder of the checkpoint; read without Spark."""

from pathlib import Path

import msgspec

NONE_YET = -1


def last_commit(folder: Path) -> int:
    """The newest batch that is through, as far as Spark has noted it down."""
    commits = (folder / "commits").glob("[0-9]*")
    return max((int(one.name) for one in commits if one.name.isdigit() and one.is_file()), default=NONE_YET)


def query_id(folder: Path) -> str | None:
    """What a query calls itself to its sink for as long as its folder lives."""
    try:
        return str(msgspec.json.decode((folder / "metadata").read_bytes())["id"])
    except FileNotFoundError:
        return None


def reached(folder: Path) -> dict[str, dict[int, int]]:
    """By topic and partition the first offset after the last batch that is through; nothing before the first start.

    Where no batch is through it is the offset that the first one was planned from, and will be run again from.
    """
    batch = last_commit(folder)
    if batch == NONE_YET:
        began = folder / "sources" / "0" / "0"
        lines = began.read_text().splitlines() if began.exists() else []
    else:
        lines = (folder / "offsets" / str(batch)).read_text().splitlines()
    topics = msgspec.json.decode(lines[-1] if lines else "{}", type=dict[str, dict[str, int]])
    return {topic: {int(at): offset for at, offset in places.items()} for topic, places in topics.items()}
