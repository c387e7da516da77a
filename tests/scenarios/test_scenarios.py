"""Runs the stories beside this file: commands, each followed by its trace.

A line that starts in the first column is a command or, after `#`, a comment; an indented line is trace. Commands:

    order fifo                      the default order of the kernel (only at the top; s_b without it)
    partitions 4                    of the log, so that the key says where the group g belongs (only at the top)
    create closed order=fifo description=Trips members A B
    join A epoch 1 · leave A last 4 · evict A cut 2 · abandon A 2..3, B 1..1
    B3 after B2                     message 3 of B, answering message 2 of B; written again, it is an exact copy
    B3 to C D sees A2 B3 sent C:A1,B2 D:A2 · B3 to C sees B3 sent nothing
    B3 sees A2 B3 · B3 time 7 clock 100 · heartbeat B next 4 time 8 clock 110
    wait 3 s                        time passes, which takes effect with the next record of the log
    tick · tick after 3 s           the job's own record that lets time pass
    B3 epoch 1 · B3 says "no" · B3 after B2 C1 · B3 meta trace=7 · B3 unstamped · partition 1: B3
    create keys=A,B,precede members A B · join A epoch 1 key new · B3 by B · abandon A 2..3 by precede

A word after `keys=`, `key` and `by` names a key; `by` signs the record with it.

Trace: `->` what is delivered, in order, with (A2) for the stand-in of an abandoned message, and C:A2 for A2 at the
destination C; `dead` the dead letters; `copy` if it was dropped as an exact copy; `job` what the job itself requests,
reports or writes into the log; `held` all that is held afterwards, and what each message waits for.

After an intended change of the kernel, `pytest tests/scenarios --rewrite-scenarios` rewrites the traces: read the diff.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.feeding import Tale, split
from tests.signing import public, publics

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def told(story: str) -> str:
    """The story with the traces of the current kernel."""
    lines: list[str] = []
    tale = Tale()
    for line in story.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        command, _, _ = line.partition("#")
        words = command.split()
        if not words:
            continue
        if words[0] == "order":
            tale = Tale(words[1])
            continue
        if words[0] == "partitions":
            tale = Tale(tale.kernel.order, partitions=int(words[1]))
            continue
        copies = tale.kernel.duplicates
        partition = 0
        if words[0] == "partition":
            partition, words = int(words[1].rstrip(":")), words[2:]
        signer = words.pop() if words[-2:-1] == ["by"] else None
        if signer is not None:
            words.pop()
        if words[0] == "wait":
            tale.wait(seconds(words[1:]))
            continue
        if words[0] == "tick":
            tale.tick(seconds(words[2:]) if len(words) > 1 else 0)
        else:
            tale.take(partition=partition, by=signer, **record(words))
        lines += trace(tale, copies)
    return "\n".join(lines) + "\n"


def seconds(words: list[str]) -> float:
    """A duration."""
    return float(words[0]) * {"ms": 0.001, "s": 1, "min": 60}[words[1]]


def record(words: list[str]) -> dict[str, Any]:
    """The fields of a command's record."""
    match words:
        case ["create", *rest]:
            options: dict[str, Any] = {}
            while rest and rest[0] != "members":
                name, _, value = rest.pop(0).partition("=")
                options[name] = True if not value else int(value) if value.isdigit() else value
            if "keys" in options:
                options["keys"] = publics(*options["keys"].split(","))
            return {"kind": "create", "options": options, "members": rest[1:]}
        case ["join", sender, *rest]:
            return {"kind": "join", "sender": sender, **more(rest)}
        case ["leave", sender, "last", last, *rest]:
            return {"kind": "leave", "sender": sender, "last": int(last), **more(rest)}
        case ["evict", sender, "cut", cut, *rest]:
            return {"kind": "evict", "member": [sender, more(rest).get("epoch", 0)], "cut": int(cut)}
        case ["abandon", *rest]:
            ranges = re.findall(r"(\w+) (\d+)\.\.(\d+)(?: epoch (\d+))?", " ".join(rest))
            ids = [[who, int(epoch or 0), int(first), int(last)] for who, first, last, epoch in ranges]
            return {"kind": "abandon", "ids": ids}
        case ["heartbeat", sender, "next", following, *rest]:
            return {"kind": "heartbeat", "sender": sender, "seq": int(following), **more(rest)}
        case [name, *rest]:
            sender, seq = split(name)
            fields = {"sender": sender, "seq": seq, "after": [], **more(rest)}
            if fields.pop("unstamped", False):
                del fields["after"]
            return fields
        case _:
            raise ValueError(f"no command: {' '.join(words)}")


def more(words: list[str]) -> dict[str, Any]:
    """What may follow the name of a message or member."""
    fields: dict[str, Any] = {}
    while words:
        match words:
            case ["after" | "sees" as which, *rest]:
                ids = []
                while rest and re.fullmatch(r"[A-Z]\w*\d", rest[0]):
                    sender, seq = split(rest.pop(0))
                    ids.append([sender, 0, seq])
                fields["after" if which == "after" else "seen"], words = ids, rest
            case ["to", *rest]:
                fields["to"] = []
                while rest and re.fullmatch(r"[A-Z]", rest[0]):
                    fields["to"].append(rest.pop(0))
                words = rest
            case ["sent", *rest]:
                fields["sent"] = {}
                while rest and (entry := re.fullmatch(r"([A-Z]):([A-Z\d,]+)", rest[0])):
                    fields["sent"][entry[1]] = [[split(name)[0], 0, split(name)[1]] for name in entry[2].split(",")]
                    rest.pop(0)
                words = rest[1:] if rest[:1] == ["nothing"] else rest
            case ["time" | "clock" as which, number, *rest]:
                fields["time" if which == "time" else "clock_ms"], words = int(number), rest
            case ["key", word, *rest]:
                fields["key"], words = public(word), rest
            case ["meta", given, *rest]:
                name, is_pair, value = given.partition("=")
                fields["meta"], words = {name: value} if is_pair else name, rest
            case ["epoch", epoch, *rest]:
                fields["epoch"], words = int(epoch), rest
            case ["says", *said]:
                fields["data"], words = " ".join(said).strip('"'), []
            case ["unstamped", *rest]:
                fields["unstamped"], words = True, rest
            case _:
                raise ValueError(f"what is {' '.join(words)}?")
    return fields


def trace(tale: Tale, copies: int) -> list[str]:
    """The effects of one record, and what is held after it."""
    lines = []
    if tale.out:
        lines.append(f"    -> {' '.join(tale.out)}")
    lines += [f"    dead: {letter}" for letter in tale.dead]
    if tale.kernel.duplicates > copies:
        lines.append("    copy")
    lines += [f"    job {said}" for said in tale.own]
    if tale.held:
        waits = [f"{name} for {' '.join(missing) or 'nothing'}" for name, missing in tale.held.items()]
        lines.append(f"    held: {', '.join(waits)}")
    return lines or ["    nothing"]


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_written(path: Path, request: pytest.FixtureRequest) -> None:
    story = path.read_text()
    if request.config.getoption("rewrite_scenarios"):
        path.write_text(told(story))
    else:
        assert story == told(story)


def test_there_are_stories_to_tell() -> None:
    assert len(STORIES) > 8
