"""The summary at the end of the demo."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from precede.demo.conversation import Conversation
from precede.demo.watch import DemoWatch
from precede.udfs.errors import Refused

DELTA_QUERY = (
    "import pyarrow; from deltalake import DeltaTable, QueryBuilder; "
    "rows = QueryBuilder().register('deliveries', DeltaTable('{table}')).execute("
    "'SELECT position, sender, data, arrived_at, released_at FROM deliveries WHERE seq > 0 ORDER BY position'); "
    "print(pyarrow.table(rows).to_pandas().to_string(index=False))"
)


@dataclass
class DemoRun:
    """One run of the demo, as far as it got."""

    folder: Path
    watch: DemoWatch
    conversation: Conversation | None = None
    history: int = 0
    writes_history: bool = True
    """Whether the job writes to Delta."""
    cut_short: bool = False  # by Ctrl-C; messages may still be on their way


def print_summary(console: Console, run: DemoRun) -> None:
    """Print the summary; raises Refused if a promise was not kept."""
    watch, conversation = run.watch, run.conversation
    assert conversation is not None
    waited = watch.waited
    longest_s = max((delivery.held_ms for delivery in waited), default=0) / 1000
    positions = f"yes, 1 to {len(watch.deliveries)}" if watch.contiguous else "no"
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("Messages sent", f"{conversation.said}; {conversation.lost} lost on the way and sent again"),
        ("Arrived in the log", f"{len(watch.arrivals)}"),
        ("Held back", f"{len(waited)} of them, until the message they answer had arrived"),
        ("Longest hold", f"{longest_s:.1f} s"),
        ("Duplicates dropped", f"{watch.holdback.duplicates}"),
        ("Dead letters", f"{watch.dead_letters}"),
        ("Still held", f"{len(watch.held())}"),
        ("Positions contiguous", positions),
        ("Replay gives the same bytes", "yes" if watch.agreed else "no"),
        *([("Rows in Delta", f"{run.history}")] if run.writes_history else []),
    ):
        table.add_row(name, value)
    console.print()
    console.print(table, highlight=False)
    console.print()
    query = "Query the same in Delta, and replay" if run.writes_history else "Replay"
    console.print(f"{query} the log without Spark and Kafka:", highlight=False)
    for command in commands(run.folder, writes_history=run.writes_history):
        console.print(f"\n  {command}", highlight=False, markup=False, soft_wrap=True)
    console.print()
    if not (watch.contiguous and watch.agreed and (watch.complete or run.cut_short)):
        raise Refused(f"The stream did not deliver what it should; see the job's log {run.folder / 'job.log'}.")


def commands(folder: Path, *, writes_history: bool = True) -> list[str]:
    """Commands that work as printed, from the folder where the demo was started."""
    python = Path(sys.executable)
    script = python.with_name("precede")
    here = f"{_named(script)}" if script.exists() else f"{_named(python)} -m precede"
    query = DELTA_QUERY.format(table=folder / "delta" / "deliveries")
    in_delta = [f'{_named(python)} -c "{query}"'] if writes_history else []
    return [*in_delta, f"{here} replay {shlex.quote(str(folder / 'raw.jsonl'))}"]


def _named(path: Path) -> str:
    """The path for a shell: relative if it lies below this folder, else absolute."""
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
