"""`precede doctor`: what is well, and each thing that would stop a start, in a line that says what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from precede.ingest.kafka.topics import ensure
from precede.local.embedded_broker import Broker
from precede.streaming.job import job
from precede.streaming.settings import Settings
from tests.door.command import precede
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.guarded import JOB, PASSWORD, SENDER_AND_READER, SPEAKER, STRANGER, Guarded
from tests.system.stream import Stream


def config(stream: Stream, folder: Path, text: str = "", **more: object) -> Path:
    """The settings of a stream as a file."""
    settings = stream.settings
    names = (
        "raw_topic",
        "ordered_topic",
        "dead_letter_topic",
        "progress_topic",
        "control_topic",
        "checkpoint",
        "delta",
    )
    known = {name: getattr(settings, name) for name in (*names, "cache", "engine")} | {
        "bootstrap": str(settings.bootstrap)
    }
    known |= {"only": settings.only} if settings.only else {}
    path = folder / "precede.toml"
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in (known | more).items()) + text)
    return path


def examine(path: Path, variables: dict[str, str] | None = None) -> tuple[int, str, list[str]]:
    """Exit status, all that it printed, and the lines that would stop a start."""
    done = precede("doctor", "--config", path, variables=variables)
    assert not done.stderr, done.stderr.decode()
    told = done.stdout.decode()
    return done.returncode, told, [line for line in told.splitlines() if line.startswith("stop ")]


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    more = {"engine": "process", "only": "order", "cache": str(tmp_path / "cache")}
    return Stream(broker.bootstrap, tmp_path, partitions=4, **more)


def once(stream: Stream) -> None:
    job.run(msgspec.structs.replace(stream.settings, once=True), say=lambda _: None)


def test_where_all_is_well_each_setting_is_shown_with_its_origin_and_nothing_stops(
    stream: Stream, tmp_path: Path
) -> None:
    stream.send(conversation(50))
    once(stream)
    path = config(stream, tmp_path, '\n[spark]\n"fs.s3a.secret.key" = "wJalrXUt"\n')
    status, told, stops = examine(path, {"PRECEDE_TICK_S": "5", "PRECEDE_SEGMENT": "udp://239.255.70.80:17081%lo"})
    assert (status, stops) == (0, [])
    assert f"raw_topic = {stream.settings.raw_topic}   ({path})" in told
    assert "tick_s = 5.0   (PRECEDE_TICK_S)" in told
    assert "\nshards = 16\n" in told
    assert "ok    The segment udp://239.255.70.80:17081%lo carries datagrams.\n" in told
    assert "wJalrXUt" not in told
    assert "fs.s3a.secret.key" in told
    assert "ok    The brokers are of Kafka 4.0 or newer.\n" in told
    for name in ("raw", "ordered", "dead_letter", "progress", "control"):
        topic = getattr(stream.settings, f"{name}_topic")
        assert f"ok    On the topic {topic} the job may do what it needs.\n" in told
        assert f"ok    The topic {topic} has the settings that it needs.\n" in told
    assert "note  The raw partitions 0-3 belong to a job with the engine process, started " in told
    assert told.endswith("Nothing would stop a start.\n")


def test_it_changes_nothing_and_says_which_topics_a_start_creates(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "precede.toml"
    path.write_text(f'bootstrap = "{broker.bootstrap}"\nengine = "process"\nonly = "order"\nraw_topic = "absent.raw"\n')
    status, told, stops = examine(path, {"PRECEDE_CACHE": str(tmp_path / "cache")})
    assert (status, stops) == (0, [])
    assert re.search(r"note  The start creates absent.raw, .*\.\n", told)
    assert "absent.raw" not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics


def test_it_fences_nobody(stream: Stream, tmp_path: Path) -> None:
    stream.send(conversation(50))
    running = Running(stream, variables={"PRECEDE_TICK_S": "0"})
    try:
        running.wait_for_output("delivered", 60)
        assert examine(config(stream, tmp_path))[0] == 0
        stream.send(conversation(50, seed=2))
        expected = by_kernel(stream.raw(), partitions=4)[0]
        running.until(lambda: stream.ordered() == expected, "the rest", 30)
        running.stop()
        assert running.process.returncode == 0, running.said
    finally:
        running.kill()


def test_a_broker_that_does_not_answer_stops_it(stream: Stream, tmp_path: Path) -> None:
    status, told, stops = examine(config(stream, tmp_path, bootstrap="127.0.0.1:1"))
    assert status == 1
    assert stops == ["stop  Cannot reach Kafka at 127.0.0.1:1."]
    assert told.endswith("A start would stop: 1 of these lines says why.\n")


def test_a_topic_with_other_settings_stops_it_with_the_command_that_mends_it(stream: Stream, tmp_path: Path) -> None:
    change = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, stream.settings.raw_topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(10)
    status, _, stops = examine(config(stream, tmp_path))
    assert status == 1
    (line,) = stops
    assert "message.timestamp.type=CreateTime, which breaks" in line
    assert "--add-config message.timestamp.type=LogAppendTime" in line


def test_a_log_that_cannot_be_continued_and_another_order_stop_it(stream: Stream, tmp_path: Path) -> None:
    stream.send(conversation(200))
    once(stream)
    _, _, stops = examine(config(stream, tmp_path, order="fifo"))
    assert any("was made with the order s_b, not fifo" in line for line in stops), stops
    stream.send(conversation(200, seed=2))
    ends = dict.fromkeys(range(4), 0)
    for _, _, partition, offset, _ in stream.raw():
        ends[partition] = max(ends[partition], offset + 1)
    stream.cut_partition(stream.settings.raw_topic, 0, ends[0])
    status, _, stops = examine(config(stream, tmp_path))
    assert status == 1
    assert any("no longer reaches back to the horizon" in line for line in stops), stops


def test_a_port_a_folder_a_key_and_partitions_that_are_not_there_stop_it(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        more: dict[str, Any] = {
            "segment": "udp://239.255.70.80:17080%none0",
            "cache": tmp_path / "file",
            "service_key": tmp_path / "no.key",
            "metrics": port,
            "raw_partitions": "3-4",
        }
        status, _, stops = examine(config(stream, tmp_path, **more))
    assert status == 1
    told = "\n".join(stops)
    assert f"The cache folder {tmp_path / 'file'} is not writable" in told
    assert "no.key" in told
    assert f"The setting metrics is {port}, but nothing can listen there" in told
    assert "raw_partitions is 3-4, but the raw topic" in told
    assert "There is no network interface none0" in told
    assert len(stops) == 5


def test_with_spark_java_and_the_checkpoint_count_too(stream: Stream, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint" / "order"
    folder.mkdir(parents=True)
    status, _, stops = examine(config(stream, tmp_path, engine="spark"), {"JAVA_HOME": str(tmp_path)})
    assert status == 1
    told = "\n".join(stops)
    assert f"Java is missing: JAVA_HOME is {tmp_path}" in told
    assert "holds order/ but no precede.json" in told
    assert len(stops) == 2


def test_settings_that_cannot_be_are_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "precede.toml"
    path.write_text('order = "sorted"\n')
    done = precede("doctor", "--config", path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"The setting order is 'sorted'" in done.stderr


# ── rights ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    stage = Guarded(tmp_path_factory.mktemp("guarded"))
    with stage.broker:
        stage.set_the_stage()
        ensure(stage.broker.bootstrap, Settings().topics())
        yield stage


def of(guarded: Guarded, user: str, folder: Path, **more: str) -> Path:
    path = folder / "precede.toml"
    known = {"bootstrap": guarded.bootstrap, "security_protocol": "SASL_SSL", "sasl_username": user}
    known |= {"ssl_ca_file": str(guarded.ca_file), "engine": "process", "only": "order", "cache": str(folder / "cache")}
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in (known | more).items()))
    return path


def test_each_right_that_lacks_is_named_for_each_topic(guarded: Guarded, tmp_path: Path) -> None:
    password = {"PRECEDE_SASL_PASSWORD": PASSWORD}
    status, told, stops = examine(of(guarded, JOB, tmp_path), password)
    assert (status, stops) == (0, [])
    assert f"answers and accepts the credentials of {JOB!r}" in told
    assert PASSWORD not in told
    guarded.allow(SPEAKER, *SENDER_AND_READER)
    status, _, stops = examine(of(guarded, SPEAKER, tmp_path), password)
    assert status == 1
    told = "\n".join(stops)
    assert f"On the topic precede.ordered {SPEAKER!r} lacks Write and DescribeConfigs: add an access rule." in told
    assert "precede.raw" not in told
    assert "may not write under the transactional id precede.precede.ordered:doctor" in told
    status, _, stops = examine(of(guarded, STRANGER, tmp_path), password)
    assert status == 1
    assert any("transactional id" in line for line in stops), stops
    status, _, stops = examine(of(guarded, JOB, tmp_path), {"PRECEDE_SASL_PASSWORD": "wrong"})
    assert status == 1
    assert f"rejected the credentials of {JOB!r}" in stops[0]
    assert len(stops) == 1
