"""A message that never comes: requested, abandoned, shown in the sequence and in Delta, each exactly once."""

import time
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from precede.local.embedded_broker import Broker
from precede.streaming.job.ticker import TICK, Ticker
from precede.udfs.holdback import Holdback
from precede.udfs.records.signatures import sign
from precede.udfs.records.wire import encode_message
from tests.signing import private, publics
from tests.system.stream import Stream, forget_last_commit


def test_a_lost_message_is_asked_for_and_given_up_once_whatever_crashes(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=1, ask_after_ms=100, give_up_ms=400)
    answer = encode_message("travel", "bob", 0, 1, after=[("ann", 0, 1)], data="Me!")
    stream.send([(b"travel", answer)])
    for pause in (0.2, 0.5):
        time.sleep(pause)
        stream.send([(None, TICK)])
    stream.once(spark)
    (ask,) = control(stream)
    assert (ask["kind"], ask["sender"], ask["first"], ask["last"], ask["to"]) == ("ask", "ann", 1, 1, "ann")
    assert stream.ordered() == {}
    assert msgspec.json.decode(stream.raw()[-1][1] or b"") == {
        "group": "travel",
        "kind": "abandon",
        "ids": [["ann", 0, 1, 1]],
    }
    (row,) = stream.table("gaps")
    assert (row["group"], row["sender"], row["first"], row["last"], row["state"]) == ("travel", "ann", 1, 1, "open")

    for query in ("order", "history/gaps"):
        forget_last_commit(tmp_path / "checkpoint" / query / "commits")
    stream.once(spark, only="order")
    assert [one["kind"] for one in control(stream)] == ["ask"]
    assert [value for _, value, *_ in stream.raw()].count(TICK) == 2
    assert len(stream.raw()) == 4
    assert [msgspec.json.decode(one)["status"] for one in stream.ordered()[b"travel"]] == ["abandoned", "delivered"]

    stream.send([(None, TICK)])
    stream.once(spark)
    assert [one["kind"] for one in control(stream)] == ["ask", "abandoned"]
    (row,) = stream.table("gaps")
    assert (row["state"], row["asked"], row["waited"]) == ("abandoned", 1, [{"sender": "bob", "epoch": 0, "seq": 1}])
    assert row["opened_at"] < row["asked_at"] < row["closed_at"]


def test_in_a_group_with_keys_the_job_gives_up_once_it_has_the_service_s_key(broker: Broker, tmp_path: Path) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=1, ask_after_ms=100, give_up_ms=400)
    options = {"keys": publics("bob", "precede")}
    create = {"group": "travel", "kind": "create", "options": options, "members": ["ann", "bob"]}
    answer = sign(encode_message("travel", "bob", 0, 1, after=[("ann", 0, 1)], data="Me!"), private("bob"))
    stream.send([(b"travel", msgspec.json.encode(create)), (b"travel", answer)])
    for pause in (0.2, 0.5):
        time.sleep(pause)
        stream.send([(None, TICK)])
    (lacking,) = [sentence for sentence in stream.once() if "`service_key`" in sentence]
    assert "'travel'" in lacking
    assert stream.raw()[-1][1] == TICK, "records that would be forged are not written"

    stream.send([(None, TICK)])
    stream.once(key=private("precede"))
    said = stream.raw()[-1][1] or b""
    assert said == sign(b'{"group":"travel","kind":"abandon","ids":[["ann",0,1,1]]}', private("precede"))
    kernel = Holdback()
    for key, value, *place in stream.raw():
        kernel.receive(value, key, *place)
    found = [msgspec.json.decode(record) for record in kernel.ordered]
    assert [record.get("kind", record["status"]) for record in found] == ["create", "abandoned", "delivered"]
    assert kernel.dead == []


def control(stream: Stream) -> list[dict[str, object]]:
    return [msgspec.json.decode(value or b"") for _, value, *_ in stream.read(stream.settings.control_topic)]


def test_ticks_go_to_every_partition_seldom_where_nothing_is_held(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=3, tick_s=0.2)

    def ticks_in_1_s(held: int | None) -> list[int]:
        before = len(stream.raw())
        ticker = Ticker(stream.settings, range(3))
        for step in range(50):
            with monkeypatch.context() as clock:  # its own patience, because timing depends on the machine
                clock.setattr(time, "monotonic", lambda now=0.02 * step: now)
                ticker.tick_if_due(held)
        assert ticker._producer.flush(30) == 0
        rows = stream.raw()
        assert {(key, value) for key, value, *_ in rows} == {(None, TICK)}
        return [len([row for row in rows if row[2] == partition]) - before // 3 for partition in range(3)]

    assert ticks_in_1_s(0) == [1, 1, 1]
    assert ticks_in_1_s(5) == [5, 5, 5]
    assert ticks_in_1_s(None) == [5, 5, 5]
