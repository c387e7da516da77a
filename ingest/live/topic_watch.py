"""Looks now and then whether topics are still the ones they were: one made again under the same name has another id."""

from concurrent.futures import Future
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.udfs.errors import Refused

EVERY_S = 10.0
REQUEST_S = 10.0


class TopicWatch:
    """Asks without waiting for the answer, so that no delivery is late."""

    def __init__(self, bootstrap: Address | str, ids: dict[str, str]) -> None:
        """`ids` are the topics by name, each with the id that it should have."""
        self._admin = clients.admin(bootstrap)
        self._ids = ids
        self._asked: dict[str, Future[Any]] = {}
        self._ask_at = monotonic() + EVERY_S

    def check(self) -> None:
        """Raise Refused if a topic is not the one it was."""
        for name, future in list(self._asked.items()):
            if future.done():
                del self._asked[name]
                self._check(name, future)
        if not self._asked and monotonic() >= self._ask_at:
            self._ask_at = monotonic() + EVERY_S
            self._asked = self._admin.describe_topics(TopicCollection(list(self._ids)), request_timeout=REQUEST_S)

    def _check(self, name: str, future: "Future[Any]") -> None:
        try:
            found = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                return  # the broker is away; it is asked again
            found = ""
        if found != self._ids[name]:
            raise Refused(
                f"The topic {name} has been deleted{', and another one has its name' if found else ''}: live reading "
                "ends. Start again when the job runs with new topics."
            )
