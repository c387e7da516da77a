"""Delta tables in an S3 store, read by what does not run the job: followers, members and commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from precede.reading.from_delta import DeltaHistory, DeltaReleases
from precede.streaming.history import rows as history_rows
from precede.streaming.settings import Settings, load
from precede.udfs.errors import Refused
from tests.cluster.s3 import Store
from tests.door.test_following import ordered
from tests.system.stream import HOME

LETTER = {
    "code": "malformed",
    "reason": "It is not JSON.",
    "group": "g",
    "sender": None,
    "epoch": None,
    "seq": None,
    "partition": 0,
    "offset": 7,
    "arrived_ms": 1_700_000_000_000,
    "value": "x",
}
ARROW = {"deliveries": history_rows.deliveries, "dead_letters": history_rows.dead_letters}
FILES = 12
ENDS_AT_ONCE = """
import sys
from pathlib import Path
from precede.reading.dead_letter_reader import LetterFilter, from_delta
from precede.streaming.settings import load
letters = from_delta(load({"delta": sys.argv[1]}, {}, Path(sys.argv[2])), LetterFilter())
assert next(letters).letter.reason == "It is not JSON."
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """One with two tables, as the history queries write them, and one of many files."""
    with Store() as running:
        options = Settings(spark=running.spark_table()).storage_options
        for table, records in {
            "deliveries": [ordered(position) for position in range(1, 200)],
            "dead_letters": [json.dumps(LETTER).encode()],
        }.items():
            batch = pa.RecordBatch.from_pydict({"value": pa.array(records, pa.binary())})
            rows = pa.Table.from_batches(ARROW[table](iter([batch])))
            write_deltalake(running.uri(f"delta/{table}"), rows, storage_options=options)
        for _ in range(FILES):
            write_deltalake(running.uri("many/dead_letters"), rows, storage_options=options, mode="append")
        yield running


def config(store: Store, folder: Path) -> Path:
    lines = [f'delta = "{store.uri("delta")}"', "[spark]"]
    path = folder / "precede.toml"
    path.write_text("\n".join(lines + [f'"{name}" = "{value}"' for name, value in store.spark_table().items()]))
    return path


def test_a_reader_with_the_job_s_config_reads_the_tables_in_the_store(store: Store, tmp_path: Path) -> None:
    settings = load({}, {}, config(store, tmp_path))
    options = settings.storage_options
    found = DeltaHistory(settings.delta, "g", storage=options).between(1, 300)
    assert [one.position for one in found] == list(range(1, 200))
    released = DeltaReleases(settings.delta, "g", storage=options).read({})
    assert len(list(released)) == 199


def test_a_command_reads_dead_letters_in_the_store_and_ends_well(store: Store, tmp_path: Path) -> None:
    file = str(config(store, tmp_path))
    command = [
        sys.executable,
        "-m",
        "precede",
        "dead-letters",
        "--json",
        "--delta",
        store.uri("delta"),
        "--config",
        file,
    ]
    for _ in range(3):  # threads that still close files must not abort a program that is ending
        done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["reason"] == "It is not JSON."


def test_a_program_may_end_in_the_middle_of_a_table(store: Store, tmp_path: Path) -> None:
    words = [store.uri("many"), str(config(store, tmp_path))]
    command = [sys.executable, "-c", ENDS_AT_ONCE, *words]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def test_tables_that_are_not_there_are_refused_with_their_name(store: Store) -> None:
    options = Settings(spark=store.spark_table()).storage_options
    with pytest.raises(Refused, match=r"There is no Delta table s3a://bucket/nowhere/deliveries: name the root"):
        DeltaHistory(store.uri("nowhere"), "g", storage=options).last()
