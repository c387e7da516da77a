"""`precede compare`: runs one trace under every order for which it carries stamps."""

import gc
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Config, WrongUse, done_when_the_reader_leaves, load_settings, open_input
from precede.terminal_text import safe_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from precede.comparison import Hold, LogTrace, OrderComparison, OrderResult

PICTURES = (".png", ".svg")


def compare(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Raw messages, one per line, in order of arrival; - is standard input."),
    ],
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Compare only this group.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a picture, into a file that ends in .png or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    config: Config = None,
) -> None:
    """Run the same messages under every order for which they carry stamps, and show what each order costs.

    FILE is what `precede replay` reads. Each order in turn is used for all groups:
    the order that a group was created with is ignored, its members and other
    options are kept. An order is left out if a message lacks its stamp.

      precede compare examples/chat.jsonl --plot chat.svg

    [bold]What the columns mean[/bold]

    ordered pairs: pairs of messages of a group that all members must see in the same
    order, however they arrived. Two messages are truly related if one answers the
    other, directly or through others, as `after` says; other pairs are ordered
    without need. In large groups a sample of some thousand messages is counted,
    and the numbers are marked with ~.

    sequences: how many sequences of all messages the order allows, for up to 16 messages.

    held: deliveries that waited for another record, and messages that still wait.

    hold: how long deliveries waited, 0 for those that did not; in steps, which are
    records of the group, and in seconds of the log.

    waits most for: the sender whose records released most held messages, or are
    still missing.

    early: replies that were delivered before what they answer.
    """
    settings = load_settings(config, reaches_kafka=False)
    if plot is not None and plot.suffix not in PICTURES:
        raise WrongUse(f"--plot {plot} must end in .png or .svg, the two kinds of picture.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise WrongUse(f"There is no folder {plot.parent} to draw {plot.name} in; create it, or name another.")
    from precede.comparison import LogTrace, compare_orders

    gc.disable()  # as in replay: the kernel leaves no garbage in cycles
    trace = LogTrace(settings.limits, group)
    _read(file, trace)
    if not trace.known:
        of_group = "" if group is None else f" of the group {group}"
        raise WrongUse(f"{file} holds no message{of_group} that could be ordered; `precede replay {file}` says why.")
    with _progress(len(trace.entries)) as progress:
        comparison = compare_orders(trace, file, progress)
    if plot is not None:
        from precede.comparison import draw

        draw(comparison, plot)
    with done_when_the_reader_leaves():
        if as_json:
            _print_json(comparison)
        else:
            _print_table(comparison)


def _read(file: str, trace: "LogTrace") -> None:
    from precede.reading.log_lines import LogLines, blocks

    with ExitStack() as files:
        lines = LogLines(trace)
        for block in blocks(open_input(file, files)):
            lines.feed(block)


@contextmanager
def _progress(records: int) -> "Iterator[Callable[[str, int], None]]":
    """A progress bar for each order, if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:

        def report(order: str, done: int) -> None:
            if order not in tasks:
                tasks[order] = bars.add_task(order, total=records)
            bars.update(tasks[order], completed=done)

        yield report


def _print_json(comparison: "OrderComparison") -> None:
    import msgspec

    typer.echo(msgspec.json.encode(comparison))


def _print_table(comparison: "OrderComparison") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(safe_text(_headline(comparison)), soft_wrap=True)
    console.print(_table(comparison))
    every = max([comparison.related_estimated_from_every, *_estimates(comparison)])
    if every > 1:
        console.print(f"~ is estimated: pairs were counted for one message in {every}.", soft_wrap=True)
    for order, why in comparison.not_run.items():
        console.print(safe_text(f"{order} is left out: {why}"), soft_wrap=True)


def _estimates(comparison: "OrderComparison") -> list[int]:
    return [run.estimated_from_every for run in comparison.orders.values()]


def _headline(comparison: "OrderComparison") -> str:
    related = "which of them are truly related is unknown, because no message names what it answers"
    if comparison.related_pairs is not None:
        count = _number(comparison.related_pairs, comparison.related_estimated_from_every)
        related = f"{count} of them truly related"
    many = "1 group" if comparison.groups == 1 else f"{comparison.groups:,} groups"
    return f"{comparison.messages:,} messages of {many}, {_number(comparison.pairs)} pairs, {related}."


def _table(comparison: "OrderComparison") -> "Table":
    """One row per order; columns without any value are left out."""
    from rich import box
    from rich.table import Table

    rows = {
        order: {
            "ordered\npairs": _number(run.ordered_pairs, run.estimated_from_every),
            "sequences": None if run.sequences is None else f"{run.sequences:,}",
            "held": f"{run.held:,}",
            "hold, steps\nmean / p99": _hold(run.hold_steps),
            "hold, s\nmean / p99": None if run.hold_s is None else _hold(run.hold_s),
            "waits\nmost for": _blocker(run),
            "early": None if run.replies_early is None else f"{run.replies_early:,}",
            "still held": f"{run.still_held:,}" if run.still_held else None,
            "refused": ", ".join(f"{count} {code}" for code, count in run.refused.items()) or None,
        }
        for order, run in comparison.orders.items()
    }
    shown_columns = [name for name in next(iter(rows.values())) if any(row[name] is not None for row in rows.values())]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("order", no_wrap=True)
    for name in shown_columns:
        table.add_column(name, justify="left" if name in ("waits\nmost for", "refused") else "right")
    for order, row in rows.items():
        table.add_row(*[safe_text(cell or "") for cell in (order, *(row[name] for name in shown_columns))])
    return table


def _blocker(run: "OrderResult") -> str:
    return "" if run.blocker is None else f"{run.blocker.sender} ({run.blocker.waits:,} / {run.blocker.of:,})"


def _hold(hold: "Hold") -> str:
    return f"{_short(hold.mean)} / {_short(hold.p99)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def _number(count: int, every: int = 1) -> str:
    """A count, rounded if it is large, and marked if it is an estimate."""
    for size, unit in ((10**9, " G"), (10**6, " M")):
        if count >= size:
            return f"{'~' if every > 1 else ''}{count / size:.3g}{unit}"
    return f"{'~' if every > 1 else ''}{count:,}"
