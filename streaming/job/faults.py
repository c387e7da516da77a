"""Places where a test can stop the job and do it harm; off, and at no cost, unless the variable names one.

    PRECEDE_FAULT=POINT:N:FOLDER

The N-th time a process of the job comes to POINT, whichever it is, it writes its process id into FOLDER/reached and
stays there until FOLDER/go is there: time enough to kill it, or whatever it talks to. One process stops, once.

Points of a batch, in their order:

    order.begin     Spark hands a batch over; no state of it is committed (the batch before it is, checkpoint and all)
    order.work      in a Python worker: a shard's records are there, nothing is done with them
    order.worked    in a Python worker: a shard's rows are on their way, its new state is not committed
    order.ordered   all shards have committed their states; no transaction is open
    order.open      the transaction is open and holds all records, but not the token
    order.out       the transaction is committed; Spark does not know

Points of a batch of history, in a Python worker, which writes a part of one table:

    deliveries.work      records are there, nothing of them is written to Delta
    deliveries.worked    their rows are on their way to Delta
    dead_letters.work    the same, of the dead letters
    dead_letters.worked
    gaps.work            the same, of the gaps, which the driver then merges
    gaps.worked
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "PRECEDE_FAULT"
LOOK_S = 0.02

_asked = os.environ.get(VARIABLE)


def reach(point: str) -> None:
    """The job is at this point now."""
    if _asked is not None:
        _stay(point, *_asked.split(":", 2))


def around(function: Callable[..., Iterator[Any]], name: str) -> Callable[..., Iterator[Any]]:
    """What a worker runs, with a point before and after it; the function itself where no test asks for more."""
    return function if _asked is None else Around(function, name)


class Around:
    """Travels to the workers, which have the variable too."""

    def __init__(self, function: Callable[..., Iterator[Any]], name: str) -> None:
        self.function = function
        self.name = name

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        reach(f"{self.name}.work")
        yield from self.function(*arguments)
        reach(f"{self.name}.worked")


def _stay(point: str, asked: str, times: str, folder: str) -> None:
    if point != asked:
        return
    if _pass(Path(folder), int(times)) != int(times):
        return
    Path(folder, "reached").write_text(str(os.getpid()))
    while not Path(folder, "go").exists():
        time.sleep(LOOK_S)


def _pass(folder: Path, most: int) -> int:
    """Which pass of the whole job this is; 0 once there were more than matter."""
    for number in range(1, most + 1):
        with suppress(FileExistsError):
            (folder / f"pass-{number}").touch(exist_ok=False)
            return number
    return 0
