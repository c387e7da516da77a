"""An S3 store over HTTP for tests: moto's, under a server that speaks HTTP correctly, and that can be told to fail.

`python -m tests.cluster.s3_server PORT` runs it. A POST to /-control with {"status": 503, "for_s": 60} lets it answer
everything with that status for so long, and {"every": 3} with it only every third request. {"delay_s": 0.02} delays
each answer. A GET of /-control shows how many requests of each kind came since the last GET.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from waitress import serve

CONTROL = "/-control"
THREADS = 24


class Watched:
    """The store, with a count of its requests and failures on demand."""

    def __init__(self, store: Callable[..., Iterable[bytes]]) -> None:
        self._store = store
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._plan: dict[str, Any] = {}
        self._fails_until = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            return self._control(environ, start_response)
        with self._lock:
            self._counts[kind_of(environ)] += 1
            total = self._counts.total()
        if (delay_s := self._plan.get("delay_s", 0)) > 0:
            time.sleep(delay_s)
        if time.monotonic() < self._fails_until and total % self._plan.get("every", 1) == 0:
            environ["wsgi.input"].read()
            start_response(f"{self._plan['status']} Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        return self._store(environ, start_response)

    def _control(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: dict[str, int] = {}
        if environ["REQUEST_METHOD"] == "POST":
            self._plan = json.loads(environ["wsgi.input"].read())
            self._fails_until = time.monotonic() + self._plan.get("for_s", 0)
        else:
            with self._lock:
                answer, self._counts = dict(self._counts), Counter()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def kind_of(environ: dict[str, Any]) -> str:
    """What S3 calls the request, roughly; its price depends on that."""
    query = environ.get("QUERY_STRING", "")
    match environ["REQUEST_METHOD"]:
        case "GET" if "list-type" in query:
            return "LIST"
        case "PUT" if "HTTP_X_AMZ_COPY_SOURCE" in environ:
            return "COPY"
        case "POST" if "delete" in query:
            return "DELETE"
        case method:
            return str(method)


if __name__ == "__main__":
    store = Watched(DomainDispatcherApplication(create_backend_app))
    serve(store, host="127.0.0.1", port=int(sys.argv[1]), threads=THREADS, clear_untrusted_proxy_headers=True)
