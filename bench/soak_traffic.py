"""The two sides of a soak: members that send at a steady rate over a bad network, and a reader by the rule."""

import heapq
import random
import threading
import time
from collections import deque
from statistics import median
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.traffic import Conversation, Pair

LOST = 0.005  # share of messages that do not arrive when sent
GONE = 0.1  # share of the lost that never arrive and are abandoned
TWICE = 0.02
AGAIN_S = (2.0, 8.0)
GIVEN_UP_S = 10.0
CHURN_EVERY_S = 5.0
SLICE_S = 0.05


class _Id(msgspec.Struct):
    group: str
    sender: str
    epoch: int
    seq: int


_read_id = msgspec.json.Decoder(_Id).decode


class Sender:
    """Sends in a thread until stopped; then messages on their way still arrive."""

    def __init__(self, bootstrap: str, topic: str, groups: int, per_s: float) -> None:
        self.per_s = per_s
        self.groups = groups
        self.expected = 0
        """Ordered records expected for everything sent so far, once all of it has arrived."""
        self.copies = self.again = self.given_up = self.churn = 0
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "enable.idempotence": True,
            }
        )
        self._talk = Conversation(groups, seed=7)
        self._chance = random.Random(11)
        self._later: list[tuple[float, int, Pair]] = []
        self._epochs: dict[bytes, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    @property
    def told(self) -> str:
        return (
            f"{self.again:,} messages came seconds late, {self.given_up:,} were given up, {self.copies:,} came twice; "
            f"{self.churn:,} joins and leaves"
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let everything on its way arrive at once, including messages held back for disorder."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(60)

    def _run(self) -> None:
        began = time.monotonic()
        sent, next_churn = 0, began + CHURN_EVERY_S
        while not self._stopping.is_set():
            now = time.monotonic()
            due = int((now - began) * self.per_s) - sent
            for key, value in self._talk.take(due):
                self._say(key, value, now)
            sent += due
            if now >= next_churn:
                next_churn = now + CHURN_EVERY_S
                self._churn()
            while self._later and self._later[0][0] <= now:
                self._produce(*heapq.heappop(self._later)[2])
            self._producer.poll(0)
            self._stopping.wait(SLICE_S)
        # The talk stops abruptly: answers to messages that are never sent must not wait for ever.
        for key, value in self._talk.finish():
            self._say(key, value, 0.0, lossy=False)
        for _, _, pair in sorted(self._later):
            self._produce(*pair)
        self._later.clear()
        self._producer.flush(60)

    def _say(self, key: bytes, value: bytes, now: float, *, lossy: bool = True) -> None:
        self.expected += 1  # delivered, or its abandoned record
        chance = self._chance.random()
        if not lossy or chance >= LOST + TWICE:
            self._produce(key, value)
        elif chance >= LOST:
            self.copies += 1
            self._produce(key, value)
            self._produce(key, value)
        elif chance >= LOST * GONE:
            self.again += 1
            self._in(now + self._chance.uniform(*AGAIN_S), key, value)
        else:
            self.given_up += 1
            id_ = _read_id(value)
            ids = [[id_.sender, id_.epoch, id_.seq, id_.seq]]
            self._in(now + GIVEN_UP_S, key, msgspec.json.encode({"group": id_.group, "kind": "abandon", "ids": ids}))

    def _in(self, when: float, key: bytes, value: bytes) -> None:
        heapq.heappush(self._later, (when, self.expected, (key, value)))

    def _churn(self) -> None:
        """A visitor joins a group, or the current one leaves."""
        key = b"room-%d" % self._chance.randrange(min(self.groups, 20))
        stays = self._epochs.get(key, 0)
        record: dict[str, Any] = {"group": key.decode(), "sender": "visitor", "epoch": (stays + 2) // 2}
        record |= {"kind": "join"} if stays % 2 == 0 else {"kind": "leave", "last": 0, "epoch": (stays + 1) // 2}
        self._epochs[key] = stays + 1
        self.churn += 1
        self.expected += 1
        self._produce(key, msgspec.json.encode(record))

    def _produce(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                return self._producer.produce(self._topic, value, key)
            except BufferError:
                self._producer.poll(0.1)


class Reader:
    """Reads committed records in a thread, like an application, and counts errors."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.count = 0
        self.problems: list[str] = []
        self._last: dict[bytes | None, int] = {}
        self._waits_ms: deque[float] = deque(maxlen=2_000)
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "soak",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "enable.auto.commit": False,
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def latency_ms(self) -> tuple[float, float] | None:
        """Time from the releasing raw record to here; median and 99th percentile of the latest."""
        waits = sorted(self._waits_ms.copy())
        self._waits_ms.clear()
        return (median(waits), waits[int(len(waits) * 0.99)]) if waits else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            for number, record in enumerate(self._consumer.consume(1_000, 0.05)):
                value = record.value() or b""
                position = _number(value, b'"position":')
                last = self._last.get(record.key(), 0)
                if position != last + 1:
                    self.problems.append(f"{record.key()!r}: position {position} came after {last}")
                self._last[record.key()] = position
                self.count += 1
                if number % 20 == 0:
                    self._waits_ms.append(time.time() * 1000 - _number(value, b'"released_ms":'))
        self._consumer.close()


def _number(value: bytes, name: bytes) -> int:
    """A number among the fields that precede appends; reading whole records would need a full core."""
    at = value.rindex(name) + len(name)
    end = at
    while value[end] in b"0123456789":
        end += 1
    return int(value[at:end])
