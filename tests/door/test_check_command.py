"""`precede check` over files and tables: its verdicts, its exit status, and what it may import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precede.check.judge import Check
from precede.check.records import ERASED, OrderedRead, read_ordered
from precede.check.sources import judge_files
from precede.udfs.limits import Limits
from tests.door.command import precede
from tests.door.test_delta_history import write
from tests.kernel.checking import renumbered
from tests.test_rooms import IMPORTS, MODULES

CHAT = "examples/chat.jsonl"
SHARED = ("precede.udfs.records.", "precede.udfs.errors", "precede.udfs.limits")
"""What the checker shares with the kernel: how a record is read, and what it may hold."""
READING = ("precede.ingest.", "precede.reading.", "precede.streaming.")
"""What `sources` and `watching` use to reach topics, tables and files."""


@pytest.fixture
def replayed(tmp_path: Path) -> Path:
    """A folder with what `precede replay` makes of the chat."""
    done = precede("replay", CHAT, "--dead-letters", str(tmp_path / "bad.jsonl"))
    (tmp_path / "ordered.jsonl").write_bytes(done.stdout)
    return tmp_path


def check(folder: Path, ordered: str = "ordered.jsonl", *more: str) -> tuple[int, dict[str, Any]]:
    files = ("--raw", CHAT, "--ordered", str(folder / ordered), "--dead-letters", str(folder / "bad.jsonl"))
    done = precede("check", *files, "--json", *more)
    return done.returncode, json.loads(done.stdout)


def test_the_checker_shares_nothing_with_the_kernel_but_the_reading_of_a_record() -> None:
    rooms = [module for module in MODULES if module.startswith("precede.check")]
    assert len(rooms) > 8
    for module in rooms:
        may_read = READING if module.endswith((".sources", ".watching")) else ()
        wrong = [name for name in IMPORTS[module] if not name.startswith(("precede.check", *SHARED, *may_read))]
        assert not wrong, f"{module} imports {wrong}"


def test_what_replay_makes_holds(replayed: Path) -> None:
    status, report = check(replayed)
    assert (status, report["holds"], report["groups"]) == (0, True, 1)


def test_two_records_that_changed_places_are_shown_with_their_positions(replayed: Path) -> None:
    records = (replayed / "ordered.jsonl").read_bytes().splitlines()
    records[1], records[2] = records[2], records[1]
    (replayed / "swapped.jsonl").write_bytes(b"\n".join(renumbered(records)) + b"\n")
    status, report = check(replayed, "swapped.jsonl")
    assert status == 1
    (violation,) = report["violations"]
    assert violation["group"] == "chat"
    assert violation["sentence"]
    files = ("--raw", CHAT, "--ordered", str(replayed / "swapped.jsonl"))
    said = precede("check", *files)
    assert said.returncode == 1
    assert said.stdout.startswith(b"Broken in group chat: ")


def test_without_the_dead_letters_what_may_have_been_refused_cannot_be_judged(tmp_path: Path) -> None:
    raw = [
        {"group": "g", "sender": "a", "seq": 1, "after": []},
        {"group": "g", "sender": "a", "seq": 2, "after": []},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in raw))
    made = precede("replay", str(log)).stdout.splitlines()
    (tmp_path / "ordered.jsonl").write_bytes(made[0] + b"\n")
    files = ("--raw", str(log), "--ordered", str(tmp_path / "ordered.jsonl"))
    done = precede("check", *files)
    assert done.returncode == 2
    assert b"--dead-letters FILE" in done.stdout
    (tmp_path / "none.jsonl").write_bytes(b"")
    assert precede("check", *files, "--dead-letters", str(tmp_path / "none.jsonl")).returncode == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--raw", CHAT), "--raw needs --ordered"),
        (("--raw", CHAT, "--ordered", CHAT, "--delta", "d"), "--raw and --delta are two sources"),
        (("--delta", "d", "--follow"), "--follow reads the topics"),
        (("--dead-letters", CHAT), "--dead-letters goes with --raw"),
        (("--raw", "no", "--ordered", "no"), "There is no file no"),
        (("--from", "nonsense"), "--from: This is no token"),
    ],
)
def test_flags_that_do_not_go_together_end_it_in_a_sentence(flags: tuple[str, ...], sentence: str) -> None:
    done = precede("check", *flags)
    assert done.returncode == 2
    assert sentence in done.stderr.decode()


def test_a_line_that_is_no_ordered_record_is_named(replayed: Path) -> None:
    whole = (replayed / "ordered.jsonl").read_bytes()
    (replayed / "odd.jsonl").write_bytes(b'{"group":"chat"}\n' + whole)
    status, report = check(replayed, "odd.jsonl")
    assert status == 1
    assert "Line 1 of odd.jsonl is no ordered record" in json.dumps(report)


def test_an_erased_record_counts_and_only_its_place_is_judged(replayed: Path) -> None:
    records = [read_ordered(line) for line in (replayed / "ordered.jsonl").read_bytes().splitlines()]
    one = records[1]
    records[1] = OrderedRead(
        one.group, b"", one.position, one.order, ERASED, None, 0, one.offset, 0, one.released_offset, 0
    )
    judged = Check(has_raw=False)
    for record in records:
        judged.take(record)
    report = judged.report()
    assert (report.status, report.erased) == (0, 1)
    judged = Check(has_raw=False)
    for record in [*records[:1], *records[2:]]:
        judged.take(record)
    assert judged.report().broken["position"] == 1


def test_a_check_that_begins_later_counts_what_lies_before_as_delivered(replayed: Path) -> None:
    records = [read_ordered(line) for line in (replayed / "ordered.jsonl").read_bytes().splitlines()]
    judged = Check(has_raw=False, is_whole=False)
    for record in records[2:]:
        judged.take(record)
    assert judged.report().status == 0


def test_a_log_of_many_partitions_is_judged_in_step(tmp_path: Path) -> None:
    lines = []
    for offset in range(300):
        partition = offset % 3
        value = json.dumps({"group": f"g{partition}", "sender": "a", "seq": offset // 3 + 1, "after": []})
        place = {"key": f"g{partition}", "partition": partition, "offset": offset // 3, "timestamp_ms": offset}
        lines.append(json.dumps({"value": value, **place}))
    log, ordered = tmp_path / "log.jsonl", tmp_path / "ordered.jsonl"
    log.write_text("\n".join(lines) + "\n")
    ordered.write_bytes(precede("replay", str(log)).stdout)
    judged = Check()
    (tmp_path / "bad.jsonl").write_bytes(b"")
    judge_files(log, ordered, tmp_path / "bad.jsonl", judged, Limits())
    report = judged.report()
    assert (report.status, report.ordered, report.groups) == (0, 300, 3)


def test_the_tables_are_judged_row_by_row_and_a_lost_row_is_a_hole(replayed: Path) -> None:
    records = (replayed / "ordered.jsonl").read_bytes().splitlines()
    write(replayed / "whole", *records)
    done = precede("check", "--delta", str(replayed / "whole"), "--json")
    assert (done.returncode, json.loads(done.stdout)["ordered"]) == (0, len(records))
    write(replayed / "lost", *records[:1], *records[2:])
    done = precede("check", "chat", "--delta", str(replayed / "lost"))
    assert done.returncode == 1
    assert b"position 2 is missing" in done.stdout
    write(replayed / "twice", *records, records[3])
    done = precede("check", "--delta", str(replayed / "twice"))
    assert done.returncode == 1
    assert b"(position 4, offset 0:4) was delivered before" in done.stdout
    done = precede("check", "--delta", str(replayed / "none"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"There is no Delta table")
