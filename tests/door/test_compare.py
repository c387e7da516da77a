"""`precede compare`: one trace under every order, its results, and its refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from precede.comparison import LogTrace, NotCarried, OrderResult, compare_orders
from precede.reading.log_lines import LogLines
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from tests.door.command import ROOT, lines, precede, raw
from tests.kernel import judge, traffic
from tests.kernel.effort import seeds
from tests.kernel.feeding import feed, parsed

CHAT = "examples/chat.jsonl"


@pytest.fixture(scope="module")
def chat() -> dict[str, Any]:
    done = precede("compare", CHAT, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    (comparison,) = lines(done.stdout)
    return comparison  # type: ignore[no-any-return]


def test_a_reader_that_leaves_before_the_table_is_no_error() -> None:
    command = [sys.executable, "-m", "precede", "compare", CHAT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(20) == 0


def run_of(order: str, *records: dict[str, Any] | bytes, times: bool = False) -> OrderResult:
    """The result of one order on these records, 1 s apart if `times`."""
    trace = LogTrace(Limits())
    reader = LogLines(trace)
    for at, record in enumerate(records):
        value = record if isinstance(record, bytes) else json.dumps({"group": "g", **record}).encode()
        if times:
            value = json.dumps({"value": value.decode(), "timestamp_ms": 1_000 * (at + 1)}).encode()
        reader.feed(value + b"\n")
    comparison = compare_orders(trace, "test")
    assert order in comparison.orders, comparison.not_run
    return comparison.orders[order]


def test_the_chat_of_the_first_document_has_2_5_and_6_ordered_pairs_of_6(chat: dict[str, Any]) -> None:
    assert (chat["messages"], chat["pairs"], chat["related_pairs"]) == (4, 6, 2)
    found = {order: (run["ordered_pairs"], run["sequences"]) for order, run in chat["orders"].items()}
    assert (found["s_b"], found["causal"], found["total"]) == ((2, 6), (5, 2), (6, 1))


def test_the_chat_carries_the_stamps_of_every_order(chat: dict[str, Any]) -> None:
    assert chat["orders"].keys() == ORDERS.keys()
    assert chat["not_run"] == {}
    assert all(run["refused"] == {} and run["still_held"] == 0 for run in chat["orders"].values())


def test_s_b_holds_the_first_answer_for_one_step_and_causal_for_three(chat: dict[str, Any]) -> None:
    assert chat["orders"]["s_b"]["hold_steps"]["max"] == 1
    assert chat["orders"]["causal"]["hold_steps"] == {"mean": 1.0, "p99": 3, "max": 3}
    assert chat["orders"]["causal"]["hold_s"]["max"] == 1.6
    assert chat["orders"]["causal"]["blocker"] == {"sender": "C", "waits": 2, "of": 2, "record": ["C", 0, 2]}


def test_only_orders_that_know_of_answers_never_show_one_too_early(chat: dict[str, Any]) -> None:
    early = {order for order, run in chat["orders"].items() if run["replies_early"]}
    assert early == {"fifo", "total"}


def test_the_member_that_is_silent_is_named_as_the_one_waited_for() -> None:
    created = {"kind": "create", "options": {"order": "s_b"}, "members": ["a", "b", "z"]}
    said: list[dict[str, Any]] = [
        {"sender": name, "seq": seq, "time": seq + 1, "after": []} for seq in (1, 2) for name in "ab"
    ]
    run = run_of("lamport", created, *said)
    assert (run.delivered, run.still_held, run.hold_s) == (0, 4, None)
    assert run.blocker is not None
    assert run.blocker.sender == "z"


def test_the_order_a_group_was_created_with_is_set_aside_and_its_other_options_stay() -> None:
    created = {"kind": "create", "options": {"order": "total", "closed": True}, "members": ["ann"]}
    stranger = raw("bob", 1)
    run = run_of("fifo", created, raw("ann", 2), stranger, raw("ann", 1))
    assert (run.delivered, run.held, run.still_held) == (2, 2, 1)  # closed: bob never joined
    assert run.hold_steps.max == 2


def test_keys_are_set_aside_because_a_signature_is_of_the_record_as_it_was() -> None:
    created = {"kind": "create", "options": {"order": "total", "keys": {"ann": "x"}}, "members": ["ann"]}
    assert run_of("s_b", created, raw("ann", 1)).refused == {}


def test_steps_are_records_of_the_group_alone_and_seconds_are_of_the_log() -> None:
    other = raw("x", 1, group="other")
    run = run_of("fifo", raw("a", 2), other, other, raw("b", 1), raw("a", 1), times=True)
    assert run.hold_steps.max == 2  # b:1 and a:1, and nothing of the other group
    assert run.hold_s is not None
    assert run.hold_s.max == 4.0


def test_an_order_whose_stamp_a_message_lacks_is_left_out_by_a_sentence_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(raw("ann", 1) + b"\n" + b'{"group":"g","sender":"bob","seq":1}\n')
    done = precede("compare", file)
    assert done.returncode == 0
    said = done.stdout.decode()
    assert "s_b is left out: The order s_b needs the field `after`: the parent's id, or []." in said
    assert "The first without it is bob:1, at offset 1." in said


def test_what_an_order_refuses_is_counted_by_its_code() -> None:
    circle = [raw("a", 1, ["b", 0, 1]), raw("b", 1, ["a", 0, 1])]
    assert run_of("s_b", *circle, b"{").refused == {"cycle": 2, "malformed": 1}
    assert run_of("object", *circle, b"{").still_held == 2


def test_what_messages_carry_may_be_any_json() -> None:
    assert run_of("s_b", b'{"group":"g","sender":"A","seq":1,"after":[],"data":"\\ud800"}').delivered == 1


def test_one_group_may_be_compared_alone(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(raw("ann", 1) + b"\n" + b'{"group":"h","sender":"bob","seq":1}\n')
    (comparison,) = lines(precede("compare", file, "--group", "g", "--json").stdout)
    assert (comparison["messages"], "s_b" in comparison["orders"]) == (1, True)


def test_the_page_that_helps_to_choose_shows_what_the_command_says_of_the_chat() -> None:
    said = "\n".join(line.rstrip() for line in precede("compare", CHAT).stdout.decode().splitlines()).strip()
    assert f"```text\n{said}\n```" in (ROOT / "docs" / "orders" / "README.md").read_text()


def test_a_log_from_standard_input_is_compared_like_a_file() -> None:
    done = precede("compare", "-", given=(ROOT / CHAT).read_bytes())
    assert done.returncode == 0
    assert done.stdout.decode().startswith("4 messages of 1 group, 6 pairs, 2 of them truly related.")
    assert all(order in done.stdout.decode() for order in ORDERS)


@pytest.mark.parametrize("order", ORDERS)
def test_any_log_however_hostile_is_compared_and_every_message_is_accounted_for(order: str) -> None:
    for seed in seeds(15):
        log = traffic.log(Random(f"{order} {seed}"), order, length=60)
        trace = LogTrace(Limits())
        for record in log.records:
            trace.receive(*record)
        for name in ORDERS:
            try:
                run = trace.under(name)
            except NotCarried:
                continue
            outcome = feed([one._replace(value=_under(name, one.value)) for one in log.records], order=name)
            statuses = [(one.get("kind", "message"), one["status"]) for one in parsed(outcome.ordered)]
            assert run.delivered == statuses.count(("message", "delivered"))
            assert run.still_held == len(outcome.held)
            assert sum(run.refused.values()) == len(outcome.dead)


def _under(order: str, value: bytes | None) -> bytes | None:
    """The record with another order, if it creates a group."""
    try:
        record = json.loads(value or b"")
        if record["kind"] != "create":
            return value
        record["options"] = {**record.get("options", {}), "order": order}
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        return value
    return json.dumps(record).encode() if judge.read(value or b"") is not None else value


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_is_drawn_of_the_kind_its_name_says(tmp_path: Path, ending: str, begins: bytes) -> None:
    picture = tmp_path / f"chat.{ending}"
    done = precede("compare", CHAT, "--plot", picture)
    assert (done.returncode, done.stderr) == (0, b"")
    assert picture.read_bytes().startswith(begins)
    if ending == "svg":
        again = tmp_path / "again.svg"
        precede("compare", CHAT, "--plot", again)
        assert again.read_bytes() == picture.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["/no/such/file"], "The file /no/such/file cannot be read"),
        ([CHAT, "--plot", "chat.gif"], "--plot chat.gif must end in .png or .svg"),
        ([CHAT, "--plot", "/no/such/folder/chat.svg"], "There is no folder /no/such/folder to draw chat.svg in"),
        ([CHAT, "--group", "nobody"], "holds no message of the group nobody that could be ordered"),
        (["LICENSE"], "LICENSE holds no message that could be ordered; `precede replay LICENSE` says why."),
    ],
    ids=["file", "kind of picture", "folder", "group", "not a log"],
)
def test_wrong_use_is_told_in_a_sentence(arguments: list[str], sentence: str) -> None:
    done = precede("compare", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert sentence in done.stderr.decode()
    assert len(done.stderr.decode().splitlines()) == 1


def test_ctrl_c_ends_it_without_a_traceback() -> None:
    command = [sys.executable, "-m", "precede", "compare", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(b"\n".join(raw("ann", seq) for seq in range(1, 20_001)))  # more than a pipe holds
        process.stdin.flush()  # so by now it is running
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert (out, said) == (b"", b"")
