"""The job's HTTP server, on one port: /metrics for Prometheus, and pages for what starts and restarts the job.

`/health` and `/ready` are one page: whether the job does its work. `/live` fails only when the process itself is stuck,
which only a new start helps; a Kafka that is away is no reason to restart anything.
"""

import threading
import time
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import msgspec

from precede.streaming.history import tables
from precede.streaming.history.tables import TABLES, history_name
from precede.streaming.job.broker_watch import BrokerWatch
from precede.streaming.job.settings import Settings, host_and_port
from precede.streaming.job.watch import QueryWatch
from precede.streaming.monitoring.health import Health, judge
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from precede.streaming.order.sink import Sink

OK, NOT_FOUND, NOT_HEALTHY = 200, 404, 503
REQUEST_S = 10.0
STUCK_S_MAX = 600.0
"""The main thread looks five times a second; starting Spark and restoring a large state take a minute or two."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MonitoringServer:
    """Answers while it is open; the job tells it which queries and which sink to report."""

    def __init__(self, settings: Settings) -> None:
        from precede.streaming.monitoring.metrics import Metrics

        assert settings.metrics is not None
        self.began_at = time.monotonic()
        self.broker = BrokerWatch(settings)
        self.metrics = Metrics(settings, self.broker, lambda: self.health().healthy)
        self._beat_at = self.began_at
        self._watches: list[QueryWatch] = []
        host, port = host_and_port(settings.metrics)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self))
        except OSError as error:
            raise Refused(
                f"The setting metrics is {settings.metrics}, but the job cannot listen there: {error.strerror}."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="monitoring", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens at; where the setting is 0, the one that the system chose."""
        return int(self._server.server_address[1])

    def open(self) -> None:
        self.broker.start()
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.broker.stop()

    def watch(self, watches: list[QueryWatch], sink: "Sink | None") -> None:
        """Report these queries and this sink from now on."""
        self._watches = self.metrics.watches = watches
        self.metrics.sink = sink
        for table in TABLES:
            for one in watches:
                if one.name == history_name(table):
                    topic = tables.topic(self.metrics.settings, table)
                    self.broker.reached[topic] = partial(_reached, one, topic)
        if sink is not None:
            self.broker.reached[sink.settings.raw_topic] = partial(_processed, sink)

    def beat(self) -> None:
        """The main thread of the job goes on."""
        self._beat_at = time.monotonic()

    def stuck_s(self) -> float | None:
        """How long the main thread has been stuck; None where it is not."""
        silent_s = time.monotonic() - self._beat_at
        return silent_s if silent_s > STUCK_S_MAX else None

    def health(self) -> Health:
        return judge(self._watches, self.began_at, self.broker.answered_at)


def _reached(watch: QueryWatch, topic: str) -> dict[int, int]:
    return {at: offset for (name, at), offset in watch.reached.items() if name == topic}


def _processed(sink: "Sink") -> dict[int, int]:
    """Of the partitions that the job owns, once it is known how far they were processed before."""
    if not sink.is_token_known:
        return {}
    return dict.fromkeys(sink.ownership.partitions, 0) | sink.counts.next


def _handler(server: MonitoringServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves the pages."""

        timeout = REQUEST_S
        """Ends the thread of a client that connects and sends no request."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(OK, TEXT, server.metrics.text())
            elif path == "/live":
                stuck_s = server.stuck_s()
                if stuck_s is None:
                    self._answer(OK, TEXT, b"The process runs.\n")
                else:
                    self._answer(NOT_HEALTHY, TEXT, f"The process has been stuck for {stuck_s:.0f} s.\n".encode())
            elif path in ("/health", "/ready"):
                health = server.health()
                self._answer(
                    OK if health.healthy else NOT_HEALTHY, "application/json", msgspec.json.encode(health) + b"\n"
                )
            else:
                self._answer(NOT_FOUND, TEXT, b"There are /metrics, /health, /ready and /live.\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            with suppress(ConnectionError):  # the client has gone
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: a line for each request would hide the job's own lines."""

    return Handler
