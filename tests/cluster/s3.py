"""A store for a test: its own process, its bucket, and how the job reaches it."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from types import TracebackType
from typing import Any, Self

from precede.ingest.client_tables import ClientTable
from tests.cluster.s3_server import CONTROL
from tests.system.stream import HOME

KEY, SECRET = "a-key", "a-secret"
BUCKET = "bucket"
START_S = 60.0


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Store:
    """A running store with one bucket."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process = subprocess.Popen([sys.executable, "-m", "tests.cluster.s3_server", str(self.port)], cwd=HOME)
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.requests()
                break
            except OSError:
                assert time.monotonic() < deadline, "the store does not start"
                time.sleep(0.1)
        self.client().create_bucket(Bucket=BUCKET)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)

    def client(self) -> Any:
        import boto3

        known = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **known)

    def spark_table(self, *, secret: str = SECRET, url: str | None = None) -> ClientTable:
        """The table `[spark]` of a job that keeps its files here, and perhaps gets here by another URL."""
        return ClientTable(
            {
                "fs.s3a.endpoint": url or self.url,
                "fs.s3a.endpoint.region": "us-east-1",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.access.key": KEY,
                "fs.s3a.secret.key": secret,
            }
        )

    def uri(self, folder: str) -> str:
        return f"s3a://{BUCKET}/{folder}"

    def requests(self) -> dict[str, int]:
        """How many requests of each kind came since this was asked last."""
        with urllib.request.urlopen(self.url + CONTROL, timeout=20) as answer:
            return dict(json.loads(answer.read()))

    def fail(self, **plan: Any) -> None:
        """Answer with an error, or late: see the server."""
        asked = urllib.request.Request(self.url + CONTROL, json.dumps(plan).encode(), method="POST")
        urllib.request.urlopen(asked, timeout=20).close()
