"""Real broker, real Spark, real Delta: what goes in comes out, once, and the same whatever happens in between."""

import datetime
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import msgspec
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import precede
from precede.ingest.kafka import topics
from precede.ingest.producer import Publisher
from precede.local.embedded_broker import Broker
from precede.streaming.spark import checkpoint_reader as held
from precede.udfs.errors import Refused
from precede.udfs.records.wire import encode_message
from tests.faults import judge
from tests.records import by_group, by_kernel, conversation
from tests.system.stream import Stream, contiguous, forget_last_commit
from tests.system.test_doctor import config, examine

BAD: list[tuple[bytes | None, bytes | None, str]] = [
    (b"group-1", b"not json", "malformed"),
    (b"group-1", b"\xff\xfe", "malformed"),
    (b"group-1", None, "malformed"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":1,"after":[],"position":7}', "malformed"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":1,"after":[],"colour":"red"}', "malformed"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":1.0,"after":[]}', "malformed"),
    (b"group-1", b'{"group":"elsewhere","sender":"x","seq":1,"after":[]}', "wrong_key"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":1}', "missing_stamp"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":9,"after":[["x",0,9]]}', "self_parent"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":4000000,"after":[]}', "seq_jump"),
    (b"group-1", b'{"group":"group-1","sender":"x","seq":1,"data":"' + b"x" * 600_000 + b'"}', "oversize"),
    (None, b"{}", "malformed"),
    (b"k" * 3_000_000, b"{}", "malformed"),
]


