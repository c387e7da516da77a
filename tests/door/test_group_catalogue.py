"""Groups read from the Delta table, as `precede groups --delta` does."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from precede.groups.manager import CatalogueReader
from precede.udfs.records.messages import LogRecord
from tests.door.command import precede
from tests.kernel.feeding import Tale, parsed


def delivered(*tales: Tale) -> pa.Table:
    """The columns that `precede groups` needs, for all records that these tales delivered."""
    rows = []
    for tale in tales:
        for record, value in zip(parsed(tale.kernel.ordered), tale.kernel.ordered, strict=True):
            named = {"group": record["group"], "order": record["order"], "position": record["position"]}
            rows.append({**named, "kind": record.get("kind", "message"), "record": value.decode()})
    table = pa.Table.from_pylist(rows)
    return table.append_column("destination", pa.nulls(len(rows), pa.string()))


def test_groups_their_orders_and_members_are_read_from_delta_without_kafka(tmp_path: Path) -> None:
    created = Tale(group="travel").take(kind="create", options={"order": "causal"}, members=["ann"])
    joined = Tale(group="travel").take(kind="create", members=["ann"]).take(kind="join", sender="bob", epoch=4)
    spoken = Tale("fifo", group="chat").say("A1")
    for tale in (created, joined, spoken):
        write_deltalake(tmp_path / "deliveries", delivered(tale), mode="append")
    shown = precede("groups", "--delta", tmp_path, "--json", variables={"PRECEDE_BOOTSTRAP": "127.0.0.1:1"})
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [
        {
            "group": "chat",
            "order": "fifo",
            "created": False,
            "closed": False,
            "members": {},
            "options": {},
            "position": 1,
        },
        {
            "group": "travel",
            "order": "causal",
            "created": True,
            "closed": False,
            "members": {"ann": 0, "bob": 4},
            "options": {"order": "causal"},
            "position": 2,
        },
    ]


@pytest.mark.parametrize("data", ["\\ud800", "x"])
def test_whatever_a_message_carries_its_group_is_listed(data: str) -> None:
    tale = Tale(group="chat").raw(b'{"group":"chat","sender":"A","seq":1,"after":[],"data":"%b"}' % data.encode())
    (record,) = tale.kernel.ordered
    reader = CatalogueReader("127.0.0.1:1", "precede.ordered")
    (found,) = reader.learn([LogRecord(record, b"chat", 0, 0, 0)])
    reader.close()
    assert found[1].group == "chat"


def test_a_folder_without_the_table_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = precede("groups", "--delta", tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"name the `delta` folder of the job" in done.stderr
