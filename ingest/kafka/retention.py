"""How long the raw topic keeps its records, and what that means."""

from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # not exported

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.udfs.errors import Unreachable

REQUEST_S_MAX = 10.0
UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


@dataclass(frozen=True)
class Retention:
    """The retention of a topic; None where nothing is deleted for that reason."""

    ms: int | None
    bytes: int | None

    @property
    def is_limited(self) -> bool:
        """Whether Kafka deletes records of the topic at all."""
        return self.ms is not None or self.bytes is not None

    def __str__(self) -> str:
        parts = [] if self.ms is None else [duration(self.ms)]
        parts += [] if self.bytes is None else [f"{self.bytes:,} bytes of a partition"]
        return " or ".join(parts) or "for ever"


def retention_of(bootstrap: Address | str, topic: str) -> Retention:
    """The retention of a topic. Raises Unreachable."""
    admin = clients.admin(bootstrap)  # it must outlive its answer
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], request_timeout=REQUEST_S_MAX)
    try:
        settings = found[resource].result()
    except KafkaException as error:
        raise Unreachable(f"Kafka at {bootstrap} did not show the settings of {topic}.") from error
    ms, size = (int(settings[name].value or -1) for name in ("retention.ms", "retention.bytes"))
    return Retention(None if ms < 0 else ms, None if size < 0 else size)


def duration(ms: int) -> str:
    """A time as a person says it, in the largest unit of which it is a whole number."""
    for name, unit in UNITS:
        if ms >= unit and ms % unit == 0:
            count = ms // unit
            return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"
    return f"{ms:,} ms"
