"""`precede compare`: one trace under every order that it carries stamps for."""

import gc
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Config, WrongUse, done_when_the_reader_leaves, load_settings
from precede.terminal_text import safe_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from precede.comparison.trace import Comparison, Hold, OrderResult, Trace

PICTURES = (".png", ".svg")


def compare(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Raw messages, one a line, in arrival order; - is standard input.")
    ],
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Compare this group alone.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a picture too, into a file ending in .png or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    config: Config = None,
) -> None:
    """Run the same messages under every order they carry stamps for, and say what each order costs.

    FILE is what `precede replay` reads. Each order in turn decides for all groups:
    the one that a group was created with is set aside, its members and other
    options stay. An order is left out where a message lacks its stamp.

      precede compare examples/chat.jsonl --plot chat.svg

    [bold]What the columns say[/bold]

    ordered pairs: pairs of messages of a group that everybody must see in one order,
    whatever way they came. Truly related are those of which one answers the other,
    directly or through others, as `after` says; the rest is held for nothing.
    In large groups some thousand messages stand for all, marked with ~.

    sequences: how many sequences of all messages the order allows, up to 16 messages.

    held: deliveries that waited for another record, and messages that still do.

    hold: how long deliveries waited, those in time with 0; in steps, which are
    records of the group, and in seconds of the log.

    waits most for: whose records let most held messages go, or are missing still.

    early: replies delivered before what they answer.
    """
    settings = load_settings(config, reaches_kafka=False)
    if plot is not None and plot.suffix not in PICTURES:
        raise WrongUse(f"--plot {plot} must end in .png or .svg, which says what is drawn.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise WrongUse(f"There is no folder {plot.parent} to draw {plot.name} in; make it, or name another.")
    from precede.comparison.trace import Trace, compare_orders

    gc.disable()  # as in replay: the kernel makes no cycles that end before it does
    trace = Trace(settings.limits, group)
    _read(file, trace)
    if not trace.known:
        of_group = "" if group is None else f" of the group {group}"
        raise WrongUse(f"{file} holds no message{of_group} that could be ordered; `precede replay {file}` says why.")
    with _progress(len(trace.entries)) as progress:
        comparison = compare_orders(trace, file, progress)
    if plot is not None:
        from precede.comparison.plot import draw

        draw(comparison, plot)
    with done_when_the_reader_leaves():
        if as_json:
            _print_json(comparison)
        else:
            _print_table(comparison)


def _read(file: str, trace: "Trace") -> None:
    from precede.commands.replay import open_source
    from precede.reading.log_lines import LogLines, blocks

    with ExitStack() as files:
        lines = LogLines(trace)
        for block in blocks(open_source(file, files)):
            lines.feed(block)


@contextmanager
def _progress(records: int) -> "Iterator[Callable[[str, int], None]]":
    """A bar for each order, for a person who waits; nothing where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:

        def told(order: str, done: int) -> None:
            if order not in tasks:
                tasks[order] = bars.add_task(order, total=records)
            bars.update(tasks[order], completed=done)

        yield told


def _print_json(comparison: "Comparison") -> None:
    import msgspec

    typer.echo(msgspec.json.encode(comparison))


def _print_table(comparison: "Comparison") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(safe_text(_headline(comparison)), soft_wrap=True)
    console.print(_table(comparison))
    every = max([comparison.related_estimated_from_every, *_estimates(comparison)])
    if every > 1:
        console.print(f"~ is estimated: pairs were counted for one message in {every}.", soft_wrap=True)
    for order, why in comparison.not_run.items():
        console.print(safe_text(f"{order} is left out: {why}"), soft_wrap=True)


def _estimates(comparison: "Comparison") -> list[int]:
    return [run.estimated_from_every for run in comparison.orders.values()]


def _headline(comparison: "Comparison") -> str:
    related = "which of them are truly related is unknown, for no message names what it answers"
    if comparison.related_pairs is not None:
        count = _number(comparison.related_pairs, comparison.related_estimated_from_every)
        related = f"{count} of them truly related"
    many = "1 group" if comparison.groups == 1 else f"{comparison.groups:,} groups"
    return f"{comparison.messages:,} messages of {many}, {_number(comparison.pairs)} pairs, {related}."


def _table(comparison: "Comparison") -> "Table":
    """One row an order; columns that would tell of nothing are left out."""
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
    told = [name for name in next(iter(rows.values())) if any(row[name] is not None for row in rows.values())]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("order", no_wrap=True)
    for name in told:
        table.add_column(name, justify="left" if name in ("waits\nmost for", "refused") else "right")
    for order, row in rows.items():
        table.add_row(*[safe_text(cell or "") for cell in (order, *(row[name] for name in told))])
    return table


def _blocker(run: "OrderResult") -> str:
    return "" if run.blocker is None else f"{run.blocker.sender} ({run.blocker.waits:,} / {run.blocker.of:,})"


def _hold(hold: "Hold") -> str:
    return f"{_short(hold.mean)} / {_short(hold.p99)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def _number(count: int, every: int = 1) -> str:
    """A count; an estimate says so, and large ones are rounded to be read."""
    for size, unit in ((10**9, " G"), (10**6, " M")):
        if count >= size:
            return f"{'~' if every > 1 else ''}{count / size:.3g}{unit}"
    return f"{'~' if every > 1 else ''}{count:,}"
