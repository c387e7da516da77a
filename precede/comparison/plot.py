"""The plot of a comparison: how many pairs each order fixes, and how long messages wait for that."""

from pathlib import Path
from typing import TYPE_CHECKING

from precede.ingest.extras import need

if TYPE_CHECKING:
    from precede.comparison.trace import Comparison, Hold

ORDERED, NEEDED, HELD = "#4c72b0", "#c44e52", "#dd8452"


def draw(comparison: "Comparison", path: Path) -> None:
    """Write PNG or SVG, by the file extension; the same comparison gives the same file."""
    need("plot", "A picture")
    import matplotlib as mpl
    from matplotlib.figure import Figure  # only the figure, without a window system

    names = list(reversed(comparison.orders))
    runs = [comparison.orders[name] for name in names]
    figure = Figure(figsize=(10, 1.6 + 0.45 * len(names)), layout="constrained")
    pairs, waits = figure.subplots(1, 2, sharey=True)
    all_pairs = max(1, comparison.pairs)
    pairs.barh(names, [100 * run.ordered_pairs / all_pairs for run in runs], color=ORDERED)
    for at, run in enumerate(runs):
        pairs.annotate(f" {run.ordered_pairs:,}", (100 * run.ordered_pairs / all_pairs, at), va="center", fontsize=8)
    if comparison.related_pairs is not None:
        share = 100 * comparison.related_pairs / all_pairs
        pairs.axvline(share, color=NEEDED, linestyle="--", label=f"truly related: {comparison.related_pairs:,}")
        figure.legend(loc="outside lower left", frameon=False, fontsize=8)
    pairs.set(xlim=(0, 115), xlabel=f"ordered pairs, % of {comparison.pairs:,}")
    is_timed = any(run.hold_s is not None for run in runs)
    holds: list[Hold] = [run.hold_s or run.hold_steps for run in runs]
    waits.barh(names, [hold.mean for hold in holds], color=HELD, label="mean")
    waits.plot([hold.p99 for hold in holds], range(len(names)), "k|", markersize=12, label="99 of 100 at most")
    waits.set_xlabel(f"held, {'seconds' if is_timed else 'steps'} (all deliveries)")
    if max((hold.p99 for hold in holds), default=0) > 0:
        waits.set_xlim(left=0)
    waits.legend(frameon=False, fontsize=8, loc="best")
    figure.suptitle(f"{comparison.messages:,} messages: {Path(comparison.file).name}")
    for axes in (pairs, waits):
        axes.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.hashsalt": "precede", "svg.fonttype": "path"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
