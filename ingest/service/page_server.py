"""An HTTP server on one port: /metrics for Prometheus, and pages for what starts and restarts a job or a gateway.

`/health` and `/ready` are one page: whether it does its work. `/live` fails only when the process itself is stuck,
which only a new start helps; a Kafka that is away is no reason to restart anything.
"""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import msgspec

from precede.ingest.service.running import host_and_port
from precede.udfs.errors import Refused

OK, NOT_FOUND, NOT_HEALTHY = 200, 404, 503
REQUEST_S = 10.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Pages(Protocol):
    """What the pages show."""

    def text(self) -> bytes:
        """The metrics, in Prometheus's text format."""

    def health(self) -> Any:
        """The health: a msgspec struct, whose `healthy` decides on the status."""

    def stuck_s(self) -> float | None:
        """How long the process has been stuck; None where it is not."""


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


def _handler(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves the pages."""

        timeout = REQUEST_S
        """Ends the thread of a client that connects and sends no request."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(OK, TEXT, pages.text())
            elif path == "/live":
                stuck_s = pages.stuck_s()
                if stuck_s is None:
                    self._answer(OK, TEXT, b"The process runs.\n")
                else:
                    self._answer(NOT_HEALTHY, TEXT, f"The process has been stuck for {stuck_s:.0f} s.\n".encode())
            elif path in ("/health", "/ready"):
                health = pages.health()
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
