"""The job as seen from outside: /metrics for Prometheus and /health for whoever must restart it, on one port."""

import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import msgspec

from precede.streaming.job.broker_watch import BrokerWatch
from precede.streaming.job.settings import Settings, host_and_port
from precede.streaming.job.watch import QueryWatch
from precede.streaming.monitoring.health import Health, judge
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from precede.streaming.order.sink import Sink

OK, NOT_FOUND, NOT_WELL = 200, 404, 503
ASKED_S = 10.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Outside:
    """Listens while it is open; the job tells it what to look at."""

    def __init__(self, settings: Settings) -> None:
        from precede.streaming.monitoring.metrics import Metrics

        assert settings.metrics is not None
        self.began_at = time.monotonic()
        self.broker = BrokerWatch(settings)
        self.metrics = Metrics(settings, self.broker, lambda: self.health().healthy)
        self._watches: list[QueryWatch] = []
        host, port = host_and_port(settings.metrics)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self))
        except OSError as error:
            raise Refused(
                f"The setting metrics is {settings.metrics}, but nothing can listen there: {error.strerror}."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="outside", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens; the system chose one where 0 was asked for."""
        return int(self._server.server_address[1])

    def open(self) -> None:
        self.broker.start()
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.broker.stop()

    def watch(self, watches: list[QueryWatch], sink: "Sink | None") -> None:
        """What there is to see from now on."""
        self._watches = self.metrics.watches = watches
        self.metrics.sink = sink

    def health(self) -> Health:
        return judge(self._watches, self.began_at, self.broker.heard_at)


def _handler(outside: Outside) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Two pages, read only."""

        timeout = ASKED_S
        """Who connects and asks nothing must not keep a thread for ever."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(OK, TEXT, outside.metrics.text())
            elif path == "/health":
                health = outside.health()
                self._answer(
                    OK if health.healthy else NOT_WELL, "application/json", msgspec.json.encode(health) + b"\n"
                )
            else:
                self._answer(NOT_FOUND, TEXT, b"There is /metrics and /health.\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            with suppress(ConnectionError):  # whoever asked has left
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A line for every look would bury what the job says."""

    return Handler
