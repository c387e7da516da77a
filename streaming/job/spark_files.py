"""How far a query is, read without Spark from the files that Spark keeps in the query's folder of the checkpoint."""

import msgspec

from precede.streaming.places.place import Place

NO_BATCH = -1


def last_commit(folder: Place) -> int:
    """The newest batch that Spark has committed."""
    return max((int(name) for name in (folder / "commits").files() if name.isdecimal()), default=NO_BATCH)


def query_id(folder: Place) -> str | None:
    """The id by which a query identifies itself to its sink as long as its folder exists."""
    try:
        return str(msgspec.json.decode((folder / "metadata").read())["id"])
    except FileNotFoundError:
        return None


def reached(folder: Place) -> dict[str, dict[int, int]]:
    """By topic and partition, the first offset after the last committed batch; empty before the first start.

    Before the first commit it is the offset where the first batch begins.
    """
    batch = last_commit(folder)
    if batch == NO_BATCH:
        try:
            lines = (folder / "sources" / "0" / "0").read().splitlines()
        except FileNotFoundError:
            lines = []
    else:
        lines = (folder / "offsets" / str(batch)).read().splitlines()
    topics = msgspec.json.decode(lines[-1] if lines else "{}", type=dict[str, dict[str, int]])
    return {topic: {int(at): offset for at, offset in places.items()} for topic, places in topics.items()}
