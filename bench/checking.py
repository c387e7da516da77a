"""`precede check` beside the kernel over the same records, and its memory over a history four times as long.

Both sides are one computing thread, so processor time is measured. The checker reads every raw and every ordered
record; the kernel reads the raw ones and writes the others.
"""

import gc
import time
import tracemalloc
from functools import partial

from bench import stamped, traffic
from bench.figures import Figure, Report, by_turns, ratio
from bench.stage import Stage
from precede.check.judge import Check
from precede.check.records import read_ordered, read_raw
from precede.udfs.holdback import OWN_KEY, Holdback
from precede.udfs.limits import Limits

LIMITS = Limits()
MEMORY_GROWTH_MAX = 1.3
"""How much more memory a history four times as long may take, with as much held."""
MEMBERS = 10
ORDERS = ("fifo", "causal", "lamport")

Log = list[tuple[bytes, bytes]]


def run(_stage: Stage, quick: bool) -> Report:
    """Rates in s_b and in three orders with stamps, and memory."""
    count, groups, repeats = (2_000, 10, 1) if quick else (250_000, 1_000, 3)
    figures = [_rates("s_b", list(traffic.whole(groups, count)), repeats)]
    size = 1_000 if quick else 20_000
    figures += [_rates(order, _stamped(order, size), repeats) for order in ORDERS]
    short, long = (_memory(groups, count // 10 * times) for times in (1, 4))
    figures.append(
        Figure(
            what="memory at its most, for a history four times as long",
            value=round(long / short, 2),
            target=None if quick else MEMORY_GROWTH_MAX,
            more_is_better=False,
            sides={"short": round(short / 1e6, 1), "long": round(long / 1e6, 1)},
            sides_unit="MB",
        )
    )
    return Report("checking", f"{count:,} s_b messages of {groups:,} groups; {size:,} of one group", figures)


def _stamped(order: str, size: int) -> Log:
    names = stamped.Conversation(MEMBERS, 1).names
    created = [(stamped.GROUP, stamped.created(order, names))]
    return [*created, *((key or b"", value) for key, value in stamped.sent(order, MEMBERS, size))]


def _rates(order: str, log: Log, repeats: int) -> Figure:
    ordered, counts = _ordered(order, log)
    sides = by_turns(
        {"check": partial(_check_rate, order, log, ordered, counts), "kernel": partial(_kernel_rate, order, log)},
        repeats,
    )
    return ratio(f"check, {order}", sides, "check", "kernel", target=0.33)


def _ordered(order: str, log: Log) -> tuple[list[bytes], list[int]]:
    """What the kernel makes of the log, and how many ordered records there are after each raw one."""
    holdback = Holdback(order=order)
    counts = []
    for offset, (key, value) in enumerate(log):
        holdback.receive(value, key, 0, offset, offset)
        counts.append(len(holdback.ordered))
    return holdback.ordered, counts


def _kernel_rate(order: str, log: Log) -> float:
    holdback = Holdback(order=order)
    gc.disable()
    began = time.process_time()
    for offset, (_, value) in enumerate(log):
        holdback.receive(value, OWN_KEY, 0, offset, offset)
        if offset % 100 == 0:
            holdback.clear()
    took_s = time.process_time() - began
    gc.enable()
    return len(log) / took_s


def _check_rate(order: str, log: Log, ordered: list[bytes], counts: list[int]) -> float:
    gc.disable()
    began = time.process_time()
    _check(order, log, ordered, counts)
    took_s = time.process_time() - began
    gc.enable()
    return len(log) / took_s


def _check(order: str, log: Log, ordered: list[bytes], counts: list[int]) -> None:
    check = Check(order=order)
    taken = 0
    for offset, (key, value) in enumerate(log):
        check.take_raw(read_raw(value, key, 0, offset, offset, LIMITS))
        while taken < counts[offset]:
            check.take(read_ordered(ordered[taken]))
            taken += 1
    check.settle()
    report = check.report()
    assert report.status == 0, report.violations


def _memory(groups: int, count: int) -> float:
    """The most that the checker has at a time, beside the records themselves."""
    log = list(traffic.whole(groups, count))
    ordered, counts = _ordered("s_b", log)
    tracemalloc.start()
    _check("s_b", log, ordered, counts)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most
