"""The HTTP server of a job or a gateway, on one port: /metrics for Prometheus, /health for who restarts it."""

import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from precede.streaming.job.broker_watch import BrokerWatch
from precede.streaming.job.settings import Settings, host_and_port
from precede.streaming.job.watch import QueryWatch
from precede.streaming.monitoring.health import Health, judge
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from precede.streaming.order.sink import Sink

OK, NOT_FOUND, NOT_HEALTHY = 200, 404, 503
REQUEST_S = 10.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Pages(Protocol):
    """What the two pages show."""

    def text(self) -> bytes:
        """The metrics, in Prometheus's text format."""

    def health(self) -> Any:
        """The health, a msgspec struct whose `healthy` decides on the status."""


class PageServer:
    """Answers while it is open."""

    def __init__(self, listens: str, pages: Pages, *, who: str = "job") -> None:
        """Raises Refused if `who` cannot listen there."""
        host, port = host_and_port(listens)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(pages))
        except OSError as error:
            raise Refused(
                f"The setting metrics is {listens}, but the {who} cannot listen there: {error.strerror}."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="monitoring", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens at; where the setting is 0, the one that the system chose."""
        return int(self._server.server_address[1])

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class MonitoringServer:
    """The pages of a job, which tells which queries and which sink to report."""

    def __init__(self, settings: Settings) -> None:
        from precede.streaming.monitoring.metrics import Metrics

        assert settings.metrics is not None
        self.began_at = time.monotonic()
        self.broker = BrokerWatch(settings)
        self.metrics = Metrics(settings, self.broker, lambda: self.health().healthy)
        self._watches: list[QueryWatch] = []
        self._server = PageServer(settings.metrics, self)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._server.port

    def open(self) -> None:
        self.broker.start()
        self._server.open()

    def close(self) -> None:
        self._server.close()
        self.broker.stop()

    def text(self) -> bytes:
        return self.metrics.text()

    def watch(self, watches: list[QueryWatch], sink: "Sink | None") -> None:
        """Report these queries and this sink from now on."""
        self._watches = self.metrics.watches = watches
        self.metrics.sink = sink

    def health(self) -> Health:
        return judge(self._watches, self.began_at, self.broker.answered_at)


def _handler(server: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves two pages."""

        timeout = REQUEST_S
        """Ends the thread of a client that connects and sends no request."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(OK, TEXT, server.text())
            elif path == "/health":
                health = server.health()
                self._answer(
                    OK if health.healthy else NOT_HEALTHY, "application/json", msgspec.json.encode(health) + b"\n"
                )
            else:
                self._answer(NOT_FOUND, TEXT, b"There is /metrics and /health.\n")

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
