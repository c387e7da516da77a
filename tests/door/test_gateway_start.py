"""What a gateway needs before it carries anything: its folder, and flags that mean something. No Kafka."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from precede.gateway.files import HEARD, HISTORY, HistoryFile, SpoolFile
from precede.gateway.history import COST, LogHistory
from precede.gateway.publish_queue import HeardRecord
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.records.wire import encode_message, read
from tests.door.command import precede


def entry(seq: int) -> HeardRecord:
    value = encode_message("g", "ann", 0, seq, after=[])
    return HeardRecord(("g", "ann", 0, seq), value, read(value, Limits()), 0.0, 0.0)


def test_what_was_kept_is_there_at_the_next_start_until_it_is_removed(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path)
    entries = [entry(seq) for seq in (1, 2, 3)]
    spool.add(entries)
    spool.remove([row for one in entries[:1] if (row := one.row) is not None])
    again = SpoolFile(tmp_path)  # the first one was not closed, as after kill -9
    assert [value for _, _, value in again.read()] == [one.value for one in entries[1:]]
    assert again.count == 2
    more = entry(4)
    again.add([more])
    assert more.row not in {one.row for one in entries}


def test_a_name_that_was_drawn_once_stays(tmp_path: Path) -> None:
    assert SpoolFile(tmp_path).fact("name", "first") == SpoolFile(tmp_path).fact("name", "second") == "first"


def test_a_record_that_is_damaged_is_left_out_and_a_torn_file_is_refused(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path)
    spool.add([entry(1), entry(2)])
    spool.close()
    with sqlite3.connect(tmp_path / HEARD) as base:
        base.execute("UPDATE heard SET value = ? WHERE row = 1", (b"{}",))
    base.close()
    assert [value for _, _, value in SpoolFile(tmp_path).read()] == [entry(2).value]
    (tmp_path / HEARD).write_bytes(b"this is no file of sqlite" * 1_000)
    with pytest.raises(Refused, match="cannot be used"):
        SpoolFile(tmp_path)


CREATE = b'{"group":"g","kind":"create","options":{"order":"fifo"}}'
JOIN = b'{"group":"g","kind":"join","sender":"ann"}'


def test_what_is_known_of_the_history_is_on_the_disk_for_the_same_topic_only(tmp_path: Path) -> None:
    assert HistoryFile(tmp_path).read("ordered topic 1") is None
    assert HistoryFile(tmp_path).write("ordered topic 1", {"g": [CREATE]}, {0: 5, 1: 7}, 100)
    again = HistoryFile(tmp_path)
    assert again.read("ordered topic 1") == ({"g": [CREATE]}, {0: 5, 1: 7}, 100)
    assert again.write("ordered topic 1", {"g": [CREATE, JOIN], "h": []}, {0: 9, 1: 7}, 200)
    assert HistoryFile(tmp_path).read("ordered topic 1") == ({"g": [CREATE, JOIN], "h": []}, {0: 9, 1: 7}, 200)
    assert HistoryFile(tmp_path).read("ordered topic 2") is None
    assert HistoryFile(tmp_path).read("ordered topic 1") is None


def test_a_damaged_file_of_the_history_is_made_again(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_bytes(b"this is no file of sqlite" * 1_000)
    file = HistoryFile(tmp_path)
    assert file.read("ordered topic 1") is None
    assert file.write("ordered topic 1", {"g": [CREATE]}, {0: 5}, 100)
    assert HistoryFile(tmp_path).read("ordered topic 1") == ({"g": [CREATE]}, {0: 5}, 100)


def test_the_history_has_the_last_messages_and_says_since_when_they_came() -> None:
    history = LogHistory(bytes_max=5 * (COST + 100))
    history.learn({"g": [CREATE, JOIN]})
    assert history.changed == set()
    for seq in range(1, 11):
        value = encode_message("g", "ann", 0, seq, data="x" * 40)
        history.note("g", value, read(value, Limits()), at_ms=1_000 * seq)
    assert history.controls("g") == [CREATE, JOIN]
    kept = list(history.messages("g"))
    assert len(kept) < 10
    assert history.messages_ms == 1_000 * (11 - len(kept))


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        (["--segment", "udp://10.0.0.1:17080"], 2, "is not a multicast address"),
        (["--segment", "239.255.70.80:17080"], 2, "is not the address of a segment"),
        (["--segment", "udp://239.255.70.80:17080%nope"], 1, "There is no network interface nope"),
        (["--segment", "udp://239.255.70.80:1%lo", "--segment", "udp://239.255.70.80:1%lo"], 2, "named twice"),
        (["--segment", "udp://239.255.70.80:1%lo", "--segment-key", "/no/such/key"], 1, "cannot be read"),
        (["--segment", "udp://239.255.70.80:1%lo", "--state", "/dev/null/folder"], 1, "cannot be made"),
        (["--metrics", "many"], 2, "port, or host:port"),
        (["--topic", "x"], 2, "No such option"),
    ],
)
def test_flags_that_cannot_mean_anything_are_refused_in_a_sentence(
    flags: list[str], status: int, sentence: str, tmp_path: Path
) -> None:
    state = [] if "--state" in flags else ["--state", str(tmp_path)]
    found = precede("gateway", *flags, *state, "--bootstrap", "127.0.0.1:1", seconds=20)
    assert found.returncode == status
    (line,) = found.stderr.decode().splitlines()
    assert sentence in line


def test_a_kafka_that_does_not_answer_is_waited_for_and_then_named(tmp_path: Path) -> None:
    flags = ["--segment", "udp://239.255.70.80:17080%lo", "--bootstrap", "127.0.0.1:1", "--state", str(tmp_path)]
    found = precede("gateway", *flags, variables={"PRECEDE_PATIENCE_S": "1"}, seconds=40)
    assert found.returncode == 1
    assert "Cannot reach Kafka at 127.0.0.1:1; gave up after 1 s." in found.stderr.decode()
