"""The programs under examples/ run, and print what their docstrings promise."""

import json
import subprocess
import sys

from tests.door.command import ROOT


def run(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


def test_the_kernel_alone_orders_messages_and_names_what_is_missing() -> None:
    lines = run("order_messages")
    assert lines[0] == "bob:1 is held; missing: [('ann', 0, 1)]"
    assert [line.partition(": ")[0] for line in lines[1:]] == ["record 1 lets go"] * 2
    delivered = [json.loads(line.partition(": ")[2]) for line in lines[1:]]
    assert [(record["position"], record["sender"], record["offset"]) for record in delivered] == [
        (1, "ann", 1),
        (2, "bob", 0),
    ]


def test_behind_lossy_path_nothing_is_delivered_that_misses_what_it_follows() -> None:
    said = run("lossy_path")
    assert said[0].startswith("1000 sent, ")
    assert said[2].endswith("messages")


def test_in_a_group_with_keys_nobody_speaks_in_another_s_name() -> None:
    said = run("signed_group")
    assert said[:3] == ["1 the group begins ", "2 ann Who comes along?", "3 bob I do."]
    assert [line.partition(":")[0] for line in said[3:]] == ["forged", "forged"]


def test_replicas_of_shared_objects_give_the_same_answers_though_their_messages_come_in_disorder() -> None:
    assert run("shared_objects")[:3] == [
        "60 requests to 2 replicas, all answered: True",
        "the same answers from both: True",
        "count 0 and 0, money 10 and 10, audited as entry 1",
    ]


def test_one_program_runs_over_a_segment_as_over_kafka_but_for_one_line() -> None:
    said = run("same_program")
    assert said[::4] == [f"{name} was delivered" for name in ("ann", "bob", "cid")]
    heard = [said[at : at + 3] for at in (1, 5, 9)]
    assert [lines[0].strip() for lines in heard] == ["ann: Who comes along?"] * 3
    answers = {"bob: I do, says bob.", "cid: I do, says cid."}
    assert all({line.strip() for line in lines[1:]} == answers for lines in heard)
