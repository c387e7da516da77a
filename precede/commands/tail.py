"""`precede tail`: follows the ordered topic, or the dead letters."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from precede.command_options import (
    Bootstrap,
    Config,
    Seconds,
    check_name,
    done_when_the_reader_leaves,
    load_settings,
    say,
)
from precede.terminal_text import plain
from precede.udfs.records.identifiers import id_text

if TYPE_CHECKING:
    from precede.reading.delivery import Delivery
    from precede.streaming.settings import Settings

LOOK_S = 0.25
SPACES = str.maketrans("\r\n\t", "   ")
"""The white space that may stand between the parts of JSON text; a record is printed on one line."""


class _Asked(NamedTuple):
    group: str | None
    from_beginning: bool
    as_json: bool
    live: bool
    end_s: float
    """When to stop, by the clock that only counts."""


def tail(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="One group; without it, all.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Also what is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The records themselves, one per line.")] = False,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="What can never be delivered, and why.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Run the kernel here: in milliseconds, without the job.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N records.")] = None,
    seconds: Seconds = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Follow what is delivered, in order, until Ctrl-C.

    Each position of a group is shown once. If positions are missing, standard error says which. With --live the kernel
    runs in this command, over the raw topic: messages show in milliseconds, and also while the job is down.

    Examples:

      precede tail travel

      precede tail --from-beginning --json --count 100 > first.jsonl

      precede tail --live travel

      precede tail --dead-letters
    """
    if group is not None:
        check_name("GROUP", group)
    settings = load_settings(config, bootstrap=bootstrap)
    if live and dead_letters:
        raise typer.BadParameter("--live shows what is delivered: leave out --dead-letters")
    asked = _Asked(group, from_beginning, as_json, live, _end_s(seconds))
    lines = (_dead_letters if dead_letters else _deliveries)(settings, asked)
    with done_when_the_reader_leaves(), suppress(KeyboardInterrupt):
        for shown, line in enumerate(lines, start=1):
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
            if shown == count:
                break


def _end_s(seconds: float | None) -> float:
    return float("inf") if seconds is None else time.monotonic() + seconds


def _request_s(end_s: float) -> float:
    """How long to wait for a broker: shorter than the command may run, so that it can say who did not answer."""
    from precede.ingest.kafka.reading import REQUEST_S

    return max(LOOK_S, min(REQUEST_S, 0.75 * (end_s - time.monotonic())))


def _deliveries(settings: "Settings", asked: _Asked) -> Iterator[bytes]:
    from precede.reading.following import follow
    from precede.reading.log_lines import one_line_each
    from precede.udfs.errors import Difference, Hole

    start: Literal["beginning", "end"] = "beginning" if asked.from_beginning else "end"
    request_s = _request_s(asked.end_s)
    with follow(
        asked.group, config=settings, start=start, request_s=request_s, live=asked.live, retention="raise"
    ) as follower:
        is_told = False
        while time.monotonic() < asked.end_s:
            try:
                delivery = follower.poll(LOOK_S)
                if follower.waits_for is not None and not is_told:
                    is_told = True
                    say(_waiting(settings, follower.waits_for))
            except Hole as hole:
                say(f"Hole: {hole}")
                continue
            except Difference as difference:
                say(str(difference))
                continue
            if delivery is not None:
                yield one_line_each([delivery.record])[:-1] if asked.as_json else delivery_line(delivery).encode()


def delivery_line(delivery: "Delivery") -> str:
    """One delivered record for a person: its place, sender and text, what it answers, and how long it was held."""
    place = delivery.group if delivery.destination is None else f"{delivery.group} for {delivery.destination}"
    seq = 0 if delivery.seq is None else delivery.seq
    who = (
        id_text((delivery.sender or "-", delivery.epoch, seq)) if delivery.kind == "message" else delivery.sender or ""
    )
    answers = f" after {', '.join(id_text(id_) for id_ in delivery.after)}" if delivery.after else ""
    waited = f"  (held {delivery.held_ms / 1000:.1f} s)" if delivery.released_offset != delivery.offset else ""
    if delivery.status == "abandoned":
        said = "abandoned"
    elif delivery.kind == "message":
        said = bytes(delivery.raw_data).decode(errors="replace").translate(SPACES)
    else:
        said = delivery.kind
    return plain(f"{place} {delivery.position}  {who}{answers}  {said}{waited}")


def _dead_letters(settings: "Settings", asked: _Asked) -> Iterator[bytes]:
    import msgspec

    from precede.ingest.kafka.log_readers import open_reader

    reader = open_reader("confluent", settings.bootstrap, request_s=_request_s(asked.end_s))
    try:
        starts: dict[int, int] = {}
        at_end = not asked.from_beginning
        is_told = False
        while not starts and time.monotonic() < asked.end_s:
            starts = reader.starts(settings.dead_letter_topic, at_end=at_end, timeout_s=LOOK_S)
            at_end = at_end and bool(starts)
            if not starts and not is_told:
                is_told = True
                say(_waiting(settings, f"the topic {settings.dead_letter_topic}"))
        if starts:
            reader.assign(settings.dead_letter_topic, starts)
        while time.monotonic() < asked.end_s:
            for record in reader.read(LOOK_S):
                letter = msgspec.json.decode(record.value or b"{}")
                if asked.group in (None, letter.get("group")):
                    yield (record.value or b"") if asked.as_json else _letter_line(letter).encode()
    finally:
        reader.close()


def _waiting(settings: "Settings", what: str) -> str:
    return f"Waiting for {what} on Kafka at {settings.bootstrap}: `precede run` creates it."


def _letter_line(letter: dict[str, Any]) -> str:
    who = letter.get("group")
    if sender := letter.get("sender"):
        seq = letter.get("seq")
        who = f"{who} {sender}" if seq is None else f"{who} {id_text((sender, letter.get('epoch') or 0, seq))}"
    whom = f" for {letter['destination']}" if letter.get("destination") else ""
    place = f"partition {letter.get('partition')} offset {letter.get('offset')}"
    return plain(f"{letter.get('code')}  {who or '-'}{whom}  {place}  {letter.get('reason')}")
