"""A real Kafka broker as a child process: one node, its own controller, for demos, tests and work on one machine.

    with Broker() as broker:
        print(broker.bootstrap)

It listens on this machine only, and it ends with the process that started it, however that ends (see child.py).
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from random import sample
from typing import IO, Any

from precede.ingest.files import locked
from precede.local.child import Child
from precede.streaming.spark import jars
from precede.streaming.spark.jars import java
from precede.udfs.errors import Refused

HOST = "127.0.0.1"
START_S_MAX = 120
PORTS = cycle(sample(range(20_000, 32_000), 12_000))
"""In random order, without repeats, below the range of outgoing connections, which might take a port first."""

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # One node has no other node to replicate to.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Fifty partitions of each would only delay the first consumer and the first transaction.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # An automatically created topic would have the wrong settings: `precede run` creates them.
    "auto.create.topics.enable": "false",
    # After kill -9 the node must wait this long before it can start again.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    # The cleaner's default buffer alone would be half of the small heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
}

LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class Broker:
    """One broker. Its data is removed at the end, unless `data` names a folder: that is kept and used again."""

    def __init__(
        self,
        port: int | None = None,
        data: Path | None = None,
        *,
        heap_mb: int = 256,
        keeps_heap: bool = False,
        properties: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
        say: jars.Say | None = None,
    ) -> None:
        """`properties` override those above in server.properties; `client` is what a client then needs to connect.

        With `keeps_heap` all of the heap is there from the start: that costs memory, and garbage is collected seldom.
        """
        self.asked_port = port
        self.asked_data = data
        self.heap_mb = heap_mb
        self.keeps_heap = keeps_heap
        self.properties = dict(properties or {})
        self.client = dict(client or {})
        self.say = say or (lambda _: None)
        self.port = 0
        self.data = Path()
        self._child: Child | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Its guard, which exits with the broker's status."""
        return None if self._child is None else self._child.guard

    @property
    def pid(self) -> int:
        """That of the broker itself; 0 where it does not run."""
        return 0 if self._child is None else self._child.pid

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.data / "broker.log"

    def start(self) -> Broker:
        """Start it, and return once it answers."""
        assert self._child is None, "this broker has already been started"
        command = [java(), f"-Xmx{self.heap_mb}m"] + ([f"-Xms{self.heap_mb}m"] if self.keeps_heap else [])
        classpath = os.pathsep.join(map(str, jars.ensure("broker", say=self.say)))
        # A restarted broker keeps its port.
        self.port = free_port(self.asked_port or self.port)
        self.data = Path(self.asked_data or tempfile.mkdtemp(prefix="precede-broker-")).absolute()
        with lock(self.data) as held, self.log.open("ab") as sink, self.log.open(errors="replace") as log:
            log.seek(0, os.SEEK_END)  # output of an earlier run explains nothing now
            command += [f"-Dlog4j2.configurationFile={self.data / 'log4j2.properties'}", "-cp", classpath]
            self.prepare(command, sink, log)
            self.say("Starting the broker")
            folder = None if self.asked_data else self.data
            kafka = [*command, "kafka.Kafka", str(self.data / "server.properties")]
            self._child = Child(kafka, log=self.log, folder=folder, keeps=[held])
            try:
                self.wait_until_ready(log)
            except BaseException:
                self.stop()
                raise
        return self

    def prepare(self, command: list[str], sink: IO[bytes], log: IO[str]) -> None:
        """Write the settings, and format the folder the first time, which fixes its cluster id."""
        controller = free_port()
        properties = PROPERTIES | {
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "log.dirs": str(self.data / "kafka"),
        }
        lines = [f"{name}={value}\n" for name, value in (properties | self.properties).items()]
        (self.data / "server.properties").write_text("".join(lines))
        (self.data / "log4j2.properties").write_text(LOGGING)
        if not (self.data / "kafka" / "meta.properties").exists():
            self.say("Preparing the broker's folder")
            settings = str(self.data / "server.properties")
            tool = ["kafka.tools.StorageTool", "format", "-c", settings, "-t", new_cluster_id()]
            machine, *options = command
            quick = "-XX:TieredStopAtLevel=1"  # a one-second program ends before full compilation pays off
            done = subprocess.run(
                [machine, quick, *options, *tool], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False
            )
            if done.returncode != 0:
                raise Refused(f"The broker's folder {self.data} could not be prepared: {last_log_line(log)}")

    def wait_until_ready(self, log: IO[str]) -> None:
        """Wait until the broker lists itself to a client; an open port is not enough."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self.process is not None
        # Otherwise the client prints each early attempt.
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None, "reconnect.backoff.max.ms": 200}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **self.client, **quiet})
        deadline = time.monotonic() + START_S_MAX
        while True:
            # Only once the port is open, or the client would wait longer and longer between attempts.
            with suppress(KafkaException):
                if answers(self.port) and admin.list_topics(timeout=2).brokers:
                    return
            if self.process.poll() is not None:
                raise Refused(f"The broker ended while it started: {last_log_line(log)}")
            if time.monotonic() > deadline:
                raise Refused(f"The broker did not start within {START_S_MAX} s: {last_log_line(log)}")
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait until the broker ends by itself; returns its exit status."""
        assert self.process is not None
        return self.process.wait()

    def stop(self) -> None:
        """Let it finish its writes, and end it."""
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """End it like a power cut; for tests."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals) -> None:
        if self._child is not None:
            self._child.end(how)
        self._child = None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port(asked: int = 0) -> int:
    """The requested port, if it is free; any free port if none was requested."""
    problem: object = None
    for port in [asked] if asked else islice(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except (OSError, OverflowError) as error:
                problem = getattr(error, "strerror", None) or error
                continue
            return port
    raise Refused(
        f"Port {port} is not available ({problem}): "
        "stop what listens there, choose another port, or name none to get a free one."
    )


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        # If no process listens on a port, a connection may by chance get that same port and connect to itself.
        return probe.connect_ex((HOST, port)) == 0 and probe.getsockname() != probe.getpeername()


@contextmanager
def lock(data: Path) -> Iterator[int]:
    """Allow one broker per folder. The guard inherits the lock, so it is held exactly as long as the broker lives."""
    with ExitStack() as stack:
        try:
            data.mkdir(parents=True, exist_ok=True)
            taken = f"Another broker runs on {data}: stop it, or choose another folder."
            held = stack.enter_context(locked(data / "lock", refusal=taken))
        except OSError as problem:
            raise Refused(f"The broker cannot keep its data in {data}: {problem.strerror}.") from None
        yield held


def new_cluster_id() -> str:
    """A UUID in Kafka's spelling; one that begins with a dash would look like a flag."""
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def last_log_line(log: IO[str]) -> str:
    """The last line of the log that explains the end of a broker; frames of a Java stack trace do not."""
    log.flush()
    lines = [line.strip() for line in log if line.strip() and not line.startswith(("\t", "    "))]
    errors = [line for line in lines if re.search(r"ERROR|FATAL|(Exception|Error): ", line)]
    return (errors or lines or ["it printed nothing"])[-1]
