"""Watches a running stream: judges what is published, round after round, and serves what it finds as metrics."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from precede.check.sources import TopicsCheck
from precede.check.witness import PROMISES
from precede.ingest.service.page_server import PageServer
from precede.udfs.errors import Unreachable

if TYPE_CHECKING:
    from precede.streaming.settings import Settings

PAUSE_S = 5.0
STUCK_S_MAX = 300.0


class CheckHealth(msgspec.Struct):
    """Healthy as long as the check gets on; what it finds is in the metrics, because no restart mends that."""

    healthy: bool
    problem: str | None


class CheckPages(Collector):
    """Metrics and health of a check that watches."""

    def __init__(self, topics: TopicsCheck) -> None:
        self.judged_at = time.monotonic()
        """When everything that was published had been judged."""
        self.problem: str | None = None
        self._topics = topics
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def health(self) -> CheckHealth:
        return CheckHealth(self.problem is None, self.problem)

    def stuck_s(self) -> float | None:
        late_s = time.monotonic() - self.judged_at
        return late_s if late_s > STUCK_S_MAX and self.problem is None else None

    def describe(self) -> Iterable[Metric]:
        """Empty: there are no numbers yet when the registry calls this."""
        return []

    def collect(self) -> Iterator[Metric]:
        check = self._topics.check
        records = CounterMetricFamily("precede_check_records", "Records judged.", labels=["kind"])
        for kind, count in (("ordered", check.ordered), ("raw", check.raw), ("dead_letter", check.letters)):
            records.add_metric([kind], count)
        yield records
        found = CounterMetricFamily("precede_check_violations", "Broken promises.", labels=["guarantee"])
        for name in PROMISES:
            found.add_metric([name], check.findings.counts[name])
        yield found
        broken = check.findings.groups_broken
        yield GaugeMetricFamily("precede_check_broken_groups", "Groups in which a promise is broken.", broken)
        unjudged = sum(check.findings.unjudged.values())
        yield GaugeMetricFamily("precede_check_unjudged", "What could not be judged.", unjudged)
        yield GaugeMetricFamily("precede_check_open", "Messages that are held, as far as was judged.", check.held)
        age_s = time.monotonic() - self.judged_at
        yield GaugeMetricFamily("precede_check_age_seconds", "Since all that was published had been judged.", age_s)


def watch(
    settings: "Settings", topics: TopicsCheck, say: Callable[[str], None], stopped: threading.Event | None = None
) -> None:
    """Judge what is published until Ctrl-C, or until `stopped` is set; each group that breaks is named once."""
    stop = stopped or threading.Event()
    pages = CheckPages(topics)
    server = None if settings.metrics is None else PageServer(settings.metrics, pages, who="check")
    if server is not None:
        server.open()
    named: set[str | None] = set()
    say(f"Watching {settings.ordered_topic}; Ctrl-C ends it.")
    try:
        while True:
            for violation in topics.check.findings.violations:
                if violation.group not in named:
                    named.add(violation.group)
                    say(f"Broken in group {violation.group}: {violation.promise}. {violation.sentence}")
            if stop.wait(PAUSE_S):
                return
            try:
                topics.next_round()
                pages.judged_at, pages.problem = time.monotonic(), None
            except Unreachable as error:  # the stream is not judged while no broker answers
                pages.problem = str(error)
    except KeyboardInterrupt:
        return
    finally:
        if server is not None:
            server.close()
