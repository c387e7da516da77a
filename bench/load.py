"""A process that sends at a steady rate and reads the output; latency.py and peers/measures.py start it."""

import sys
import time
from collections.abc import Iterator

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

GROUPS = 1_000
PATIENCE_S = 30.0


class Times(msgspec.Struct):
    """Milliseconds from send to receipt."""

    p50: float
    p99: float
    count: int


class _Sent(msgspec.Struct):
    data: int
    """When it was sent, in nanoseconds of this process's clock."""


def main() -> None:
    """Warm up, measure, print the times as JSON."""
    bootstrap, raw, out = sys.argv[1:4]
    per_s, warm_s, seconds = map(int, sys.argv[4:7])
    linger_ms = int(sys.argv[7]) if len(sys.argv) > 7 else 0
    consumer = _consumer(bootstrap, out)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": linger_ms})
    first = time.perf_counter_ns() + 10**9
    measured_from = first + warm_s * 10**9
    due_ns = 10**9 // per_s
    total = per_s * (warm_s + seconds)
    took_ms: list[float] = []
    sent = received = 0
    last = time.monotonic()
    messages = _messages()
    while received < total:
        while sent < total and time.perf_counter_ns() >= first + sent * due_ns:
            key, head = next(messages)
            producer.produce(raw, head % time.perf_counter_ns(), key)
            sent += 1
        producer.poll(0)
        for record in consumer.consume(500, 0.001):
            value, now = record.value(), time.perf_counter_ns()
            assert record.error() is None, record.error()
            assert value is not None
            at = msgspec.json.decode(value, type=_Sent).data
            received += 1
            last = time.monotonic()
            if at >= measured_from:
                took_ms.append((now - at) / 1e6)
        if time.monotonic() - last > PATIENCE_S:
            raise SystemExit(f"only {received:,} of {sent:,} messages came out")
    consumer.close()
    took_ms.sort()
    times = Times(took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100], len(took_ms))
    sys.stdout.buffer.write(msgspec.json.encode(times))


def _consumer(bootstrap: str, topic: str) -> Consumer:
    """Reads what comes out from now on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    places = [TopicPartition(topic, partition) for partition in partitions]
    for place in places:
        ends = consumer.get_watermark_offsets(place, timeout=10)
        assert ends is not None, f"{place} has no end"
        place.offset = ends[1]
    consumer.assign(places)
    return consumer


def _messages() -> Iterator[tuple[bytes, bytes]]:
    """In order, for all groups in turn, each an answer to the last; %d is for the time of sending."""
    seq = 0
    while True:
        seq += 1
        after = b"[]" if seq == 1 else b'[["alice",0,%d]]' % (seq - 1)
        for group in range(GROUPS):
            form = b'{"group":"room-%d","sender":"alice","seq":%d,"after":%b,"data":%%d}'
            yield b"room-%d" % group, form % (group, seq, after)


if __name__ == "__main__":
    main()
