"""A standalone cluster of Spark on this machine: a master and workers, each a process that a test may kill."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from tests.cluster.s3 import free_port

SPARK_HOME = Path(pyspark.__path__[0])
WAIT_S = 400.0


def wait_for(
    true: Callable[[], object], what: str, seconds: float = WAIT_S, tell: Callable[[], object] = lambda: ""
) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {tell()}"
        time.sleep(0.2)


def kill(process: psutil.Process) -> None:
    """kill -9 of a process alone."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


class Standalone:
    """A running cluster; its files are in the folder."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        self._home = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        self.master = self._start(
            "Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(free_port())
        )
        wait_for(lambda: "Starting Spark master" in self._log("Master"), "the master")
        self.workers = [self._worker() for _ in range(workers)]
        wait_for(lambda: self._log("Master").count("Registering worker") >= workers, "the workers")

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in [*self.workers, self.master]:
            whole = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
            one.kill()
            for child in whole:
                kill(child)
            one.wait(20)

    def executors(self) -> list[psutil.Process]:
        """The executors of all workers."""
        found = []
        for worker in self.workers:
            if worker.poll() is None:
                found += [one for one in psutil.Process(worker.pid).children() if is_executor(one)]
        return found

    def kill_worker(self) -> None:
        """kill -9 of one worker and all that runs below it, as when a machine is lost; another one comes."""
        lost = self.workers.pop(0)
        for one in [*psutil.Process(lost.pid).children(recursive=True), psutil.Process(lost.pid)]:
            kill(one)
        lost.wait(20)
        self.workers.append(self._worker())

    def _worker(self) -> "subprocess.Popen[bytes]":
        more = ["--cores", "1", "--memory", "1g", "--webui-port", str(free_port())]
        return self._start("Worker", "--host", "127.0.0.1", *more, self.url)

    def _start(self, role: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [
            str(SPARK_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{role.lower()}.{role}",
            *arguments,
        ]
        with (self.folder / f"{role}.log").open("ab") as log:
            environment = os.environ | self._home | {"SPARK_DAEMON_MEMORY": "256m"}
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _log(self, role: str) -> str:
        path = self.folder / f"{role}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any("ExecutorBackend" in word for word in process.cmdline())
    return False


class Submitted:
    """A driver that spark-submit started, from a folder of its own, and what it says."""

    def __init__(self, bundle: Path, *options: str, variables: dict[str, str] | None = None) -> None:
        environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"} | (variables or {})
        self.process = subprocess.Popen(
            [str(bundle / "submit.sh"), *options],
            env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    def says(self, words: str) -> bool:
        return any(words in line for line in self.said)

    def wait_for(self, true: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
        def holds() -> Any:
            assert self.process.poll() is None, f"the driver ended: {self.said[-60:]}"
            return true()

        wait_for(holds, what, seconds, lambda: self.said[-60:])

    def kill(self) -> None:
        """kill -9 of the driver: its JVM and its Python."""
        if self.process.poll() is None:
            for one in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
                kill(one)
        self.process.wait(20)

    def stop(self) -> int:
        """SIGTERM to the JVM, as a cluster manager does; the exit status."""
        jvm = psutil.Process(self.process.pid)  # submit.sh and Spark's own scripts have all become this process
        jvm.send_signal(signal.SIGTERM)
        return self.process.wait(90)