@pytest.fixture(scope="module")
def stream(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return Stream(broker.bootstrap, tmp_path_factory.mktemp("stream"))


@pytest.fixture(scope="module")
def said(stream: Stream, spark: SparkSession) -> list[str]:
    """A stream after one run of the job over good and bad records."""
    pairs: list[tuple[bytes | None, bytes | None]] = list(conversation(3_000, groups=20))
    for at, (key, value, _) in enumerate(BAD):
        pairs.insert(100 + 200 * at, (key, value))
    stream.send(pairs)
    return stream.once(spark)


def test_the_ordered_topic_holds_what_the_kernel_alone_makes_of_the_raw_log(stream: Stream, said: list[str]) -> None:
    ordered, dead = by_kernel(stream.raw())
    assert stream.ordered() == ordered
    assert stream.dead() == dead
    assert contiguous(ordered)


def test_bad_records_get_their_codes_and_good_ones_pass_as_if_they_had_not_come(
    stream: Stream, said: list[str]
) -> None:
    codes = sorted(msgspec.json.decode(letter)["code"] for letter in stream.dead())
    assert codes == sorted(code for *_, code in BAD)
    bad = {value for _, value, _ in BAD}
    alone, _ = by_kernel([row for row in stream.raw() if row[1] not in bad])

    def told(groups: dict[bytes, list[bytes]]) -> dict[bytes, list[tuple[str, int, int]]]:
        read = {key: [msgspec.json.decode(value) for value in values] for key, values in groups.items()}
        return {key: [(one["sender"], one["seq"], one["position"]) for one in values] for key, values in read.items()}

    assert told(stream.ordered()) == told(alone)


def test_kafka_python_reads_the_same_committed_records(stream: Stream, said: list[str]) -> None:
    records = judge.read(str(stream.settings.bootstrap), stream.settings.ordered_topic)
    assert by_group((key or b"", value or b"") for key, value, *_ in records) == stream.ordered()


def test_delta_holds_every_position_once_with_the_columns_of_the_contract(stream: Stream, said: list[str]) -> None:
    rows = stream.table("deliveries")
    ordered = {value.decode() for values in stream.ordered().values() for value in values}
    assert len({(row["group"], row["position"]) for row in rows}) == len(rows) == len(ordered)
    assert {row["record"] for row in rows} == ordered
    row = max(rows, key=lambda row: row["released_offset"] - row["offset"])
    record = msgspec.json.decode(row["record"])
    data = msgspec.json.decode(row["record"], type=dict[str, msgspec.Raw])["data"]
    assert row == {
        **{name: record[name] for name in ("group", "position", "sender", "epoch", "seq", "order", "status")},
        **{name: record[name] for name in ("partition", "offset", "released_offset")},
        "destination": None,
        "kind": "message",
        "after": [dict(zip(("sender", "epoch", "seq"), one, strict=True)) for one in record["after"]],
        "data": bytes(data).decode(),
        "record": row["record"],
        "arrived_at": moment(record["arrived_ms"]),
        "released_at": moment(record["released_ms"]),
        "day": moment(record["arrived_ms"]).date(),
    }


def test_a_member_is_handed_from_delta_what_the_topic_no_longer_has(
    stream: Stream, said: list[str], tmp_path: Path
) -> None:
    ordered = stream.ordered()[b"group-1"]
    cut = len(ordered) // 2
    left = f"{stream.settings.ordered_topic}.left"  # what retention leaves in the topic
    topics.ensure(stream.settings.bootstrap, [topics.output(left, 2)])
    with Publisher(stream.settings.bootstrap, topic=left) as publisher:
        for record in ordered[cut:]:
            publisher.publish("group-1", record)

    def handed(count: int, **more: Any) -> list[bytes]:
        with precede.Member(
            "group-1",
            f"newcomer-{more}",
            bootstrap=stream.settings.bootstrap,
            raw_topic=stream.settings.raw_topic,
            progress_topic=stream.settings.progress_topic,
            state=tmp_path / "members.json",
            patience_s=10.0,
            **({"ordered_topic": left, "delta": stream.settings.delta} | more),
        ) as member:
            return [next(member).record for _ in range(count)]

    assert handed(len(ordered)) == ordered
    assert handed(len(ordered) - cut + 3, history=len(ordered) - cut + 3) == ordered[cut - 3 :]
    assert handed(len(ordered) - 7, since=7) == ordered[7:]
    assert handed(cut, ordered_topic=f"{left}.empty") == ordered[:cut], "where nothing is left in the topic"
    with pytest.raises(precede.Hole, match=f"positions 1 to {cut} are missing"):
        handed(1, delta=None)


def test_delta_holds_every_dead_letter(stream: Stream, said: list[str]) -> None:
    rows = stream.table("dead_letters")
    letters = [msgspec.json.decode(letter) for letter in stream.dead()]

    def key(row: dict[str, object]) -> tuple[object, ...]:
        return (row["partition"], row["offset"], row["code"], row["reason"], row.get("value"), row.get("truncated"))

    assert sorted(map(str, map(key, rows))) == sorted(
        str(key(letter | {"truncated": letter.get("truncated", False)})) for letter in letters
    )


def test_a_batch_that_delta_has_and_spark_has_not_noted_is_not_written_again(
    stream: Stream, said: list[str], spark: SparkSession
) -> None:
    for table in ("deliveries", "dead_letters"):
        commits = Path(stream.settings.history_checkpoint(table).location) / "commits"
        noted = {path.name for path in commits.iterdir()}
        forget_last_commit(commits)
        stream.once(spark, only="history")
        assert {path.name for path in commits.iterdir()} >= noted, "no batch was run again"
    assert sorted(row["record"] for row in stream.table("deliveries")) == all_records(stream)
    assert len(stream.table("dead_letters")) == len(stream.dead())


def test_the_last_sentence_says_what_went_through(stream: Stream, said: list[str]) -> None:
    delivered = sum(len(values) for values in stream.ordered().values())
    assert said[-1].startswith("Done: ")
    assert f"{len(stream.raw()):,} read, {delivered:,} delivered, " in said[-1]
    assert f"{len(BAD)} dead letters" in said[-1]
    assert "0 behind" in said[-1]


def test_nothing_is_published_twice_by_a_batch_run_again_a_fresh_checkpoint_or_other_shards(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order", max_offsets_per_trigger=200)
    talk = conversation(800, groups=6)
    stream.send(talk[:500])
    stream.once(spark)
    once = stream.ordered()
    assert once == by_kernel(stream.raw())[0]

    commits = tmp_path / "checkpoint" / "order" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    stream.once(spark)
    assert stream.ordered() == once

    stream.change(checkpoint=str(tmp_path / "fresh"), max_offsets_per_trigger=330)
    stream.once(spark)
    assert stream.ordered() == once

    stream.change(checkpoint=str(tmp_path / "other"), shards=3, max_offsets_per_trigger=200_000)
    stream.send(talk[500:])
    stream.once(spark)
    assert stream.ordered() == by_kernel(stream.raw())[0]
    assert contiguous(stream.ordered())


def test_a_stream_begun_anew_on_a_log_whose_beginning_is_gone_orders_what_is_left(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order")
    talk = conversation(200)
    stream.send(talk[:150])
    stream.cut(stream.settings.raw_topic, 20)
    stream.once(spark, accept_cut_log=True)
    stream.send(talk[150:])
    stream.once(spark)
    left, _ = by_kernel(stream.raw())
    assert stream.ordered() == left
    assert contiguous(left)


def test_records_larger_than_a_slice_come_out_once_and_in_order(
    broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from precede.streaming.order import packed_rows

    monkeypatch.setattr(packed_rows, "SLICE_BYTES_MAX", 2 * 1024 * 1024)
    stream = Stream(broker.bootstrap, tmp_path, only="order", shards=2)
    text = b'"' + b"x" * 400_000 + b'"'
    stream.send(
        (b"g", b'{"group":"g","sender":"a","seq":%d,"after":[],"data":%s}' % (seq, text)) for seq in range(1, 31)
    )
    stream.once(spark)
    assert stream.ordered() == by_kernel(stream.raw())[0]
    assert len(stream.ordered()[b"g"]) == 30


def test_history_goes_on_where_it_was_and_refuses_tables_it_did_not_write(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path)
    talk = conversation(200)
    stream.send(talk[:100])
    stream.once(spark)
    for folder in ("checkpoint", "delta"):
        shutil.copytree(tmp_path / folder, tmp_path / "before" / folder)
    stream.send(talk[100:])
    stream.once(spark)
    abort_one(stream)
    stream.once(spark)  # an empty batch
    seen = [(row["group"], row["position"]) for row in stream.table("deliveries")]
    assert len(seen) == len(set(seen)) == sum(map(len, stream.ordered().values()))

    with pytest.raises(Refused, match=r"holds a history that the checkpoint .* did not write"):
        stream.once(spark, checkpoint=str(tmp_path / "fresh"))
    with pytest.raises(
        Refused,
        match=r"from different times: the table has the batches up to [12], the checkpoint has the batches up to 0",
    ):
        stream.once(spark, checkpoint=str(tmp_path / "before" / "checkpoint"))
    with pytest.raises(
        Refused,
        match=r"from different times: the table has the batches up to 0, the checkpoint has the batches up to [12]",
    ):
        stream.once(spark, delta=str(tmp_path / "before" / "delta"))
    shutil.rmtree(tmp_path / "before" / "checkpoint" / "history")
    with pytest.raises(Refused, match=r"no longer knows how far .*precede run --rebuild-delta"):
        stream.once(spark, checkpoint=str(tmp_path / "before" / "checkpoint"))
    shutil.rmtree(tmp_path / "delta" / "deliveries")
    with pytest.raises(Refused, match=r"deliveries is gone.*precede run --rebuild-delta"):
        stream.once(spark)
    stream.once(spark, rebuild_delta=True)
    assert sorted(row["record"] for row in stream.table("deliveries")) == all_records(stream)

    Path(unquote(urlparse(DeltaTable(tmp_path / "delta" / "deliveries").file_uris()[0]).path)).unlink()
    with pytest.raises(Refused, match=r"lacks .*\.parquet, which its log names.*precede run --rebuild-delta"):
        stream.once(spark)
    stream.once(spark, rebuild_delta=True, checkpoint=str(tmp_path / "fresh"), only="history")
    assert sorted(row["record"] for row in stream.table("deliveries")) == all_records(stream)


def test_rows_that_a_restore_took_away_refuse_the_next_start(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path)
    talk = conversation(200)
    for part in (talk[:100], talk[100:]):
        stream.send([*part, (b"group-1", b"not json")])
        stream.once(spark)
    for name in ("deliveries", "dead_letters"):
        folder = tmp_path / "delta" / name
        before = len(stream.table(name))
        spark.sql(f"OPTIMIZE delta.`{folder}`").collect()
        stream.once(spark)
        whole = DeltaTable(folder).version()
        for harm in (f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF 1", f"DELETE FROM delta.`{folder}`"):
            spark.sql(harm).collect()
            since = rf"[\d,]+ are missing since its version {DeltaTable(folder).version()} \({harm.split()[0]} of"
            sentence = rf"{name} has [\d,]+ rows, but {before:,} were written to it: {since} .* --rebuild-delta"
            with pytest.raises(Refused, match=sentence):
                stream.once(spark)
            status, _, stops = examine(config(stream, tmp_path, f"shards = {stream.settings.shards}\n"))
            assert status == 1
            [line] = stops
            assert re.search(sentence, line)
            spark.sql(f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF {whole}").collect()
            stream.once(spark)
        assert len(stream.table(name)) == before


def abort_one(stream: Stream) -> None:
    """An aborted transaction: offsets advance, and there is no record."""
    producer = Producer({"bootstrap.servers": str(stream.settings.bootstrap), "transactional.id": "came-to-nothing"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(stream.settings.ordered_topic, b"{}", b"g")
    producer.flush()
    producer.abort_transaction()


def all_records(stream: Stream) -> list[str]:
    return sorted(value.decode() for values in stream.ordered().values() for value in values)


def test_what_is_held_can_be_read_from_the_checkpoint(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order")
    stream.send(
        (group.encode(), encode_message(group, "b", 0, 1, after=[("a", 0, 1)])) for group in ("one", "two", "three")
    )
    stream.once(spark)
    everything = list(held.read(stream.settings, spark=spark))
    assert sorted(one.group for one in everything) == ["one", "three", "two"]
    assert [one.missing for one in everything] == [[("a", 0, 1)]] * 3
    assert [one.group for one in held.read(stream.settings, "two", spark=spark)] == ["two"]
    assert list(held.read(stream.settings, "nobody", spark=spark)) == []
    with pytest.raises(Refused, match="There is no checkpoint of an order query in"):
        list(held.read(msgspec.structs.replace(stream.settings, checkpoint=str(tmp_path / "none")), spark=spark))


def moment(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
