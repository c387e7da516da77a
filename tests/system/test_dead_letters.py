"""`precede dead-letters` on a real topic and a real table: what it lists and republishes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from deltalake import write_deltalake

from precede.ingest.producer import Publisher
from precede.local.embedded_broker import Broker
from precede.streaming.history import rows as history_rows
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.records.wire import encode_message
from tests.door.command import ROOT, lines, precede
from tests.system.stream import Stream

HOUR_MS = 3_600_000
NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z

RECORDS = [
    (b"travel", b"not json", NOON_MS),
    (b"travel", encode_message("travel", "ann", 0, 500_000, after=[], data="too far"), NOON_MS + HOUR_MS),
    (b"other", b"\xff\xfe", NOON_MS + HOUR_MS),
    (b"wrong", encode_message("travel", "bob", 0, 1, after=[]), NOON_MS + 2 * HOUR_MS),
    (b"travel", b"x" * 700_000, NOON_MS + 3 * HOUR_MS),
    (None, b"{}", NOON_MS + 4 * HOUR_MS),
]


class Letters:
    """A stream whose dead letters the kernel itself wrote."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.stream = Stream(broker.bootstrap, folder, partitions=1)
        kernel = Holdback(limits=Limits())
        for offset, (key, value, time_ms) in enumerate(RECORDS):
            kernel.receive(value, key, 0, offset, time_ms)
        self.letters = list(kernel.dead)
        with Publisher(broker.bootstrap, topic=self.stream.settings.dead_letter_topic) as publisher:
            for key, letter in zip(kernel.dead_keys, kernel.dead, strict=True):
                publisher.publish_raw(key, letter)
        self.config = folder / "precede.toml"
        names = ("bootstrap", "raw_topic", "dead_letter_topic")
        self.config.write_text("".join(f'{name} = "{getattr(self.stream.settings, name)}"\n' for name in names))

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[bytes]":
        return precede("dead-letters", *words, "--config", self.config)

    def codes(self, *words: str | Path) -> list[str]:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return [letter["code"] for letter in lines(done.stdout)]


@pytest.fixture(scope="module")
def letters(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Letters:
    return Letters(broker, tmp_path_factory.mktemp("letters"))


def test_json_has_every_letter_as_it_stands_in_the_topic_by_arrival(letters: Letters) -> None:
    assert lines(letters.run("--json").stdout) == [json.loads(letter) for letter in letters.letters]


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (["travel", "--code", "seq_jump"], ["seq_jump"]),
        (["--code", "malformed", "--code", "wrong_key"], ["malformed", "malformed", "wrong_key", "malformed"]),
        (["--since", "2026-01-01T15:00:00Z"], ["oversize", "malformed"]),
        (["--since", "2026-01-01T13:00", "--until", "2026-01-01T15:00"], ["seq_jump", "malformed", "wrong_key"]),
        (["--limit", "2"], ["malformed", "seq_jump"]),
        (["nobody"], []),
    ],
)
def test_group_code_and_time_choose(letters: Letters, words: list[str], codes: list[str]) -> None:
    assert letters.codes(*words) == codes


def test_a_person_reads_a_table_and_how_many_of_each_code(letters: Letters) -> None:
    done = letters.run()
    assert b"ann:500000" in done.stdout
    assert b"6 dead letters: 3 malformed, 1 seq_jump, 1 wrong_key, 1 oversize." in done.stderr
    assert letters.run("--limit", "2").stderr.endswith(b" The first 2 are shown.\n"), "as many as requested"


def test_the_delta_table_says_the_same_as_the_topic(letters: Letters, tmp_path: Path) -> None:
    import pyarrow as pa

    values = pa.RecordBatch.from_pydict({"value": pa.array(letters.letters, pa.binary())})
    table = pa.Table.from_batches(list(history_rows.dead_letters(iter([values]))))
    write_deltalake(tmp_path / "dead_letters", table, partition_by=["day"])
    for words in (["--json"], ["travel", "--json", "--code", "seq_jump"], ["--since", "2026-01-01T14:00", "--json"]):
        there = letters.run(*words, "--delta", tmp_path)
        assert there.returncode == 0, there.stderr
        assert there.stdout == letters.run(*words).stdout
    missing = letters.run("--delta", tmp_path / "nowhere")
    assert missing.returncode == 1
    assert b"There is no Delta table of dead letters in" in missing.stderr


def test_what_is_published_again_is_the_raw_record_with_its_key_once_somebody_says_yes(letters: Letters) -> None:
    asked = letters.run("travel", "--code", "seq_jump", "--redrive")
    assert asked.returncode == 2
    assert b"say --yes" in asked.stderr
    assert letters.stream.raw() == []
    done = letters.run("--redrive", "--yes")
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert "offset 4 is kept in part only (64 KiB), so it cannot be published again from here" in said
    assert "byte for byte and with their keys: 3 malformed, 1 seq_jump, 1 wrong_key." in said
    assert "Of these, 3 malformed, 1 wrong_key will most likely be refused again" in said
    assert said.rstrip().endswith("Published 5 records.")
    whole = [(key, value) for key, value, _ in RECORDS if len(value) < 65_536]
    assert sorted(map(str, ((row[0], row[1]) for row in letters.stream.raw()))) == sorted(map(str, whole))


def test_ctrl_c_at_the_question_is_a_no(letters: Letters) -> None:
    before = letters.stream.raw()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "precede", "dead-letters", "travel", "--redrive", "--config", str(letters.config)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as running:
        os.close(theirs)
        assert running.stderr is not None
        said = b""
        while b"[y/N]" not in said and (more := running.stderr.read(1)):
            said += more
        running.send_signal(signal.SIGINT)
        assert running.stderr.read().endswith(b"\nNothing was published.\n")
        assert running.wait(20) == 0
    os.close(ours)
    assert letters.stream.raw() == before


def test_only_truncated_letters_leave_nothing_to_publish(letters: Letters) -> None:
    done = letters.run("--code", "oversize", "--redrive", "--yes")
    assert done.returncode == 1
    assert b"There is nothing to publish again." in done.stderr


def test_what_means_nothing_is_refused_in_a_sentence(letters: Letters, tmp_path: Path) -> None:
    for words, sentence in (
        (["--code", "lost"], b"There is no code lost"),
        (["--since", "yesterday"], b"--since yesterday is not a time"),
        (["--redrive", "--delta", str(tmp_path)], b"--redrive reads the topic"),
    ):
        done = letters.run(*words)
        assert done.returncode == 2
        assert sentence in done.stderr
    assert msgspec.json.decode(letters.letters[0])["code"] == "malformed"
