"""`precede replay`: its input lines, its output and its exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.door.command import ROOT, ids, lines, precede, raw


def test_a_reply_that_comes_first_is_written_after_what_it_answers() -> None:
    done = precede("replay", "-", given=raw("bob", 1, ["ann", 0, 1]) + b"\n" + raw("ann", 1) + b"\n")
    assert done.returncode == 0
    assert ids(done.stdout) == [("ann", 1), ("bob", 1)]
    assert done.stderr == b""


def test_a_raw_line_is_taken_at_partition_0_its_line_number_and_time_0(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n" + raw("ann", 1) + b"\n\n\n" + raw("ann", 2))
    done = precede("replay", file)
    appended = [
        (record["partition"], record["offset"], record["arrived_ms"], record["released_offset"])
        for record in lines(done.stdout)
    ]
    assert appended == [(0, 1, 0, 1), (0, 4, 0, 4)]


def test_a_record_comes_out_byte_for_byte_with_its_fields_appended() -> None:
    value = raw("ann", 1, data=r'{"n": 1.50, "big":1e400, "s":"\ud800é", "n": 2}')
    done = precede("replay", "-", given=value)
    assert done.stdout == value[:-1] + (
        b',"position":1,"order":"s_b","status":"delivered","partition":0,"offset":0,"arrived_ms":0,'
        b'"released_offset":0,"released_ms":0}\n'
    )


def test_a_dumped_line_says_itself_where_and_when_the_log_took_it() -> None:
    dumped = {
        "key": "g",
        "value": raw("ann", 1).decode(),
        "partition": 3,
        "offset": 70,
        "timestamp_ms": 1234,
    }
    record = lines(precede("replay", "-", given=json.dumps(dumped).encode()).stdout)[0]
    assert (record["partition"], record["offset"], record["arrived_ms"]) == (3, 70, 1234)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({}, None), ({"key": "g"}, None), ({"key": None}, "wrong_key"), ({"key": "other"}, "wrong_key")],
    ids=["absent", "its group", "null", "another"],
)
def test_the_key_of_a_dumped_line_is_its_group_unless_it_says_otherwise(
    tmp_path: Path, fields: dict[str, str | None], code: str | None
) -> None:
    dumped = {"value": raw("ann", 1).decode(), **fields}
    done = precede("replay", "-", "--dead-letters", tmp_path / "dead", given=json.dumps(dumped).encode())
    codes = [letter["code"] for letter in lines((tmp_path / "dead").read_bytes())]
    assert codes == ([] if code is None else [code])
    assert ids(done.stdout) == ([("ann", 1)] if code is None else [])


def test_a_dumped_line_without_an_offset_has_its_line_number() -> None:
    dumped = json.dumps({"value": raw("ann", 2).decode()}).encode()
    done = precede("replay", "-", given=raw("ann", 1) + b"\n" + dumped + b"\n")
    assert [record["offset"] for record in lines(done.stdout)] == [0, 1]


def test_a_raw_record_with_a_field_named_value_is_no_dumped_line(tmp_path: Path) -> None:
    record = raw("ann", 1)[:-1] + b',"value":"x"}'
    for line in (record, b'{"value":7}', b'{"value":"x","offset":"y"}', b'{"value":"x","offset":1.0}'):
        precede("replay", "-", "--dead-letters", tmp_path / "dead", given=line)
        letter = lines((tmp_path / "dead").read_bytes())[0]
        assert letter["code"] == "malformed"
        assert letter["value"] == line.decode(), "the whole line is the refused record"


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ('"offset":null', "an integer `offset` from 0 to 2^63-1"),
        ('"offset":-1', "an integer `offset` from 0 to 2^63-1"),
        ('"partition":"0"', "an integer `partition` from 0 to 2^31-1"),
        ('"timestamp_ms":null', "an integer `timestamp_ms`"),
        ('"key":7', "a string `key`, or null"),
        ('"offset":1,"value":{}', "a string `value`, or null"),
    ],
)
def test_the_dead_letter_of_a_bad_dumped_line_says_which_field_is_wrong(field: str, wanted: str) -> None:
    line = b'{%b,"value":"{}"}' % field.encode()
    if field.endswith("{}"):
        line = b"{%b}" % field.encode()
    said = precede("replay", "-", given=line).stderr.decode()
    assert said.endswith(f"  offset 0: malformed: A dumped log line needs {wanted}.\n")


def test_exact_copies_are_counted_for_the_person_where_there_are_any() -> None:
    given = raw("ann", 1) + b"\n" + raw("ann", 1) + b"\n" + raw("ann", 1) + b"\n"
    assert precede("replay", "-", given=given).stderr == b"Exact copies dropped: 2.\n"


def test_ctrl_c_ends_a_replay_as_the_end_of_its_input_would(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precede", "replay", "-", "--held", str(tmp_path / "held")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as running:  # type: ignore[call-overload]
        running.stdin.write(raw("ann", 1) + b"\n" + raw("bob", 1, ["eve", 0, 1]) + b"\n")
        running.stdin.flush()
        assert json.loads(running.stdout.readline())["sender"] == "ann"
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
        assert running.stderr.read() == b"Stopped after 2 lines.\n"
    assert [one["sender"] for one in lines((tmp_path / "held").read_bytes())] == ["bob"]


def test_a_tombstone_in_a_dump_is_a_malformed_record(tmp_path: Path) -> None:
    precede("replay", "-", "--dead-letters", tmp_path / "dead", given=b'{"key":"g","value":null,"offset":5}')
    letter = lines((tmp_path / "dead").read_bytes())[0]
    assert (letter["code"], letter["offset"], letter["value"]) == ("malformed", 5, None)


@pytest.mark.parametrize(
    "line",
    [b"not json", b"[]", b'{"group":5}', b'{"sender":"ann"}', b"\xff\xfe", b" ", b'{"group":"g"', b"[" * 100_000],
    ids=["text", "array", "group 5", "no group", "no UTF-8", "space", "cut", "deep"],
)
def test_a_line_that_is_no_record_is_a_malformed_dead_letter_and_stops_nothing(tmp_path: Path, line: bytes) -> None:
    done = precede("replay", "-", "--dead-letters", tmp_path / "dead", given=line + b"\n" + raw("ann", 1) + b"\n")
    assert done.returncode == 0
    letters = lines((tmp_path / "dead").read_bytes())
    assert [(letter["code"], letter["offset"]) for letter in letters] == [("malformed", 0)]
    assert ids(done.stdout) == [("ann", 1)]


def test_bytes_that_are_not_utf_8_reach_the_dead_letter_as_they_are(tmp_path: Path) -> None:
    value = raw("ann", 1)[:-5] + b'"\xff"}'
    precede("replay", "-", "--dead-letters", tmp_path / "dead", given=value)
    letter = lines((tmp_path / "dead").read_bytes())[0]
    assert letter["code"] == "malformed"
    assert "value" not in letter
    assert len(letter["value_base64"]) >= len(value)


def test_a_line_break_inside_a_value_is_written_as_a_space() -> None:
    value = raw("ann", 1).replace(b',"seq"', b'\n,\r"seq"')
    done = precede("replay", "-", given=json.dumps({"value": value.decode()}).encode())
    assert done.stdout.count(b"\n") == 1
    assert done.stdout.startswith(b'{"group":"g","sender":"ann" , "seq"')


def test_lines_of_a_file_from_windows_are_read_too(tmp_path: Path) -> None:
    done = precede(
        "replay", "-", "--dead-letters", tmp_path / "dead", given=raw("ann", 1) + b"\r\n\r\n" + raw("ann", 2)
    )
    assert [record["offset"] for record in lines(done.stdout)] == [0, 2]
    assert (tmp_path / "dead").read_bytes() == b""


def test_the_line_ends_of_windows_do_not_count_into_the_size_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"[limits]\nrecord_bytes_max = {len(raw('ann', 1))}\n")
    done = precede("replay", "-", "--config", tmp_path / "config.toml", given=raw("ann", 1) + b"\r\n")
    assert ids(done.stdout) == [("ann", 1)]


def test_what_is_held_at_the_end_is_named_with_what_it_waits_for(tmp_path: Path) -> None:
    given = raw("bob", 1, ["ann", 0, 1]) + b"\n" + raw("eli", 1, ["bob", 0, 1]) + b"\n"
    done = precede("replay", "-", "--held", tmp_path / "held", given=given)
    held = lines((tmp_path / "held").read_bytes())
    assert done.stdout == b""
    assert held[0] == {
        "group": "g",
        "destination": None,
        "sender": "bob",
        "epoch": 0,
        "seq": 1,
        "partition": 0,
        "offset": 0,
        "since_ms": 0,
        "missing": [["ann", 0, 1]],
        "silent": [],
    }
    assert held[1]["missing"] == [["ann", 0, 1]], "not the held one in between"


def test_without_files_for_them_dead_and_held_are_summed_up_for_the_person() -> None:
    given = b"x\n" + raw("ann", 1, ["ann", 0, 1]) + b"\n" + raw("bob", 1, ["eve", 0, 1]) + b"\n"
    said = precede("replay", "-", given=given).stderr.decode()
    assert "1 malformed, 1 self_parent" in said
    assert "offset 0: malformed: " in said
    assert "Still held: 1" in said


def test_the_order_of_groups_nobody_created_can_be_chosen() -> None:
    given = raw("ann", 2) + b"\n" + raw("ann", 1) + b"\n"
    assert ids(precede("replay", "-", given=given).stdout) == [("ann", 2), ("ann", 1)]
    assert ids(precede("replay", "-", "--order", "fifo", given=given).stdout) == [("ann", 1), ("ann", 2)]


def test_order_and_limits_are_settings_as_they_are_for_the_job(tmp_path: Path) -> None:
    given = raw("ann", 2) + b"\n" + raw("ann", 1) + b"\n" + raw("ann", 3, data='"' + "x" * 200 + '"')
    (tmp_path / "config.toml").write_text('order = "total"\n[limits]\nrecord_bytes_max = 200\n')
    done = precede(
        "replay", "-", "--config", tmp_path / "config.toml", variables={"PRECEDE_ORDER": "fifo"}, given=given
    )
    assert ids(done.stdout) == [("ann", 1), ("ann", 2)], "a variable overrides the file"
    assert b"1 oversize" in done.stderr


def dumped(group: str, seq: int, partition: int) -> bytes:
    value = json.dumps({"group": group, "sender": "ann", "seq": seq, "after": []})
    return json.dumps({"key": group, "value": value, "partition": partition, "offset": seq}).encode() + b"\n"


@pytest.mark.parametrize(("partitioner", "home"), [(None, 3), ("murmur2", 3), ("crc32", 2)])
def test_with_a_number_of_partitions_the_key_says_where_a_group_lives(
    tmp_path: Path, partitioner: str | None, home: int
) -> None:
    given = b"".join(dumped("g", 1, partition) for partition in range(4))
    rule = ["--partitions", "4"] + ([] if partitioner is None else ["--partitioner", partitioner])
    done = precede("replay", "-", *rule, "--dead-letters", tmp_path / "dead", given=given)
    assert [record["partition"] for record in lines(done.stdout)] == [home]
    letters = lines((tmp_path / "dead").read_bytes())
    assert [letter["code"] for letter in letters] == ["wrong_partition"] * 3
    assert all(f"belongs in partition {home} of 4" in letter["reason"] for letter in letters)
    as_they_come = precede("replay", "-", *rule[2:], given=given)
    assert [record["partition"] for record in lines(as_they_come.stdout)] == [0]


def test_the_partitioner_is_a_setting(tmp_path: Path) -> None:
    given = b"".join(dumped("g", 1, partition) for partition in range(4))
    variables = {"PRECEDE_PARTITIONER": "crc32", "PRECEDE_PARTITIONS": "7"}
    done = precede("replay", "-", "--partitions", "4", variables=variables, given=given)
    assert [record["partition"] for record in lines(done.stdout)] == [2]
    unknown = precede("replay", "-", "--partitioner", "md5", given=given)
    assert unknown.returncode == 2
    assert unknown.stderr == b"The setting partitioner is 'md5', but must be one of murmur2, crc32.\n"


def test_a_dumped_line_from_a_partition_that_the_log_does_not_have_ends_the_command() -> None:
    given = dumped("g", 1, 3) + dumped("g", 2, 4) + dumped("g", 3, 3)
    done = precede("replay", "-", "--partitions", "4", given=given)
    assert done.returncode == 2
    assert ids(done.stdout) == [("ann", 1)], "what the lines before it let go"
    assert done.stderr == (
        b"Line 2 is from partition 4, and a log of 4 partitions has only 0 to 3: give the number of partitions that "
        b"the dumped topic has.\n"
    )
    assert precede("replay", "-", given=given).returncode == 0, "without the number nobody can know"
    none = precede("replay", "-", "--partitions", "0", given=given)
    assert (none.returncode, none.stdout) == (2, b"")


def test_each_record_is_written_while_the_input_pauses() -> None:
    command = [sys.executable, "-m", "precede", "replay", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for seq in (1, 2, 3):
            running.stdin.write(raw("ann", seq) + b"\n")
            running.stdin.flush()
            assert json.loads(running.stdout.readline())["seq"] == seq
        running.stdin.close()
        assert running.wait(20) == 0


def test_a_reader_that_leaves_early_is_no_error() -> None:
    given = b"\n".join(raw("ann", seq) for seq in range(1, 30_000))
    command = [sys.executable, "-m", "precede", "replay", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        os.set_blocking(running.stdin.fileno(), False)
        running.stdin.write(given[: 1 << 16])
        running.stdout.readline()
        running.stdout.close()
        os.set_blocking(running.stdin.fileno(), True)
        try:
            running.stdin.write(given)
            running.stdin.close()
        except BrokenPipeError:
            pass
        assert running.stderr.read() == b""
        assert running.wait(20) == 0


def test_a_line_longer_than_many_blocks_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(raw("ann", 1, data='"' + "x" * 5_000_000 + '"') + b"\n" + raw("ann", 2))
    started = time.monotonic()
    done = precede("replay", file, "--dead-letters", tmp_path / "dead")
    assert [letter["code"] for letter in lines((tmp_path / "dead").read_bytes())] == ["oversize"]
    assert ids(done.stdout) == [("ann", 2)]
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["/no/such/file"], "The file /no/such/file cannot be read: No such file or directory."),
        (["-", "--order", "best"], "The setting order is 'best', but must be one of causal, causal_p2p, fifo,"),
        (["-", "--held", "/no/such/folder/held"], "The file /no/such/folder/held cannot be written: "),
        ([], "Missing argument 'FILE'."),
        (["-", "--fast"], "No such option: --fast"),
    ],
    ids=["no file", "no order", "no target", "nothing", "no option"],
)
def test_wrong_use_is_one_sentence_and_status_2(arguments: list[str], sentence: str) -> None:
    done = precede("replay", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def test_the_file_that_is_read_is_never_written(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(raw("ann", 1))
    assert precede("replay", file, "--held", file).returncode == 2
    assert file.read_bytes() == raw("ann", 1)


def test_ticks_of_a_log_let_time_pass_and_what_the_job_would_say_goes_into_a_file_of_its_own(tmp_path: Path) -> None:
    log = [
        {"key": "g", "value": raw("bob", 1, ["ann", 0, 1]).decode(), "offset": 0, "timestamp_ms": 1_000},
        {"key": None, "value": '{"kind":"tick"}', "offset": 1, "timestamp_ms": 4_000},
        {"key": None, "value": '{"kind":"tick"}', "offset": 2, "timestamp_ms": 1_000_000},
    ]
    given = "\n".join(map(json.dumps, log)).encode()
    done = precede("replay", "-", "--own", tmp_path / "own.jsonl", given=given)
    assert (done.returncode, done.stdout) == (0, b""), "nothing is decided by time alone"
    asked, written = lines((tmp_path / "own.jsonl").read_bytes())
    assert (asked["topic"], asked["offset"], asked["value"]["kind"], asked["value"]["to"]) == (
        "control",
        1,
        "ask",
        "ann",
    )
    assert written == {
        "topic": "raw",
        "offset": 2,
        "value": {"group": "g", "kind": "abandon", "ids": [["ann", 0, 1, 1]]},
    }


def test_two_outputs_in_one_file_are_wrong_use(tmp_path: Path) -> None:
    done = precede("replay", "-", "--own", tmp_path / "one", "--held", tmp_path / "one")
    assert done.returncode == 2
    assert b"Two outputs cannot go into one file, one" in done.stderr
