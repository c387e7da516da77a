"""A power cut for the broker of a test."""

import time

from precede.local.embedded_broker import Broker

MARKED_S = 1.0


def cut_power(broker: Broker) -> None:
    """Kill the broker, but not in the moments after a commit.

    Kafka marks the end of a transaction after it has answered. A broker that is alone and goes down in between takes
    the partitions for deleted when it is back, because it does not know yet that it leads them. It then skips the
    marks, and readers of committed records wait for ever (docs/how-to/operate.md, "A broker that runs alone").
    """
    time.sleep(MARKED_S)
    broker.kill()
