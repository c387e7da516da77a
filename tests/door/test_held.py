"""The tables of `precede held`; other tests read their content from a checkpoint."""

from typing import Any

from rich.console import Console
from rich.table import Table

from precede.commands.held import table_of_gaps, table_of_held
from precede.udfs.engine.held import Held
from precede.udfs.engine.inspection import OpenGap


def rows(table: Table) -> list[list[str]]:
    """The text of a table in a wide terminal."""
    console = Console(width=200, color_system=None)
    with console.capture() as shown:
        console.print(table)
    lines = shown.get().splitlines()
    return [[cell.strip() for cell in line.strip("│┃").split("│")] for line in lines if line.startswith("│")]


def held(group: str, sender: str, epoch: int, seq: int, **more: Any) -> Held:
    fields: dict[str, Any] = {"partition": 0, "offset": 3, "since_ms": 0, "missing": [], "silent": []}
    return Held(group=group, sender=sender, epoch=epoch, seq=seq, **(fields | more))


def test_a_held_message_shows_what_it_waits_for_and_for_how_long() -> None:
    answer = held("travel", "eli", 0, 1, since_ms=1_000, missing=[("zoe", 0, 7)])
    silent = held("clocks", "bob", 2, 4, silent=["ann"])
    closed = held("closed", "dan", 1, 1, silent=["dan", "ann"], joins=["dan"])
    letter = held("post", "chen", 0, 2, destination="dara", missing=[("ann", 1, seq) for seq in range(1, 6)])
    assert rows(table_of_held([answer, silent, closed, letter], 91_000.0)) == [
        ["travel", "eli:1", "zoe:7", "1.5 min"],
        ["clocks", "bob@2:4", "a word of ann", "1.5 min"],
        ["closed", "dan@1:1", "dan to join, a word of ann", "1.5 min"],
        ["post for dara", "chen:2", "ann@1:1, ann@1:2, ann@1:3 and 2 more", "1.5 min"],
    ]


def test_a_gap_shows_who_waits_for_it_and_how_often_it_was_asked_for() -> None:
    gap = OpenGap(
        group="travel",
        sender="zoe",
        epoch=0,
        first=7,
        last=9,
        since_ms=0,
        asked=2,
        asked_ms=4_000,
        waited=[("eli", 0, 1)],
    )
    assert rows(table_of_gaps([gap], 7_200_000.0)) == [["travel", "zoe:7 to 9", "eli:1", "2 times", "2.0 h"]]
