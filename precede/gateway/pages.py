"""What a gateway shows at /metrics and /health."""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from precede.ingest.segment.link import clock_ms
from precede.ingest.service.broker_monitor import BrokerMonitor, silent_s, trouble_with
from precede.ingest.service.monitor import troubles
from precede.udfs.codes import CODES
from precede.udfs.errors import PrecedeError

if TYPE_CHECKING:
    from precede.ingest.gateway.bridge import Bridge
    from precede.ingest.gateway.spool import Spool
    from precede.ingest.segment.link import Link
    from precede.ingest.segment.runner import SegmentRunner

SLOW_S_MAX = 30.0
STUCK_S_MAX = 300.0


class GatewayHealth(msgspec.Struct):
    """The answer; `problems` says in sentences why the gateway is not healthy."""

    healthy: bool
    problems: list[str]
    segments: list[str]
    kept: int
    kafka_silent_s: float | None


class GatewayPages(Collector):
    """Metrics and health; until `show` is called, the gateway is starting."""

    def __init__(self, broker: BrokerMonitor) -> None:
        self.turned_at = time.monotonic()
        """When the gateway last looked at the log and the clock."""
        self._broker = broker
        self._bridge: Bridge | None = None
        self._spool: Spool | None = None
        self._runner: SegmentRunner | None = None
        self._links: list[Link] = []
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def show(self, bridge: "Bridge", spool: "Spool", runner: "SegmentRunner", links: "list[Link]") -> None:
        """The gateway runs."""
        self._spool, self._runner, self._links = spool, runner, links
        self._bridge = bridge

    # ── health ────────────────────────────────────────────────────────────────────────────────────────────────────

    def health(self) -> GatewayHealth:
        now = time.monotonic()
        problems: list[str] = []
        away_s = silent_s(self._broker.answered_at)
        away = trouble_with(self._broker.answered_at)
        problems += [*([] if away is None else [away]), *troubles()]
        if self._bridge is None:
            problems.append("The gateway is starting.")
        else:
            problems += self._problems(self._bridge, now)
        return GatewayHealth(
            not problems,
            problems,
            [str(link.socket.address) for link in self._links],
            0 if self._bridge is None else len(self._bridge.upward.entries),
            None if away_s is None else round(away_s, 1),
        )

    def stuck_s(self) -> float | None:
        """How long the loop has not turned; None where it turns, or has not begun."""
        silent_s = time.monotonic() - self.turned_at
        return silent_s if self._bridge is not None and silent_s > STUCK_S_MAX else None

    def _problems(self, bridge: "Bridge", now: float) -> Iterator[str]:
        if bridge.is_full:
            yield "No more records are taken in, because the log or the disk does not take what was heard."
        if now - self.turned_at > SLOW_S_MAX:
            yield f"The gateway has been stuck for {now - self.turned_at:.0f} s."
        if self._runner is not None and self._runner.failure is not None:
            yield "The segments have stopped because of an error in precede."
        for link in self._links:
            if link.socket.trouble is not None:
                yield f"Nothing can be sent to {link.socket.address}: {link.socket.trouble}."

    # ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Empty: there are no numbers yet when the registry calls this."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("precede_healthy", "1 where the health endpoint says so.", int(self.health().healthy))
        bridge, spool = self._bridge, self._spool
        if bridge is None or spool is None:
            return
        names = {"segments": ",".join(str(link.socket.address) for link in self._links)}
        yield InfoMetricFamily("precede_gateway", "What the gateway was started with.", names)
        upward = bridge.upward
        yield CounterMetricFamily("precede_gateway_published_records", "Records published.", upward.published)
        yield CounterMetricFamily(
            "precede_gateway_answered_records", "Records published again because the log asked.", bridge.answered
        )
        refused = CounterMetricFamily(
            "precede_gateway_refused_records", "Records of the segments that the log refused.", labels=["code"]
        )
        for code in CODES:
            refused.add_metric([code], bridge.refused[code])
        yield refused
        yield GaugeMetricFamily("precede_gateway_kept_records", "Records that the log lacks.", len(upward.entries))
        yield GaugeMetricFamily("precede_gateway_kept_bytes", "What they take in memory.", upward.size)
        oldest_ms = upward.oldest_heard_ms
        oldest_s = 0.0 if oldest_ms is None else (clock_ms() - oldest_ms) / 1_000
        oldest = "How long ago the oldest of them was heard, or read from the disk at the start."
        yield GaugeMetricFamily("precede_gateway_kept_oldest_seconds", oldest, max(0.0, oldest_s))
        yield GaugeMetricFamily("precede_gateway_spooled_records", "How many of them are on the disk.", spool.count)
        yield GaugeMetricFamily("precede_gateway_full", "1 while no more records are taken in.", int(bridge.is_full))
        way = "How long records take into the log and back, as of late."
        yield GaugeMetricFamily("precede_gateway_way_seconds", way, upward.way_ms / 1_000)
        yield self._lag(bridge)
        yield from self._segments(bridge)

    def _lag(self, bridge: "Bridge") -> Metric:
        lag = GaugeMetricFamily("precede_lag_records", "Raw records not yet read.", labels=["partition"])
        for at, (_, end) in sorted(self._broker.ends.copy().items()):
            lag.add_metric([str(at)], max(0, end - bridge.log.reached.get(at, 0)))
        return lag

    def _segments(self, bridge: "Bridge") -> Iterator[Metric]:
        heard = CounterMetricFamily(
            "precede_gateway_heard_records", "Records heard that the log did not have.", labels=["segment"]
        )
        told = CounterMetricFamily("precede_gateway_told_records", "Records of the log told.", labels=["segment"])
        counts = CounterMetricFamily(
            "precede_segment_events", "Datagrams and what else is counted, by kind.", labels=["segment", "kind"]
        )
        groups = GaugeMetricFamily("precede_gateway_groups", "Groups that are carried.", labels=["segment"])
        for side, link in zip(bridge.sides, self._links, strict=False):
            heard.add_metric([side.url], side.heard)
            told.add_metric([side.url], side.told)
            groups.add_metric([side.url], len(side.segment.groups))
            if self._runner is not None:
                for kind, count in _counts(self._runner, link).items():
                    counts.add_metric([side.url, kind], count)
        yield from (heard, told, counts, groups)


def _counts(runner: "SegmentRunner", link: "Link") -> dict[str, int]:
    try:
        return runner.counts(link)
    except (PrecedeError, OSError):  # it ends just now
        return {}
