"""Each order in the kernel, against `s_b` in the same run: the cost of its stamps and its waiting."""

import gc
import random
import time
from functools import partial

from bench import stamped, traffic
from bench.figures import Figure, Report, by_turns, ratio
from bench.stage import Stage
from precede.udfs.holdback import Holdback

ENTRIES_MAX = 2_000_000
"""Vectors of 1,000 members are long: this total number of entries limits the number of messages."""
TARGETS = {(stamped.SPARSE, 10): 0.5}


def run(_stage: Stage, quick: bool) -> Report:
    """Messages per second of processor time, 30 % out of order, one group."""
    sizes, most, repeats = ((3,), 300, 1) if quick else ((10, 1_000), 30_000, 5)
    figures: list[Figure] = []
    for members in sizes:
        logs = {row: _arrivals(row, members, most) for row in stamped.STAMPS}
        found = by_turns({row: partial(_rate, row, members, log) for row, log in logs.items()}, repeats)
        for row in stamped.STAMPS:
            if row != "s_b":
                what = f"{row}, {members:,} members ({len(logs[row]):,} messages)"
                target = TARGETS.get((row, members))
                figures.append(ratio(what, found, row, "s_b", target=target))
    return Report("orders", "each order in the kernel to s_b, one group, 30 % out of order, processor time", figures)


def _arrivals(row: str, members: int, most: int) -> list[bytes]:
    entries = {"causal": members, stamped.SPARSE: members // 2, "causal_p2p": 3 * members}.get(row, 1)
    count = min(most, ENTRIES_MAX // entries)
    late = traffic.arrivals(stamped.sent(row, members, count), 0.3, random.Random(2))
    return [value for _, value in late]


def _rate(row: str, members: int, log: list[bytes]) -> float:
    holdback = Holdback(order=stamped.order_of(row))
    names = stamped.Conversation(members, 1).names
    holdback.receive(stamped.created(row, names, accuracy_ms=5), stamped.GROUP)
    receive = holdback.receive
    gc.collect()
    gc.disable()  # as in replay and in the shard function
    began = time.process_time()
    for number, line in enumerate(log):
        receive(line, stamped.GROUP, 0, number + 1, number)
        if number % 1_000 == 0:
            holdback.clear()
    took_s = time.process_time() - began
    gc.enable()
    assert not holdback.dead, holdback.dead[0]
    holdback.close()
    return len(log) / took_s
