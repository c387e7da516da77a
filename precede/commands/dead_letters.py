"""`precede dead-letters`: lists what was refused and why, and publishes it again once the cause is fixed."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Bootstrap, Config, WrongUse, done_when_the_reader_leaves, load_settings, say
from precede.terminal_text import safe_text
from precede.udfs.records.identifiers import id_text

if TYPE_CHECKING:
    from precede.reading.dead_letter_reader import FoundLetter, LetterFilter
    from precede.streaming.settings import Settings

SHOWN_MAX = 50
REASON_LENGTH_MAX = 100

MAY_PASS = frozenset(
    {"backpressure", "seq_jump", "clock_poison", "forged", "unknown_member", "unknown_order", "wrong_partition"}
)
"""Codes whose cause lies in the group, or in the version of precede, and may be gone by now.

Records with other codes are refused for what they contain.
"""


def dead_letters(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="One group; without it, all.")] = None,
    code: Annotated[list[str] | None, typer.Option(metavar="CODE", help="Only this code; may be repeated.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Arrived at or after: 2h, 3d, 2026-05-01, 2026-05-01T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Arrived before this time.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first N of them, by arrival.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The dead letters themselves, one per line.")] = False,
    delta: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Read the Delta table under DIR, a folder or a URI, instead of the topic."),
    ] = None,
    redrive: Annotated[bool, typer.Option("--redrive", help="Publish their raw records again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before publishing.")] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """List what can never be delivered, and why. With --redrive, publish it again once the cause is fixed.

    A raw record is published byte for byte and with its key, as a new record of the log, and is checked like any other.
    If the record itself is wrong, it is refused again: then its sender must send a correct one.

    Examples:

      precede dead-letters --since 1d                       a table, and how many of each code

      precede dead-letters travel --code bad_stamp --json   for other programs

      precede dead-letters --code backpressure --since 2h --redrive --limit 100
    """
    if redrive and delta is not None:
        raise WrongUse("--redrive reads the topic, because the table does not have the keys; leave out --delta.")
    settings = load_settings(config, bootstrap=bootstrap, delta=delta)
    wanted = _wanted(group, code or [], since, until)
    found = _find(settings, wanted, from_delta=delta is not None)
    chosen = found[:limit]
    if redrive:
        _redrive(settings, chosen, ask=not yes)
        return
    with done_when_the_reader_leaves():
        if as_json:
            _write_lines(chosen)
        else:
            _print_table(chosen, found)


def _wanted(group: str | None, codes: list[str], since: str | None, until: str | None) -> "LetterFilter":
    from precede.reading.dead_letter_reader import LetterFilter, moment_ms
    from precede.udfs.codes import CODES

    for code in codes:
        if code not in CODES:
            raise WrongUse(f"There is no code {code}; the codes are {', '.join(CODES)}.")
    times: list[int | None] = []
    for name, text in (("--since", since), ("--until", until)):
        times.append(None if text is None else moment_ms(text, round(time.time() * 1000)))
        if text is not None and times[-1] is None:
            raise WrongUse(
                f"{name} {text} is not a time: write 90s, 15min, 2h or 3d for that long ago, or 2026-05-01T12:00."
            )
    return LetterFilter(group, tuple(codes), times[0], times[1])


def _find(settings: "Settings", wanted: "LetterFilter", *, from_delta: bool) -> "list[FoundLetter]":
    """All dead letters that match, by arrival."""
    from precede.reading import dead_letter_reader as letters

    found: Iterator[FoundLetter] = (letters.from_delta if from_delta else letters.from_topic)(settings, wanted)
    return sorted(found, key=lambda one: (one.letter.arrived_ms, one.letter.partition, one.letter.offset))


def _codes(found: "list[FoundLetter]") -> str:
    return ", ".join(f"{count:,} {code}" for code, count in Counter(one.letter.code for one in found).most_common())


# ── listing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_lines(found: "list[FoundLetter]") -> None:
    import msgspec

    for one in found:
        fields = msgspec.to_builtins(one.letter)
        typer.echo(msgspec.json.encode({name: value for name, value in fields.items() if _says(name, value)}))


def _says(name: str, value: object) -> bool:
    """Whether a field is printed: like the topic, this leaves out fields without a value."""
    return name not in ("destination", "value", "value_base64", "truncated") or value not in (None, False)


def _print_table(chosen: "list[FoundLetter]", found: "list[FoundLetter]") -> None:
    if not found:
        say("There are no such dead letters.")
        return
    import datetime

    from rich.console import Console
    from rich.table import Table

    listed = chosen[:SHOWN_MAX]
    table = Table("arrived (UTC)", "group", "message", "code", "reason", "offset")
    for one in listed:
        letter = one.letter
        arrived = datetime.datetime.fromtimestamp(letter.arrived_ms / 1000, datetime.UTC)
        who = id_text((letter.sender, letter.epoch or 0, letter.seq)) if letter.sender and letter.seq else letter.sender
        reason = letter.reason[:REASON_LENGTH_MAX]
        place = f"{letter.partition}:{letter.offset}"
        cells = f"{arrived:%Y-%m-%d %H:%M:%S}", letter.group or "-", who or "-", letter.code, reason, place
        table.add_row(*map(safe_text, cells))
    Console().print(table)
    rest = "; --json lists all" if len(listed) < len(chosen) else ""
    more = f" The first {len(listed)} are shown{rest}." if len(listed) < len(found) else ""
    say(f"{len(found):,} dead letters: {_codes(found)}.{more}")


# ── publishing again ──────────────────────────────────────────────────────────────────────────────────────────────────


def _redrive(settings: "Settings", chosen: "list[FoundLetter]", *, ask: bool) -> None:
    from precede.ingest.producer import Publisher
    from precede.reading.dead_letter_reader import value_of
    from precede.udfs.errors import Refused

    records: list[tuple[bytes | None, bytes | None]] = []
    whole: list[FoundLetter] = []
    for one in chosen:
        try:
            records.append((one.key, value_of(one)))
            whole.append(one)
        except Refused as truncated:
            say(str(truncated))
    if not whole:
        say("There is nothing to publish again.")
        raise typer.Exit(1 if chosen else 0)
    say(f"To be published again to {settings.raw_topic}, byte for byte and with their keys: {_codes(whole)}.")
    hopeless = [one for one in whole if one.letter.code not in MAY_PASS]
    if hopeless:
        say(f"Of these, {_codes(hopeless)} will most likely be refused again, for what the records themselves contain.")
    if ask:
        if not sys.stdin.isatty():
            raise WrongUse("There is no terminal on which to ask whether to publish; say --yes.")
        if not _agreed(f"Publish {len(whole):,} records?"):
            say("Nothing was published.")
            return
    with Publisher(settings.bootstrap, topic=settings.raw_topic, partitioner=settings.partitioner) as publisher:
        for key, value in records:
            publisher.publish_raw(key, value)
    say(f"Published {len(whole):,} records.")


def _agreed(question: str) -> bool:
    """Whether the person says yes; Ctrl-C and the end of input mean no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        say("")
        return False
