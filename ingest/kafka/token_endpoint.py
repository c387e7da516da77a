"""An endpoint of this process that gives tokens of the user's function to Spark's reader, which runs in a JVM.

It answers as an OAuth server answers a client that logs in by itself. It listens on this machine only, under a password
that only this process and its JVM have.
"""

import json
import secrets
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from precede.ingest.kafka.tokens import token_from

CLIENT_ID = "precede"
LIFE_S_MIN = 1
_endpoints: dict[str, "Endpoint"] = {}
_lock = threading.Lock()


class Endpoint(NamedTuple):
    """Where this process gives tokens to the JVM, and under which password."""

    url: str
    password: str


def endpoint(named: str) -> Endpoint:
    """The endpoint of a provider; it is opened with the first call, and lives as long as the process."""
    with _lock:
        if named not in _endpoints:
            password = secrets.token_urlsafe(32)
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(named, password))
            threading.Thread(target=server.serve_forever, name="kafka-tokens", daemon=True).start()
            _endpoints[named] = Endpoint(f"http://127.0.0.1:{server.server_address[1]}/token", password)
        return _endpoints[named]


def _handler(named: str, password: str) -> type[BaseHTTPRequestHandler]:
    wanted = "Basic " + b64encode(f"{CLIENT_ID}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        """Answers as an OAuth server answers a client that logs in by itself."""

        timeout = 10.0

        def do_POST(self) -> None:
            if not secrets.compare_digest(self.headers.get("Authorization", ""), wanted):
                return self._answer(401, {"error": "invalid_client"})
            try:
                token, expires_s = token_from(named)
            except Exception:  # noqa: BLE001 (the sentence about it comes from why_none)
                return self._answer(503, {"error": "temporarily_unavailable"})
            left_s = max(LIFE_S_MIN, int(expires_s - time.time()))
            return self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": left_s})

        def _answer(self, status: int, body: dict[str, object]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler
