"""Places where a test can stop the job and do it harm; off, and at no cost, unless the variable names one.

    PRECEDE_FAULT=POINT:N:FOLDER

The N-th time a process of the job comes to POINT it writes its process id into FOLDER/reached and stays there until
FOLDER/go is there: time enough to kill it, or whatever it talks to. One process stops, once.

Points of a batch, in their order:

    order.begin     Spark hands a batch over; no state of it is committed (the batch before it is, checkpoint and all)
    order.work      in a Python worker: a shard's records are there, nothing is done with them
    order.worked    in a Python worker: a shard's rows are on their way, its new state is not committed
    order.ordered   all shards have committed their states; no transaction is open
    order.open      the transaction is open and holds all records, but not the token
    order.out       the transaction is committed; Spark does not know
    history.work    in a Python worker: records are there, nothing of them is written to Delta
    history.worked  in a Python worker: their rows are on their way to Delta
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VARIABLE = "PRECEDE_FAULT"
LOOK_S = 0.02

_asked = os.environ.get(VARIABLE)
_left: dict[str, int] = {}


def reach(point: str) -> None:
    """The job is at this point now."""
    if _asked is not None:
        _stay(point, *_asked.split(":", 2))


def around(function: Callable[..., Iterator[Any]], query: str) -> Callable[..., Iterator[Any]]:
    """What a worker runs, with a point before and after it; the function itself where no test asks for more."""
    return function if _asked is None else Around(function, query)


class Around:
    """Travels to the workers, which have the variable too."""

    def __init__(self, function: Callable[..., Iterator[Any]], query: str) -> None:
        self.function = function
        self.query = query

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        reach(f"{self.query}.work")
        yield from self.function(*arguments)
        reach(f"{self.query}.worked")


def _stay(point: str, asked: str, times: str, folder: str) -> None:
    if point != asked:
        return
    left = _left[point] = _left.get(point, int(times)) - 1
    if left > 0:
        return
    try:
        with Path(folder, "reached").open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return  # it was this or another process's turn already
    while not Path(folder, "go").exists():
        time.sleep(LOOK_S)
