"""Which raw partitions a job orders: all of them, or those that its setting `raw_partitions` names.

Several jobs share the topics of a stream when each orders some of the raw partitions. A group lives in one of them, so
nothing else is shared: each job has its own checkpoint, and owns its partitions in the progress topic.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from precede.udfs.errors import Refused

Found = TypeVar("Found")

_RANGE = r"[0-9]{1,5}(-[0-9]{1,5})?"
_RANGES = re.compile(rf"{_RANGE}(,{_RANGE})*")


def named(text: str) -> Sequence[int] | None:
    """The partitions of a text such as `0-3,7`, in ascending order; None where it is not such a text."""
    if _RANGES.fullmatch(text) is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            return None
        found.update(numbers)
    return sorted(found)


def as_text(partitions: Iterable[int]) -> str:
    """Ascending partitions, written as shortly as the setting allows."""
    runs = groupby(enumerate(partitions), key=lambda one: one[1] - one[0])
    found = [[partition for _, partition in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)


def owned(text: str | None, topic: str, partitions: int) -> Sequence[int]:
    """The partitions of a job with this setting, of a raw topic with so many; refused where it has fewer."""
    found = None if text is None else named(text)
    if found is None:
        return range(partitions)
    if found[-1] >= partitions:
        raise Refused(
            f"The setting raw_partitions is {text}, but the raw topic {topic} has {partitions} partitions, of which "
            f"the last is {partitions - 1}."
        )
    return found


def of_partitions(partitions: Collection[int], found: Mapping[int, Found]) -> dict[int, Found]:
    """What was found of these partitions; other jobs may have the rest."""
    return {at: one for at, one in found.items() if at in partitions}
