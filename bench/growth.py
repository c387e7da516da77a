"""The cost of a message while more and more are held: no order may search through what it holds.

Everything is held and then released, in two ways: all arrives backwards; or, where clocks decide, all but one member
have sent, and that one then sends message by message. Measured is total processor time per message, the least of the
repeats, since other load only adds to it.
"""

import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import stamped
from bench.figures import Figure, Lookup, Report
from bench.stage import Stage
from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS

MEMBERS = 10
GROWTH_MAX = 2.5
"""How much more a message may cost with ten times as many held, as caches are small; quadratic cost would be 10."""
PICTURE = Path(__file__).parents[1] / "docs" / "internals" / "growth.svg"

NAMES = stamped.Conversation(MEMBERS, 1).names

Log = list[bytes]


def run(_stage: Stage, quick: bool) -> Report:
    """Each order with growing numbers of held messages; the figure compares the last with a tenth of it."""
    sizes, repeats = ((300, 3_000), 1) if quick else ((1_000, 3_000, 10_000, 30_000, 100_000), 3)
    costs: dict[str, list[float]] = {}
    for name, (row, log_of, options) in cases().items():
        costs[name] = []
        for size in sizes:
            log = log_of(row, size)
            costs[name].append(min(_cost_us(row, log, size, options) for _ in range(repeats)))
            print(f"  {name}, {size:,}: {costs[name][-1]:.1f} µs", file=sys.stderr, flush=True)
    if not quick:
        _draw(sizes, costs)
    figures = [
        Figure(
            what=f"{name}: {sizes[-1]:,} held to {sizes[-1] // 10:,}",
            value=round(of[-1] / of[sizes.index(sizes[-1] // 10)], 2),
            target=None if quick else GROWTH_MAX,
            more_is_better=False,
            sides={f"{size:,}": round(cost, 1) for size, cost in zip(sizes, of, strict=True)},
            sides_unit="µs a message",
        )
        for name, of in costs.items()
    ]
    table = [[name, *(f"{cost:.1f}" for cost in of)] for name, of in costs.items()]
    lookup = Lookup("µs a message, by how many are held", ["order", *(f"{size:,}" for size in sizes)], table)
    return Report("growth", f"{MEMBERS} members, everything held and then let go", figures, [lookup])


def cases() -> dict[str, tuple[str, Callable[[str, int], Log], dict[str, int]]]:
    """A way of holding: what is measured, its log for a number of held messages, and the options of the group."""
    found: dict[str, tuple[str, Callable[[str, int], Log], dict[str, int]]] = {}
    for row in stamped.STAMPS:
        if row != "total":  # nothing is ever held
            found[f"{row}, backwards"] = row, _backwards, {}
        if ORDERS[stamped.order_of(row)].waits_for_members:
            found[f"{row}, one member silent"] = row, _one_silent, {}
    found["two_clock, one member silent, delay known"] = (
        "two_clock",
        _one_silent,
        {"accuracy_ms": 1, "delay_min_ms": 50},
    )
    return found


def _backwards(row: str, held: int) -> Log:
    return [value for _, value in stamped.sent(row, MEMBERS, held)][::-1]


def _one_silent(row: str, held: int) -> Log:
    """The silent member's messages are spread over the whole conversation, and come last."""
    chance = random.Random(3)
    talk = stamped.Conversation(MEMBERS, 1)
    silent, others = talk.names[0], talk.names[1:]
    said: tuple[Log, Log] = [], []
    while len(said[1]) < held:
        is_silent = chance.random() < 1 / MEMBERS
        said[0 if is_silent else 1].append(
            talk.say(stamped.STAMPS[row], silent if is_silent else chance.choice(others))
        )
    return said[1] + said[0]


def _cost_us(row: str, log: Log, held: int, options: dict[str, int]) -> float:
    holdback = Holdback(order=stamped.order_of(row))
    holdback.receive(stamped.created(row, NAMES, **options), stamped.GROUP)
    gc.collect()
    gc.disable()
    most, look = 0, min(1_000, max(1, held // 50))
    began = time.process_time()
    for number, line in enumerate(log):
        holdback.receive(line, stamped.GROUP, 0, number + 1, number)
        if number % look == 0 or number + 2 == held:
            most = max(most, holdback.held_growth)
            holdback.clear()
    took_s = time.process_time() - began
    gc.enable()
    assert not holdback.dead, holdback.dead[0]
    assert most > 0.8 * held, f"only {most} were held"
    holdback.close()
    return 1e6 * took_s / len(log)


def _draw(sizes: tuple[int, ...], costs: dict[str, list[float]]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(8, 5), layout="constrained")
    axes = picture.subplots()
    for number, (name, of) in enumerate(costs.items()):
        dashes = "-" if number < 10 else "--"  # there are ten colours
        axes.plot(sizes, of, dashes, marker="os^vD"[number % 5], markersize=4, linewidth=1, label=name)
    axes.set(xscale="log", xlabel="messages held at once", ylabel="µs a message, held and let go", ylim=(0, None))
    axes.legend(frameon=False, fontsize=7, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.hashsalt": "precede"}):
        picture.savefig(PICTURE, metadata={"Date": None})
