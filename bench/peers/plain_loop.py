"""The kernel between a consumer and a transactional producer, and nothing else: `python -m bench.peers.plain_loop`.

It keeps no state, so what it holds is lost with the process, and it writes no dead letters, no owner and no token. It
is what the kernel can do at best on this machine, and so the base of the ratios.
"""

import gc
import signal
import sys

from confluent_kafka import Consumer, Producer

from precede import Holdback

RECORDS_MAX = 20_000
WAIT_S = 0.01
WAIT_BACKLOG_S = 0.1
BACKLOG = 500
"""A transaction with more records than this belongs to a backlog; the next one may then wait longer, and be larger."""


class Signals:
    """Becomes false with SIGTERM."""

    def __init__(self) -> None:
        self.running = True
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.running = False


def main() -> None:
    """Order the raw topic until SIGTERM."""
    bootstrap, raw, out = sys.argv[1:4]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"plain-{out}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"plain-{out}",
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    signals = Signals()
    gc.disable()
    producer.init_transactions()
    consumer.subscribe([raw])
    order(consumer, producer, out, signals)
    consumer.close()


def order(consumer: Consumer, producer: Producer, out: str, signals: Signals) -> None:
    kernel = Holdback(order="s_b")
    wait_s = WAIT_S
    while signals.running:
        records = consumer.consume(RECORDS_MAX, wait_s)
        wait_s = WAIT_BACKLOG_S if len(records) > BACKLOG else WAIT_S
        if not records:
            continue
        for record in records:
            if record.error() is None:
                kernel.receive(
                    record.value() or b"",
                    record.key(),
                    record.partition() or 0,
                    record.offset() or 0,
                    record.timestamp()[1],
                )
        producer.begin_transaction()
        for key, value in zip(kernel.ordered_keys, kernel.ordered, strict=True):
            producer.produce(out, value, key)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
        kernel.clear()


if __name__ == "__main__":
    main()
