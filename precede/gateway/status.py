"""The status line of a gateway, and what it says when Kafka goes away and comes back."""

import time
from typing import Any

from confluent_kafka import KafkaError

from precede.ingest.gateway.bridge import Bridge
from precede.ingest.gateway.spool import Spool
from precede.ingest.kafka import clients
from precede.ingest.service.broker_monitor import BrokerMonitor

EVERY_S = 5.0
AWAY_S = 8.0
"""Kafka is asked every five seconds; after this time without an answer it counts as away."""
REASONS_MAX = 10
"""So many reasons why the login fails are said until Kafka answers again."""


class GatewayStatus:
    """The numbers of a gateway."""

    def __init__(self, bridge: Bridge, spool: Spool, broker: BrokerMonitor) -> None:
        self._bridge = bridge
        self._spool = spool
        self._broker = broker
        self._reported: dict[str, int] = {}
        self._reported_at = 0.0
        self._was_away = False
        self._to_say: list[str] = []
        self._no_login: set[str] = set()
        """Why the login failed since Kafka answered last."""

    def client_error(self, error: KafkaError) -> None:
        """Take an error of a Kafka client."""
        why = clients.why_no_login(self._broker.bootstrap, error)
        if why is None or str(why) in self._no_login or len(self._no_login) == REASONS_MAX:
            return
        self._no_login.add(str(why))
        self._to_say.append(f"{str(why).rstrip('.')}; what is heard is kept, and goes up when the login works again.")

    @property
    def is_away(self) -> bool:
        """Whether Kafka has not answered for a while."""
        answered_at = self._broker.answered_at
        return answered_at is None or time.monotonic() - answered_at > AWAY_S

    def facts(self) -> dict[str, Any]:
        """All numbers, for a program."""
        bridge = self._bridge
        return {
            "heard": sum(side.heard for side in bridge.sides),
            "published": bridge.upward.published,
            "kept": len(bridge.upward.entries),
            "on_disk": self._spool.count,
            "told": sum(side.told for side in bridge.sides),
            "refused": bridge.refused.total(),
            "answered": bridge.answered,
            "groups": len({group for side in bridge.sides for group in side.segment.groups.copy()}),
        }

    def sentence_if_due(self) -> str | None:
        """Something that a person should know now: Kafka went or came, or numbers have changed for a while.

        Why the login fails is said once in each absence.
        """
        if self._to_say:
            return self._to_say.pop(0)
        if self.is_away != self._was_away and self._broker.answered_at is not None:
            self._was_away = self.is_away
            if self._was_away:
                return f"Kafka at {self._broker.bootstrap} does not answer: what is heard is kept on the disk."
            self._no_login.clear()
            return "Kafka answers again: what was kept goes up."
        now = time.monotonic()
        if now - self._reported_at < EVERY_S:
            return None
        facts = self.facts()
        if facts == self._reported:
            return None
        self._reported, self._reported_at = facts, now
        return f"{time.strftime('%H:%M:%S')}: {self.line()}"

    def line(self) -> str:
        """All numbers in one line."""
        facts = self.facts()
        parts = [
            f"{facts['groups']:,} group{'' if facts['groups'] == 1 else 's'}",
            f"{facts['heard']:,} heard",
            f"{facts['published']:,} published",
            f"{facts['told']:,} told",
            f"{facts['kept']:,} not in the log yet",
        ]
        if facts["on_disk"]:
            parts.append(f"{facts['on_disk']:,} of them on the disk")
        if facts["refused"]:
            parts.append(f"{facts['refused']:,} refused by the log")
        if facts["answered"]:
            parts.append(f"{facts['answered']:,} published again when asked")
        return f"{', '.join(parts)}."
