"""YARN on this machine: a resource manager and a node manager over an HDFS, each a process of its own."""

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.sax.saxutils import escape

import psutil

from tests.cluster.hdfs import Hdfs, class_path
from tests.cluster.s3 import free_port
from tests.cluster.standalone import SPARK_HOME, kill, wait_for

RESOURCE_MANAGER = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
NODE_MANAGER = ("address", "localizer.address", "webapp.address")
FIXED = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.resourcemanager.am.global.max-attempts": "4",  # what an application may ask for; by default it gets two
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.resource.memory-mb": "8192",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.nodemanager.env-whitelist": "JAVA_HOME,JAVA_TOOL_OPTIONS,PATH,LANG",
    "yarn.nodemanager.sleep-delay-before-sigkill.ms": "60000",  # so that a job that is stopped may end its batch
    "yarn.nodemanager.delete.debug-delay-sec": "3600",  # what containers have said is read after their end
}


def site(values: dict[str, str]) -> str:
    """A file of settings, as Hadoop reads them."""
    lines = [f"<property><name>{name}</name><value>{escape(one)}</value></property>" for name, one in values.items()]
    return "\n".join(["<configuration>", *lines, "</configuration>"])


class Yarn:
    """A running cluster of one node, whose files are in the HDFS; its own are in the folder."""

    def __init__(self, folder: Path, hdfs: Hdfs) -> None:
        self.folder = folder
        self.logs = folder / "containers"
        self.conf = folder / "conf"
        self.conf.mkdir()
        places = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{free_port()}" for name in RESOURCE_MANAGER}
        places |= {f"yarn.nodemanager.{name}": f"127.0.0.1:{free_port()}" for name in NODE_MANAGER}
        places |= {"yarn.nodemanager.local-dirs": str(folder / "local"), "yarn.nodemanager.log-dirs": str(self.logs)}
        self._api = f"http://{places['yarn.resourcemanager.webapp.address']}/ws/v1/cluster/"
        (self.conf / "core-site.xml").write_text(site({"fs.defaultFS": hdfs.url}))
        (self.conf / "hdfs-site.xml").write_text(site({"dfs.replication": "1"}))
        (self.conf / "yarn-site.xml").write_text(site(FIXED | places))
        self.resource_manager = self._start("resourcemanager", "ResourceManager")
        self.node_manager = self._start("nodemanager", "NodeManager")
        wait_for(self._has_node, "YARN", tell=lambda: (folder / "NodeManager.log").read_text()[-2000:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in (self.node_manager, self.resource_manager):
            one.kill()
            one.wait(20)
        for left in self._contained():
            kill(left)

    def _start(self, package: str, name: str) -> "subprocess.Popen[bytes]":
        classes = os.pathsep.join([str(self.conf), class_path()])
        command = ["java", "-Xmx384m", "-cp", classes, f"org.apache.hadoop.yarn.server.{package}.{name}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(self._api + what, timeout=20) as answer:
            return json.loads(answer.read())

    def kill_application(self) -> None:
        """What `yarn application -kill` does."""
        place = f"{self._api}apps/{self.application()['id']}/state"
        known = {"Content-Type": "application/json"}
        asked = urllib.request.Request(place, json.dumps({"state": "KILLED"}).encode(), known, method="PUT")
        urllib.request.urlopen(asked, timeout=20).close()

    def _has_node(self) -> bool:
        with suppress(OSError):
            return bool(self._ask("metrics")["clusterMetrics"]["activeNodes"] == 1)
        return False

    # ── what runs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def options(self, *values: str, variables: dict[str, str] | None = None) -> list[str]:
        """What spark-submit is told, so that all stays small, and on loopback; `variables` are for the driver."""
        known = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        confs = [f"spark.executorEnv.{name}={one}" for name, one in known.items()]
        confs += [f"spark.yarn.appMasterEnv.{name}={one}" for name, one in (known | (variables or {})).items()]
        confs += [
            "spark.executor.memory=600m",
            "spark.driver.memory=600m",
            f"spark.yarn.jars=local:{SPARK_HOME}/jars/*",
        ]
        given = ["--master", "yarn", "--deploy-mode", "cluster", "--num-executors", "2"]
        return given + [word for value in [*confs, *values] for word in ("--conf", value)]

    def application(self) -> dict[str, Any]:
        """The latest application, as YARN sees it; empty if there is none."""
        apps = (self._ask("apps")["apps"] or {}).get("app", [])
        return dict(max(apps, key=lambda app: app["id"], default={}))

    def attempts(self) -> list[dict[str, Any]]:
        """The attempts of the latest application."""
        return list(self._ask(f"apps/{self.application()['id']}/appattempts")["appAttempts"]["appAttempt"])

    def said(self, attempt: int | str = "??") -> str:
        """What the containers of the latest application wrote, or those of one attempt."""
        files = sorted((self.logs / self.application()["id"]).glob(f"container_*_{attempt:0>2}_*/std*"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def application_master(self) -> psutil.Process:
        """The JVM of the driver, below which its Python runs."""
        return self.application_masters()[0]

    def application_masters(self) -> list[psutil.Process]:
        return self._jvms("org.apache.spark.deploy.yarn.ApplicationMaster")

    def executors(self) -> list[psutil.Process]:
        return self._jvms("ExecutorBackend")

    def _jvms(self, word: str) -> list[psutil.Process]:
        """JVMs in containers whose command has the word."""
        found = []
        for one in self._contained():
            with suppress(psutil.NoSuchProcess):
                if one.name() == "java" and any(word in part for part in one.cmdline()):
                    found.append(one)
        return found

    def _contained(self) -> list[psutil.Process]:
        """What runs in containers, by the folders where it does: one that is ending is below no other process."""
        place = str(self.folder / "local")
        return [one for one in psutil.process_iter(["cwd"]) if (one.info["cwd"] or "").startswith(place)]
