"""The embedded broker is a real one, and it ends with the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer

from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused

# Starts a broker, prints its address, and then sleeps like a busy program.
PARENT = """
import sys, time
from precede.local.embedded_broker import Broker
broker = Broker().start()
print(broker.pid, broker.process.pid, broker.data, flush=True)
time.sleep(600)
"""


def send(broker: Broker, topic: str, *values: str) -> None:
    """Create the topic if needed and send to it; returns once the broker has everything."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    if topic not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(topic, 1)])[topic].result(timeout=10)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def read(broker: Broker, topic: str, count: int) -> list[str]:
    """The content of the topic, read from its beginning."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, timeout=20)
    finally:
        consumer.close()
    return [(message.value() or b"").decode() for message in messages]


def cluster_id(broker: Broker) -> str | None:
    return AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).cluster_id


def gone(pid: int, seconds: float = 15) -> bool:
    """Whether the process ends in time; a zombie process counts as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_both_client_libraries_read_what_was_sent(broker: Broker) -> None:
    send(broker, "embedded-both", "first", "second")
    assert read(broker, "embedded-both", 2) == ["first", "second"]
    consumer = KafkaConsumer(
        "embedded-both",
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    try:
        assert [next(consumer).value for _ in range(2)] == [b"first", b"second"]
    finally:
        consumer.close()


def test_it_listens_on_this_machine_only(broker: Broker) -> None:
    listening = [one for one in psutil.Process(broker.pid).net_connections() if one.status == psutil.CONN_LISTEN]
    assert {one.laddr.ip.removeprefix("::ffff:") for one in listening} == {"127.0.0.1"}


def test_ctrl_c_in_the_terminal_does_not_reach_it(broker: Broker) -> None:
    assert os.getsid(broker.pid) != os.getsid(0)


def test_a_taken_port_is_refused_in_a_sentence(broker: Broker) -> None:
    with pytest.raises(
        Refused, match=rf"Port {broker.port} is not available \(Address already in use\): stop what listens"
    ):
        Broker(port=broker.port).start()


def test_a_second_broker_on_the_same_folder_is_refused_in_a_sentence(broker: Broker) -> None:
    with pytest.raises(Refused, match=rf"Another broker runs on {broker.data}: stop it"):
        Broker(data=broker.data).start()


def test_a_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="The broker cannot keep its data in"):
        Broker(data=tmp_path / "file" / "data").start()


def test_a_wrong_property_is_refused_with_what_the_broker_said(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"could not be prepared: .*num\.partitions"):
        Broker(data=tmp_path, properties={"num.partitions": "many"}).start()


def test_a_broker_that_ends_while_it_starts_says_why(tmp_path: Path) -> None:
    wrong = {"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT", "ssl.keystore.location": "absent"}
    with pytest.raises(Refused, match=r"The broker ended while it started: .*SSL key store is specified, but"):
        Broker(data=tmp_path, properties=wrong).start()


def test_a_killed_broker_comes_back_at_its_address_with_all_it_had_acknowledged(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        send(broker, "kept", "before")
        address, before = broker.bootstrap, cluster_id(broker)
        broker.kill()
        broker.start()
        send(broker, "kept", "after")
        assert read(broker, "kept", 2) == ["before", "after"]
        assert broker.bootstrap == address
        assert cluster_id(broker) == before


@pytest.mark.parametrize("victim", ["the parent", "the guard"])
def test_it_ends_when_its_parent_is_killed(victim: str) -> None:
    if victim == "the guard" and sys.platform != "linux":
        pytest.skip("only Linux ends a process with its own parent; the guard is there for the others")
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, guard, data = parent.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        os.kill(parent.pid if victim == "the parent" else int(guard), signal.SIGKILL)
        try:
            assert gone(int(pid))
            if victim == "the parent":
                assert gone(int(guard))
                assert not Path(data).exists(), "a temporary folder is removed with its broker"
        finally:
            parent.kill()
            shutil.rmtree(data, ignore_errors=True)  # a guard that is killed removes nothing


def test_stopping_ends_it_within_seconds_and_takes_its_temporary_folder_along() -> None:
    with Broker() as broker:
        pid, data = broker.pid, broker.data
        assert data.exists()
        before = time.monotonic()
    assert time.monotonic() - before < 10
    assert gone(pid)
    assert not data.exists()
