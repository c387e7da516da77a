"""Tokens for Kafka by OAUTHBEARER, from a function of the user's: `module:function`.

The function takes no argument and returns the token and when it expires, in seconds since 1970. librdkafka asks for a
new one before the old one expires. Spark's reader runs in a JVM, which asks an endpoint of this process instead: it
listens on this machine only, under a password that only this process and its JVM have.
"""

import json
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import NamedTuple, cast

from precede.udfs.errors import Refused

Token = tuple[str, float]

CLIENT_ID = "precede"
LIFE_S_MIN = 1
_failures: dict[str, str] = {}
"""By provider, why it gave no token when it was asked last."""
_endpoints: dict[str, "Endpoint"] = {}
_lock = threading.Lock()


def provider(named: str) -> Callable[[], Token]:
    """The function of this name. Raises Refused where there is none."""
    module, _, function = named.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise Refused(
            f"The setting sasl_token_provider is {named}, but must be module:function, and that cannot be imported "
            f"({error})."
        ) from error
    if not callable(found):
        raise Refused(f"The setting sasl_token_provider is {named}, which is not a function.")
    return found  # type: ignore[no-any-return]


def token_from(named: str) -> Token:
    """A new token; the reason why there is none is kept for the sentence that tells it."""
    try:
        token, expires_s = cast(tuple[object, object], provider(named)())
        if not isinstance(token, str) or not isinstance(expires_s, int | float):
            raise TypeError("it must return the token and when it expires, in seconds since 1970")
        if expires_s <= time.time():
            raise ValueError("the token that it returned has expired")
    except Exception as error:
        _failures[named] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise
    _failures.pop(named, None)
    return token, float(expires_s)


def why_none(named: str) -> str | None:
    """Why there was no token when one was asked for last; None where there was one."""
    return _failures.get(named)


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
