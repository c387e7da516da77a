"""Where the real clients put keys of many shapes, compared with what tests/kernel/partitions.jsonl stores.

`WRITE_PARTITIONS=1 pytest tests/system/test_partitioners.py` writes the file again.
"""

import os
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Message, Producer
from kafka import KafkaProducer
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from precede.ingest.kafka import topics
from precede.local.embedded_broker import Broker
from precede.streaming.spark import jars
from precede.streaming.spark.jars import java
from precede.udfs.partitioner import CRC32, LIBRDKAFKA, MURMUR2
from tests.kernel.partitions import FILE, Place, read_places, write_places

COUNTS = 3, 16, 97
SHAPES = [
    *("a", "b", "~", "\x01", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh", "abcdefghi"),
    *("0", "7", "42", "g", "group", "travel", "precede", "group-1", "group-2", "group-1000000"),
    *(" ", "a b", "a\tb", "a\nb", '{"group":"g"}', "con.precede/raw#1", "\x7f"),
    *("é", "ß", "ñandú", "群", "群組", "Ελλάδα", "группа", "مجموعة"),
    *("👍", "👩‍🚀", "a👍b", "\u0080", "\uffff", "\U0010ffff"),
    *("x" * length for length in (12, 13, 14, 15, 16, 63, 64, 127, 128, 253, 254, 255)),
    *("é" * 127, "群" * 85, "👍" * 63, "\U0010ffff" * 63 + "abc"),
]


@pytest.fixture(scope="module")
def named(broker: Broker) -> dict[int, str]:
    """A topic for each number of partitions."""
    made = {count: f"places-{count}-{uuid.uuid4().hex[:8]}" for count in COUNTS}
    topics.ensure(broker.bootstrap, [topics.raw(name, count) for count, name in made.items()])
    return made


@pytest.fixture(scope="module")
def gateway() -> Iterator[JavaGateway]:
    """A Java process with the broker's own jars on its class path."""
    classpath = os.pathsep.join(map(str, jars.ensure("broker")))
    port = launch_gateway(classpath=classpath, java_path=java(), die_on_exit=True)
    running = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield running
    running.shutdown()


def by_java(gateway: JavaGateway, bootstrap: str, topic: str) -> list[int]:
    """Where Kafka's Java client puts each key, with no setting at all."""
    kafka = gateway.jvm.org.apache.kafka
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    settings = gateway.jvm.java.util.HashMap()
    settings.update({"bootstrap.servers": bootstrap, "key.serializer": serializer, "value.serializer": serializer})
    producer = kafka.clients.producer.KafkaProducer(settings)
    sent = [
        producer.send(kafka.clients.producer.ProducerRecord(topic, bytearray(key.encode()), bytearray(b"{}")))
        for key in SHAPES
    ]
    producer.flush()
    found = [one.get().partition() for one in sent]
    producer.close()
    return found


def by_librdkafka(bootstrap: str, topic: str, **more: str) -> list[int]:
    """Where librdkafka puts each key; `partitioner` is its own default where nothing more is set."""
    producer = Producer({"bootstrap.servers": bootstrap} | more)
    found: dict[str, int] = {}

    def landed(error: object, message: Message) -> None:
        assert error is None
        found[(message.key() or b"").decode()] = message.partition() or 0

    for key in SHAPES:
        producer.produce(topic, b"{}", key.encode(), on_delivery=landed)
    assert producer.flush(30) == 0
    return [found[key] for key in SHAPES]


def by_kafka_python(bootstrap: str, topic: str) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send(topic, b"{}", key.encode()) for key in SHAPES]
    producer.flush()
    found = [one.get(30).partition for one in sent]
    producer.close()
    return found


def test_the_clients_put_keys_where_the_stored_places_say(
    broker: Broker, named: dict[int, str], gateway: JavaGateway
) -> None:
    murmur2 = {count: by_java(gateway, broker.bootstrap, topic) for count, topic in named.items()}
    crc32 = {count: by_librdkafka(broker.bootstrap, topic) for count, topic in named.items()}
    places = [
        Place(key, count, murmur2[count][at], crc32[count][at]) for count in COUNTS for at, key in enumerate(SHAPES)
    ]
    if "WRITE_PARTITIONS" in os.environ:
        write_places(places)
    assert read_places() == places, f"run this test with WRITE_PARTITIONS=1, and look at what changed in {FILE.name}"


def test_each_name_of_librdkafka_is_the_function_it_is_named_for(broker: Broker, named: dict[int, str]) -> None:
    for count, topic in named.items():
        here = [place for place in read_places() if place.partitions == count]
        for name, want in (
            (MURMUR2, [place.murmur2 for place in here]),
            (CRC32, [place.crc32 for place in here]),
        ):
            assert by_librdkafka(broker.bootstrap, topic, partitioner=LIBRDKAFKA[name]) == want


def test_kafka_python_needs_no_setting_for_murmur2(broker: Broker, named: dict[int, str]) -> None:
    topic = named[97]
    want = [place.murmur2 for place in read_places() if place.partitions == 97]
    assert by_kafka_python(broker.bootstrap, topic) == want
