"""Where a group begins whose records one batch brings from several partitions: with the one that the log took first.

A group lives in the partition of its first accepted record. A batch is stepped through partition by partition. Without
this look ahead the lowest partition of the batch would win, so the result would depend on where batches are cut. The
kernel itself decides which record is accepted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterator
from heapq import merge
from itertools import chain
from operator import itemgetter

from precede.udfs.holdback import Holdback

Row = tuple[int, int, bytes | None, bytes | None, int]
"""Partition, offset, key, value, and when the log took it."""


def look_ahead(rows: list[Row], known: Container[bytes], look: Holdback, kernel: Holdback) -> None:
    """Tell a kernel where such groups begin, before it steps through rows in the order of (partition, offset).

    Known groups have begun already. `look` is an empty kernel, of the same order and limits as the other.
    """
    parts = list(_by_partition(rows))
    strayed = _strayed(parts, known)
    if not strayed:
        return
    of_them = [[row for row in part if row[2] in strayed] for part in parts]
    for partition, offset, key, value, taken_ms in merge(*of_them, key=itemgetter(4)):
        if key is not None and key not in kernel.begin_in:
            look.receive(value, key, partition, offset, taken_ms)
            home = look.lives_in(key)
            if home is None:
                kernel.too_early.add((partition, offset))
            else:
                kernel.begin_in[key] = home
    look.close()


def _by_partition(rows: list[Row]) -> Iterator[list[Row]]:
    first = 0
    while first < len(rows):
        end = bisect_left(rows, rows[first][0] + 1, key=itemgetter(0))
        yield rows[first:end]
        first = end


def _strayed(parts: list[list[Row]], known: Container[bytes]) -> set[bytes]:
    """The keys that came in several partitions; there are none where producers hash as they must."""
    keys_of = [{row[2] for row in part} for part in parts]
    for keys in keys_of:
        keys.discard(None)
    if sum(map(len, keys_of)) == len(set[bytes | None]().union(*keys_of)):
        return set()
    counts = Counter(chain.from_iterable(keys_of))
    return {key for key, count in counts.items() if count > 1 and key is not None and key not in known}
