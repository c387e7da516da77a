"""The image's entrypoint, run as a shell script beside programs that stand for Spark and precede."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENTRYPOINT = ROOT / "deploy" / "entrypoint.sh"
TELL = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\nexit "${STATUS:-0}"\n'
WAIT_S = 10.0

FROM_SPARK = {
    "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "order-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_CLASSPATH": "/opt/jars/spark/*",
    "SPARK_JAVA_OPT_0": "-Dname=two words",
    "SPARK_JAVA_OPT_1": "-Dhome=$HOME;ls",
}


class Image:
    """A folder of programs, and the variables of a container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder / "ended-for-good"
        for name in ("bin/precede", "bin/java", "bin/python", "spark/bin/spark-submit"):
            self.write(name, TELL)
        self.environment = FROM_SPARK | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SPARK_HOME": str(folder / "spark"),
            "JAVA_HOME": "",
            "PRECEDE_ENDED_MARK": str(self.mark),
        }

    def write(self, name: str, text: str) -> None:
        program = self.folder / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def start(self, *words: str, status: int = 0) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [ENTRYPOINT, *words],
            env=self.environment | {"STATUS": str(status)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, status: int = 0) -> tuple[int, list[str]]:
        process = self.start(*words, status=status)
        told, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, told.splitlines()


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)


def test_any_other_word_is_a_command_of_precede(image: Image) -> None:
    assert image.run("run", "--config", "a b.toml") == (0, ["precede", "run", "--config", "a b.toml"])
    assert image.run("send", "travel", status=1) == (1, ["precede", "send", "travel"])
    assert image.run() == (0, ["precede", "--help"])


def test_spark_s_driver_pod_runs_spark_submit_in_client_mode(image: Image) -> None:
    words = ["--properties-file", "/opt/spark/conf/spark.properties", "--class", "org.apache.spark.deploy.PythonRunner"]
    words += ["local:///opt/main.py", "run", "--config", "/etc/precede/precede.toml"]
    status, told = image.run("driver", *words)
    assert status == 0
    assert told[0] == "spark-submit"
    assert "spark.driver.bindAddress=10.0.0.7" in told
    assert told[-len(words) - 2 :] == ["--deploy-mode", "client", *words]


@pytest.mark.parametrize(("ended", "told"), [(0, 0), (1, 1), (2, 2), (3, 0), (143, 143)])
def test_a_driver_that_was_taken_over_counts_as_done_since_the_operator_restarts_what_failed(
    image: Image, ended: int, told: int
) -> None:
    assert image.run("driver", "local:///opt/main.py", status=ended)[0] == told


def test_spark_s_executor_pod_gets_its_options_whole_and_unread(image: Image) -> None:
    status, told = image.run("executor")
    assert status == 0
    assert told[:5] == ["java", "-Dname=two words", "-Dhome=$HOME;ls", "-Xms2g", "-Xmx2g"]
    classes = told[told.index("-cp") + 1]
    assert classes == f"/opt/jars/spark/*:{image.folder}/spark/jars/*:/opt/spark/conf"
    given = told[told.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend") + 1 :]
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "order-exec-3",
    }


@pytest.mark.parametrize("status", [0, 1, 143])
def test_a_service_ends_as_precede_ends(image: Image, status: int) -> None:
    assert image.run("service", "run", "--once", status=status) == (status, ["precede", "run", "--once"])
    assert not image.mark.exists()


@pytest.mark.parametrize(("status", "why"), [(2, "The settings or flags cannot be"), (3, "Another job took over")])
def test_a_service_that_no_new_start_helps_stays_says_so_and_counts_as_alive(
    image: Image, status: int, why: str
) -> None:
    service = image.start("service", "run", status=status)
    wait_for(image.mark)
    image.write("bin/python", "#!/bin/sh\nexit 1\n")  # nothing answers at the job's port any more
    assert image.run("alive")[0] == 0
    assert service.poll() is None
    service.send_signal(signal.SIGTERM)
    _, said = service.communicate(timeout=WAIT_S)
    assert service.returncode == 0
    assert why in said


def test_a_service_that_starts_again_asks_the_job_whether_it_is_alive(image: Image) -> None:
    image.mark.touch()
    image.run("service", "run", status=1)
    image.write("bin/python", "#!/bin/sh\nexit 1\n")
    assert image.run("alive")[0] == 1


def test_a_gateway_is_drained_when_it_keeps_few_records_or_says_nothing(image: Image) -> None:
    counts = image.folder / "counts"
    counts.write_text("250000\n1001\n7\n99999\n")
    tell = f"#!/bin/sh\nhead -n 1 {counts}\nsed -i 1d {counts}\n"
    image.write("bin/python", tell)
    image.write("bin/sleep", "#!/bin/sh\n")
    assert image.run("drain")[0] == 0
    assert counts.read_text() == "99999\n", "it ended at the first small number"
    for silent in ("#!/bin/sh\nexit 1\n", "#!/bin/sh\n"):
        image.write("bin/python", silent)
        assert image.run("drain")[0] == 0


@pytest.mark.parametrize("word", ["service", "driver"])
def test_a_request_to_stop_reaches_the_job_which_ends_in_its_own_time(image: Image, word: str) -> None:
    begun = image.folder / "begun"
    waits = f'#!/bin/sh\ntrap "sleep 0.3; echo batch done; exit 0" TERM\n: > {begun}\nwhile :; do sleep 0.05; done\n'
    image.write("bin/precede", waits)
    image.write("spark/bin/spark-submit", waits)
    process = image.start(word, "run")
    wait_for(begun)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, told) == (0, "batch done\n")
