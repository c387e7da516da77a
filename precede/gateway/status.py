"""What a gateway shows of itself: at /metrics and /health, in its status line, and when Kafka goes away or comes back.

Segments and log are used by threads that do not wait for who looks. So the loop of the gateway notes the figures now
and then, under the lock of the segments, and all that is shown is from there: of one moment, and also while the loop
is stuck.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from precede.ingest.kafka import clients
from precede.ingest.segment.link import clock_ms
from precede.ingest.service.broker_monitor import BrokerMonitor, silent_s, trouble_with
from precede.ingest.service.monitor import troubles
from precede.udfs.codes import CODES

if TYPE_CHECKING:
    from precede.gateway.bridge import Bridge
    from precede.gateway.files import SpoolFile
    from precede.ingest.segment.link import Link

SLOW_S_MAX = 30.0
STUCK_S_MAX = 300.0
LINE_S = 5.0
AWAY_S = 8.0
"""Kafka is asked every five seconds; after this time without an answer it counts as away."""
REASONS_MAX = 10
"""So many reasons why the login fails are said until Kafka answers again."""


class SideFigures(NamedTuple):
    """The numbers of one segment."""

    url: str
    address: str
    trouble: str | None
    """Why nothing can be sent there."""
    heard: int
    handed_over: int
    groups: int
    counts: dict[str, int]


class GatewayFigures(NamedTuple):
    """The numbers of a gateway at one moment."""

    sides: list[SideFigures]
    published: int
    answered: int
    refused: dict[str, int]
    kept: int
    kept_bytes: int
    oldest_heard_ms: float | None
    spooled: int
    is_full: bool
    errors: int
    way_ms: float
    reached: dict[int, int]
    groups: int
    """The groups that are carried, each counted once."""


def look_at(bridge: "Bridge", spool: "SpoolFile", links: "Sequence[Link]") -> GatewayFigures:
    """The numbers of now; the caller holds the lock of the segments."""
    sides = [
        SideFigures(
            side.url,
            str(link.socket.address),
            link.socket.trouble,
            side.heard,
            side.told,
            len(side.segment.groups),
            link.counts(),
        )
        for side, link in zip(bridge.sides, links, strict=True)
    ]
    queue = bridge.queue
    return GatewayFigures(
        sides,
        queue.published,
        bridge.answered,
        dict(bridge.refused),
        len(queue.records),
        queue.size,
        queue.oldest_heard_ms,
        spool.count,
        bridge.is_full,
        bridge.errors,
        queue.way_ms,
        dict(bridge.log.reached),
        len({group for side in bridge.sides for group in side.segment.groups}),
    )


# ── /health and /metrics ──────────────────────────────────────────────────────────────────────────────────────────────


class GatewayHealth(msgspec.Struct):
    """The answer; `problems` says in sentences why the gateway is not healthy."""

    healthy: bool
    problems: list[str]
    segments: list[str]
    kept: int
    kafka_silent_s: float | None


class GatewayPages(Collector):
    """Metrics and health; until there are figures, the gateway is starting."""

    def __init__(self, broker: BrokerMonitor) -> None:
        self.turned_at = time.monotonic()
        """When the gateway last looked at the log and the clock."""
        self.figures: GatewayFigures | None = None
        self._broker = broker
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def health(self) -> GatewayHealth:
        figures = self.figures
        away = trouble_with(self._broker.answered_at)
        problems = [*([] if away is None else [away]), *troubles()]
        problems += ["The gateway is starting."] if figures is None else self._problems(figures)
        away_s = silent_s(self._broker.answered_at)
        return GatewayHealth(
            not problems,
            problems,
            [] if figures is None else [side.address for side in figures.sides],
            0 if figures is None else figures.kept,
            None if away_s is None else round(away_s, 1),
        )

    def stuck_s(self) -> float | None:
        """How long the loop has not turned; None where it turns, or has not begun."""
        silent_s = time.monotonic() - self.turned_at
        return silent_s if self.figures is not None and silent_s > STUCK_S_MAX else None

    def _problems(self, figures: GatewayFigures) -> Iterator[str]:
        if figures.is_full:
            yield "No more records are taken in, because the log or the disk does not take what was heard."
        if figures.errors:
            yield f"{figures.errors:,} records or events were left out because of errors in precede: see what it said."
        silent_s = time.monotonic() - self.turned_at
        if silent_s > SLOW_S_MAX:
            yield f"The gateway has been stuck for {silent_s:.0f} s."
        for side in figures.sides:
            if side.trouble is not None:
                yield f"Nothing can be sent to {side.address}: {side.trouble}."

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Empty: there are no numbers yet when the registry calls this."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("precede_healthy", "1 where the health endpoint says so.", int(self.health().healthy))
        figures = self.figures
        if figures is None:
            return
        names = {"segments": ",".join(side.address for side in figures.sides)}
        yield InfoMetricFamily("precede_gateway", "What the gateway was started with.", names)
        refused = CounterMetricFamily(
            "precede_gateway_refused_records", "Records of the segments that the log refused.", labels=["code"]
        )
        for code in CODES:
            refused.add_metric([code], figures.refused.get(code, 0))
        yield refused
        oldest_ms = figures.oldest_heard_ms
        oldest_s = 0.0 if oldest_ms is None else max(0.0, (clock_ms() - oldest_ms) / 1_000)
        answered, oldest = (
            "Records published again because the log asked.",
            "How long ago the oldest of them was heard, ",
        )
        for family, name, words, value in (
            (CounterMetricFamily, "published_records", "Records published.", figures.published),
            (CounterMetricFamily, "answered_records", answered, figures.answered),
            (GaugeMetricFamily, "kept_records", "Records that the log lacks.", figures.kept),
            (GaugeMetricFamily, "kept_bytes", "What they take in memory.", figures.kept_bytes),
            (GaugeMetricFamily, "kept_oldest_seconds", f"{oldest}or read from the disk at the start.", oldest_s),
            (GaugeMetricFamily, "spooled_records", "How many of them are on the disk.", figures.spooled),
            (GaugeMetricFamily, "full", "1 while no more records are taken in.", int(figures.is_full)),
            (GaugeMetricFamily, "way_seconds", "How long records take into the log and back.", figures.way_ms / 1_000),
        ):
            yield family(f"precede_gateway_{name}", words, value)
        yield self._lag(figures)
        yield from _segments(figures)

    def _lag(self, figures: GatewayFigures) -> Metric:
        lag = GaugeMetricFamily("precede_lag_records", "Raw records not yet read.", labels=["partition"])
        for at, (_, end) in sorted(self._broker.ends.copy().items()):
            lag.add_metric([str(at)], max(0, end - figures.reached.get(at, 0)))
        return lag


def _segments(figures: GatewayFigures) -> Iterator[Metric]:
    heard = CounterMetricFamily(
        "precede_gateway_heard_records", "Records heard that the log did not have.", labels=["segment"]
    )
    told = CounterMetricFamily("precede_gateway_told_records", "Records of the log told.", labels=["segment"])
    counts = CounterMetricFamily(
        "precede_segment_events", "Datagrams and what else is counted, by kind.", labels=["segment", "kind"]
    )
    groups = GaugeMetricFamily("precede_gateway_groups", "Groups that are carried.", labels=["segment"])
    for side in figures.sides:
        heard.add_metric([side.url], side.heard)
        told.add_metric([side.url], side.handed_over)
        groups.add_metric([side.url], side.groups)
        for kind, count in side.counts.items():
            counts.add_metric([side.url, kind], count)
    yield from (heard, told, counts, groups)


# ── the status line ───────────────────────────────────────────────────────────────────────────────────────────────────


class GatewayStatus:
    """The status line, and what is said when Kafka goes away and comes back."""

    def __init__(self, figures: GatewayFigures, broker: BrokerMonitor) -> None:
        self.figures = figures
        self._broker = broker
        self._reported: dict[str, int] = {}
        self._reported_at = 0.0
        self._was_away = False
        self._to_say: list[str] = []
        self._no_login: set[str] = set()
        """Why the login failed since Kafka answered last."""

    def client_error(self, error: KafkaError) -> None:
        """Take an error of a Kafka client; it is called in the threads of the clients."""
        why = clients.why_no_login(self._broker.bootstrap, error)
        if why is None or str(why) in self._no_login or len(self._no_login) == REASONS_MAX:
            return
        self._no_login.add(str(why))
        self._to_say.append(f"{str(why).rstrip('.')}; what is heard is kept, and goes up when the login works again.")

    @property
    def is_away(self) -> bool:
        """Whether Kafka has not answered for a while."""
        away_s = silent_s(self._broker.answered_at)
        return away_s is None or away_s > AWAY_S

    def facts(self) -> dict[str, Any]:
        """All numbers, for a program."""
        figures = self.figures
        return {
            "heard": sum(side.heard for side in figures.sides),
            "published": figures.published,
            "kept": figures.kept,
            "on_disk": figures.spooled,
            "told": sum(side.handed_over for side in figures.sides),
            "refused": sum(figures.refused.values()),
            "answered": figures.answered,
            "groups": figures.groups,
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
        if now - self._reported_at < LINE_S:
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
