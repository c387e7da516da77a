"""Points where a test can stop the job and harm it; off, and without cost, unless the variable names one.

    PRECEDE_FAULT=POINT:N:FOLDER

The N-th time that any process of the job comes to POINT, it writes its process id into FOLDER/reached and waits until
FOLDER/go exists. Meanwhile the test can kill it, or a service that it uses. One process stops, once.

Points of a batch, in their order:

    order.begin     Spark hands a batch over; none of its state is committed; the batch before it is, completely
    order.work      in a Python worker: a shard's records have arrived and are not processed
    order.worked    in a Python worker: a shard's rows are returned, its new state is not committed
    order.ordered   all shards have committed their states; no transaction is open
    state.before    the transaction is open, and the next records in it are states for the state topic
    state.after     they are handed to the Kafka client
    order.open      the transaction is open and holds all records but the token and what the job writes into the log
    order.out       the transaction is committed; Spark does not know it yet

The engine process comes to those of them that are not in a worker, and to one more:

    cache.mark      no transaction is open; where the state topic ends is marked in the cache after the next one

Points of a restore, on the driver, before the first batch and after it:

    restore.files    the state is written beside the checkpoint, but not the manifest
    restore.written  the manifest is written too; Spark has not begun
    restore.taken    every shard has its state in a committed batch, and the files are about to be removed

Points of a history batch, in a Python worker that writes a part of one table:

    deliveries.work      records have arrived; none of them is written to Delta
    deliveries.worked    their rows are returned to Spark, which writes them to Delta
    dead_letters.work    the same for dead letters
    dead_letters.worked
    gaps.work            the same for gaps, which the driver then merges
    gaps.worked
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "PRECEDE_FAULT"
POLL_S = 0.02

_asked = os.environ.get(VARIABLE)


def reach(point: str) -> None:
    """Stop here if the variable names this point and pass."""
    if _asked is not None:
        _stop(point, *_asked.split(":", 2))


def around(function: Callable[..., Iterator[Any]], name: str) -> Callable[..., Iterator[Any]]:
    """The function with a point before and after it; the function itself where the variable is not set."""
    return function if _asked is None else Around(function, name)


class Around:
    """Is pickled and sent to the workers, which have the variable too."""

    def __init__(self, function: Callable[..., Iterator[Any]], name: str) -> None:
        self.function = function
        self.name = name

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        reach(f"{self.name}.work")
        yield from self.function(*arguments)
        reach(f"{self.name}.worked")


def _stop(point: str, asked: str, number: str, folder: str) -> None:
    if point != asked:
        return
    if _count_pass(Path(folder), int(number)) != int(number):
        return
    Path(folder, "reached").write_text(str(os.getpid()))
    while not Path(folder, "go").exists():
        time.sleep(POLL_S)


def _count_pass(folder: Path, most: int) -> int:
    """The number of this pass among those of all processes; 0 after `most`."""
    for number in range(1, most + 1):
        with suppress(FileExistsError):
            (folder / f"pass-{number}").touch(exist_ok=False)
            return number
    return 0
