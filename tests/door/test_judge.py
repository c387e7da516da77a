"""The judge of the crash matrix, on streams with one error each: a judge that finds no error proves nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from precede.streaming.job.ticker import TICK
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint_reader as held
from precede.udfs.engine.held import Held
from tests.faults import judge
from tests.faults.judge import Record
from tests.faults.scene import BAD, create
from tests.records import conversation

GAP = ("group", "sender", "epoch", "last", "first", "state", "asked")
POSITION = re.compile(rb'"position":\d+')


@dataclass
class Found:
    """The state after a case: the topics, the kernel's own output for the log, held messages, the tables."""

    raw: list[Record]
    ordered: list[Record]
    dead: list[Record]
    control: list[Record]
    replayed: dict[str, list[Any]]
    held: list[Held]
    deliveries: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    gaps: list[dict[str, Any]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A stream in which everything is correct."""
    pairs = [create("group-0", "fifo"), create("group-4", "lamport"), *conversation(120, groups=6), *BAD]
    pairs += [(None, TICK)] * 20
    raw: list[Record] = [(key, value, 0, at, 100 * at) for at, (key, value) in enumerate(pairs)]
    replayed = judge.replay(raw, tmp_path_factory.mktemp("replay"), ask_after_ms=500)
    ordered: list[Record] = [
        (msgspec.json.decode(value)["group"].encode(), value, 0, at, 0) for at, value in enumerate(replayed["ordered"])
    ]
    dead: list[Record] = [(b"", value, 0, at, 0) for at, value in enumerate(replayed["dead"])]
    asks = [one["value"] for one in replayed["own"] if one["topic"] == "control"]
    control: list[Record] = [(b"", msgspec.json.encode(one), 0, at, 0) for at, one in enumerate(asks)]
    letters = [msgspec.json.decode(value) for value in replayed["dead"]]
    return Found(
        raw,
        ordered,
        dead,
        control,
        replayed,
        [msgspec.convert(one, Held) for one in replayed["held"]],
        [{"record": value.decode()} for value in replayed["ordered"]],
        [{name: one[name] for name in ("partition", "offset", "code")} for one in letters],
        [{**{name: asks[-1].get(name) for name in GAP}, "state": "open"}],
    )


@pytest.fixture
def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Found], list[str]]:
    def judged(found: Found) -> list[str]:
        settings = Settings(delta=str(tmp_path))
        topics = {
            settings.raw_topic: found.raw,
            settings.ordered_topic: found.ordered,
            settings.dead_letter_topic: found.dead,
            settings.control_topic: found.control,
        }
        for name in ("deliveries", "dead_letters", "gaps"):
            rows = getattr(found, name)
            write_deltalake(tmp_path / name, pa.Table.from_pylist(rows))
        monkeypatch.setattr(judge, "read", lambda _, topic: topics[topic])
        monkeypatch.setattr(judge, "replay", lambda *_: found.replayed)
        monkeypatch.setattr(judge, "as_checked", lambda _: [])  # reads topics itself, and has a catalogue of its own
        monkeypatch.setattr(held, "read", lambda *_, **__: iter(found.held))
        stream: Any = type("AStream", (), {"settings": settings})
        return judge.judge(stream, tmp_path, None)

    return judged


def test_a_sound_stream_is_found_to_be_one(sound: Found, verdict: Callable[[Found], list[str]]) -> None:
    assert verdict(sound) == []
    assert len(sound.ordered) > 100
    assert len(sound.dead) == 2
    assert len(sound.held) > 1
    assert len(sound.control) > 1


def of_group(found: Found, key: bytes) -> list[int]:
    return [at for at, record in enumerate(found.ordered) if record[0] == key]


def swap(found: Found, key: bytes) -> None:
    """Two neighbours of one group swap places but not positions, and the replay agrees."""
    one, other = next(pair for pair in pairwise(of_group(found, key)) if _is_before(found, *pair))
    first, second = (found.replayed["ordered"][at] for at in (one, other))
    before, after = (POSITION.search(value)[0] for value in (first, second))  # type: ignore[index]
    for at, value in ((one, second.replace(after, before)), (other, first.replace(before, after))):
        found.ordered[at] = key, value, 0, at, 0
        found.replayed["ordered"][at] = value
        found.deliveries[at]["record"] = value.decode()


def _is_before(found: Found, *pair: int) -> bool:
    """Whether two neighbours are messages that belong in this order."""
    one, other = (msgspec.json.decode(found.replayed["ordered"][at]) for at in pair)
    if "kind" in one or "kind" in other:
        return False
    match one["order"]:
        case "fifo":
            return bool(one["sender"] == other["sender"])
        case "lamport":
            return True
        case _:
            return [one["sender"], one.get("epoch", 0), one["seq"]] in other["after"]


def lose_everywhere(found: Found) -> None:
    """The last message of a group is in no topic, table or replay, only in the log."""
    at = of_group(found, b"group-1")[-1]
    for rows in (found.ordered, found.replayed["ordered"], found.deliveries):
        del rows[at]


def forge(found: Found) -> None:
    key, value, *place = found.ordered[50]
    found.ordered[50] = key, (value or b"").replace(b"gr\xc3\xbc\xc3\x9f dich", b"hello"), *place  # type: ignore[assignment]
    found.deliveries[50]["record"] = found.ordered[50][1].decode()  # type: ignore[union-attr]


WRONG: dict[str, tuple[Callable[[Found], object], str]] = {
    "a position is missing": (lambda found: found.ordered.pop(50), "stands after"),
    "a position comes twice": (lambda found: found.ordered.insert(50, found.ordered[50]), "stands after"),
    "a reply stands before what it answers": (lambda found: swap(found, b"group-1"), "before what it follows"),
    "a sender's messages change places": (lambda found: swap(found, b"group-0"), "before what it follows"),
    "a later time stands first": (lambda found: swap(found, b"group-4"), "after a later time"),
    "a record is not what was sent": (forge, "differs from its replay"),
    "a record came to nothing": (lose_everywhere, "came out 0 times"),
    "a dead letter is missing": (lambda found: found.dead.pop(), "came out 0 times"),
    "a dead letter comes twice": (lambda found: found.dead.append(found.dead[0]), "came out 2 times"),
    "a held message is forgotten": (lambda found: found.held.pop(), "the job holds"),
    "what is delivered is held as well": (lambda found: found.held.append(found.held[0]), "the job holds"),
    "a gap was never asked for": (lambda found: found.control.pop(), "records in the control topic"),
    "a gap was asked for twice": (lambda found: found.control.append(found.control[0]), "records in the control topic"),
    "Delta lacks a row": (lambda found: found.deliveries.pop(), "deliveries"),
    "Delta has a row twice": (lambda found: found.deliveries.append(found.deliveries[0]), "deliveries"),
    "Delta lacks a dead letter": (lambda found: found.dead_letters.pop(), "Delta has 1 dead letters"),
    "Delta has a dead letter twice": (
        lambda found: found.dead_letters.append(found.dead_letters[0]),
        "Delta has 3 dead letters",
    ),
    "Delta tells of a gap as it was before": (lambda found: found.gaps[0].update(asked=1), "or they differ"),
    "Delta has a gap twice": (lambda found: found.gaps.append(found.gaps[0]), "Delta has 2 gaps"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(sound: Found, verdict: Callable[[Found], list[str]], what: str) -> None:
    break_it, said = WRONG[what]
    found = deepcopy(sound)
    break_it(found)
    problems = verdict(found)
    assert any(said in problem for problem in problems), problems
