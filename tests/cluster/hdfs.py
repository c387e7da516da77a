"""HDFS and YARN on this machine, each a process of its own, from the jars of the configuration `hdfs`."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from precede.streaming.spark import jars
from tests.cluster.s3 import free_port
from tests.cluster.standalone import SPARK_HOME, wait_for

BROUGHT = ("hadoop-client", "slf4j", "log4j", "jul-to-slf4j", "jcl-over-slf4j")
"""Of Spark's own jars, what Hadoop's classes need."""


def class_path() -> str:
    """The jars of a Hadoop of this machine."""
    brought = [str(jar) for jar in (SPARK_HOME / "jars").glob("*.jar") if jar.name.startswith(BROUGHT)]
    return os.pathsep.join([*map(str, jars.ensure("hdfs")), *brought])


class Hdfs:
    """A running HDFS with one datanode; its files are in the folder."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        details = folder / "hdfs.json"
        command = ["java", "-Xmx512m", "-cp", class_path(), f"-Dtest.build.data={folder / 'hdfs'}"]
        command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-nnport", str(self.port)]
        command += ["-datanodes", "1", "-writeDetails", str(details)]
        with (folder / "hdfs.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

        def is_written() -> bool:
            return details.exists() and details.read_text().rstrip().endswith("}")

        wait_for(is_written, "HDFS", tell=lambda: (folder / "hdfs.log").read_text()[-2000:])
        self.details = msgspec.json.decode(details.read_bytes())

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(20)
