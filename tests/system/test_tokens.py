"""Kafka by OAUTHBEARER: the job, the commands, gateways and Spark, with tokens by OIDC and of a user's function."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyspark
import pytest
from confluent_kafka import KafkaException, Producer
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from pyspark.sql import SparkSession

from precede.ingest.kafka import topics
from precede.streaming import settings
from precede.streaming.job import job
from precede.streaming.settings import Settings
from precede.udfs.errors import PrecedeError
from tests.door.command import precede
from tests.door.segment_links import linked
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.stream import HOME, Stream
from tests.system.test_gateway import Place, together, until
from tests.system.tokens import CLIENT, KEY_FILE, LIFE_S, SECRET, TokenBroker, TokenServer

PROVIDER = "tests.system.tokens:token"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with TokenBroker(tmp_path_factory.mktemp("tokens")).running() as running:
        yield running


@pytest.fixture
def server(guarded: TokenBroker) -> Iterator[TokenServer]:
    running = TokenServer(guarded.key)
    yield running
    running.close()


@pytest.fixture
def stream(guarded: TokenBroker, tmp_path: Path) -> Stream:
    """A stream whose topics the test reads through the open listener."""
    more: dict[str, Any] = {"engine": "process", "only": "order", "cache": str(tmp_path / "cache")}
    return Stream(guarded.broker.bootstrap, tmp_path, **more)


def config(stream: Stream, guarded: TokenBroker, folder: Path, text: str) -> Path:
    found = stream.settings
    names = (
        "raw_topic",
        "ordered_topic",
        "dead_letter_topic",
        "progress_topic",
        "control_topic",
        "checkpoint",
        "cache",
    )
    known = {name: getattr(found, name) for name in names} | {"bootstrap": guarded.bootstrap}
    known |= {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    path = folder / "precede.toml"
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in known.items()) + text)
    return path


def by_oidc(server: TokenServer) -> str:
    return f'sasl_username = "{CLIENT}"\n[kafka]\nsasl.oauthbearer.token.endpoint.url = "{server.url}"\n'


def test_job_and_commands_get_tokens_by_oidc_and_show_no_secret(
    stream: Stream, guarded: TokenBroker, server: TokenServer, tmp_path: Path
) -> None:
    path = config(stream, guarded, tmp_path, by_oidc(server))
    variables = {"PRECEDE_SASL_PASSWORD": SECRET, "PRECEDE_STATE": str(tmp_path / "state")}
    told = b""
    sent = precede("send", "travel", "ann", "hello", "--config", path, variables=variables)
    ran = precede("run", "--engine", "process", "--once", "--config", path, variables=variables)
    read = precede("tail", "travel", "--from-beginning", "--seconds", "5", "--config", path, variables=variables)
    examined = precede("doctor", "--config", path, variables=variables | {"PRECEDE_ENGINE": "process"})
    for done in (sent, ran, read, examined):
        assert done.returncode == 0, done.stderr + done.stdout
        told += done.stdout + done.stderr
    assert b"hello" in read.stdout
    assert server.asked >= 3
    assert SECRET.encode() not in told
    assert b"s3cret" not in told


def test_spark_gets_tokens_by_oidc(
    stream: Stream,
    guarded: TokenBroker,
    server: TokenServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRECEDE_SASL_PASSWORD", SECRET)
    found = settings.load({}, {"PRECEDE_SASL_PASSWORD": SECRET}, config(stream, guarded, tmp_path, by_oidc(server)))
    order_once(stream, found, spark)


def test_spark_gets_tokens_of_a_function_of_the_user(
    stream: Stream, guarded: TokenBroker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_FILE, str(guarded.key_file))
    path = config(stream, guarded, tmp_path, f'sasl_token_provider = "{PROVIDER}"\n')
    order_once(stream, settings.load({}, {}, path), spark)


def test_on_a_cluster_spark_submit_refuses_a_function_before_spark_starts(
    stream: Stream, guarded: TokenBroker, tmp_path: Path
) -> None:
    path = config(stream, guarded, tmp_path, f'sasl_token_provider = "{PROVIDER}"\ntasks = 2\n')
    spark_home = Path(pyspark.__path__[0])
    command = [str(spark_home / "bin" / "spark-submit"), "--master", "spark://127.0.0.1:1", "deploy/main.py"]
    known = {"SPARK_HOME": str(spark_home), "PYTHONPATH": str(HOME), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, "run", "--only", "order", "--config", str(path)],
        cwd=HOME,
        env=os.environ | known | {KEY_FILE: str(guarded.key_file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr[-3000:]
    assert "The setting sasl_token_provider gives tokens on this machine only" in done.stderr + done.stdout
    assert "SparkContext" not in done.stderr + done.stdout


def order_once(stream: Stream, found: Settings, spark: SparkSession) -> None:
    stream.send(conversation(300))
    said: list[str] = []
    more = {"engine": "spark", "only": "order", "shards": 4, "tasks": 2, "once": True}
    job.run(msgspec.structs.replace(found, **more), say=said.append, spark=spark)
    assert said[-1].startswith("Done"), said
    assert stream.ordered() == by_kernel(stream.raw())[0]


def test_a_token_that_runs_out_and_cannot_be_renewed_is_told_and_the_job_goes_on_with_the_next_one(
    stream: Stream, guarded: TokenBroker, tmp_path: Path
) -> None:
    own_key = tmp_path / "own.key"
    own_key.write_bytes(guarded.key_file.read_bytes())
    more: dict[str, Any] = {"sasl_token_provider": PROVIDER, "security_protocol": "SASL_PLAINTEXT"}
    stream.change(bootstrap=guarded.bootstrap, **more)
    variables = {KEY_FILE: str(own_key), LIFE_S: "6", "PRECEDE_TICK_S": "0"}
    running = Running(stream, variables=variables)
    stream.change(bootstrap=guarded.broker.bootstrap)
    try:
        stream.send(conversation(200))
        running.until(lambda: sum(map(len, stream.ordered().values())) == 200, "the first messages", 60)
        own_key.unlink()
        running.wait_for_output("asks for a token, and tests.system.tokens:token gives none: FileNotFoundError", 60)
        assert running.process.poll() is None
        own_key.write_bytes(guarded.key_file.read_bytes())
        stream.send(conversation(200, seed=2))
        expected = by_kernel(stream.raw())[0]
        running.until(lambda: stream.ordered() == expected, "the rest", 90)
        running.stop()
        assert running.process.returncode == 0, running.said
    finally:
        running.kill()
    assert not any("Traceback" in line for line in running.said), running.said


def test_a_gateway_tells_that_it_gets_no_token_keeps_what_is_said_and_publishes_it_with_the_next_token(
    guarded: TokenBroker, tmp_path: Path
) -> None:
    place = Place(guarded.broker.bootstrap, tmp_path)
    own_key = tmp_path / "own.key"
    known = {KEY_FILE: str(own_key), LIFE_S: "6", "PRECEDE_BOOTSTRAP": guarded.bootstrap}
    known |= {"PRECEDE_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "PRECEDE_SASL_TOKEN_PROVIDER": PROVIDER}
    place.job()
    try:
        gateway = place.start_gateway(variables=known | {"PRECEDE_METRICS": "127.0.0.1:0"})
        gateway.wait_for_output("asks for a token, and tests.system.tokens:token gives none: FileNotFoundError", 30)
        own_key.write_bytes(guarded.key_file.read_bytes())
        gateway.wait_for_output("Carrying between", 60)
        gateway.until(lambda: is_healthy(gateway), "health", 30)
        with linked(place.url) as segment:
            together(segment, "ann", order="fifo")
            said = [segment.say("ann")]
            until(lambda: place.delivered() == said, 30)
            own_key.unlink()
            gateway.wait_for_output("; what is heard is kept, and goes up when the login works again.", 60)
            said += [segment.say("ann") for _ in range(20)]
            own_key.write_bytes(guarded.key_file.read_bytes())
            until(lambda: place.delivered() == said, 60)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.ends(30) == 0
        assert not any("Traceback" in line for line in gateway.said), gateway.said
    finally:
        for one in place.running:
            one.kill()


def is_healthy(gateway: Running) -> bool:
    (line,) = [line for line in gateway.said if "Metrics and health" in line]
    with suppress(urllib.error.HTTPError):  # 503: it is not
        answer = urllib.request.urlopen(f"http://127.0.0.1:{line.split()[-1].rstrip('.')}/health").read()
        return bool(json.loads(answer)["healthy"])
    return False


def refusal(path: Path, variables: dict[str, str]) -> str:
    """What a command says that may not log in."""
    done = precede("tail", "--seconds", "5", "--config", path, variables=variables)
    assert done.returncode == 1, done.stdout
    return done.stderr.decode()


def test_who_gets_no_token_or_a_wrong_one_is_told_so(
    stream: Stream, guarded: TokenBroker, server: TokenServer, tmp_path: Path
) -> None:
    path = config(stream, guarded, tmp_path, by_oidc(server))
    said = refusal(path, {"PRECEDE_SASL_PASSWORD": "wrong"})
    assert "asks for a token, and the token endpoint gives none: " in said
    assert "wrong" not in said
    server.key = generate_private_key(65537, 2048)
    assert "rejected the token: it has expired, or it names somebody" in refusal(
        path, {"PRECEDE_SASL_PASSWORD": SECRET}
    )
    path = config(stream, guarded, tmp_path, f'sasl_token_provider = "{PROVIDER}"\n')
    began = time.monotonic()
    said = refusal(path, {KEY_FILE: str(tmp_path / "none")})
    assert "tests.system.tokens:token gives none: FileNotFoundError" in said
    assert time.monotonic() - began < 9, "nobody waits for a token that does not come"


def test_without_a_token_there_is_no_way_in(guarded: TokenBroker) -> None:
    """The broker of these tests asks for tokens indeed."""
    with pytest.raises((KafkaException, PrecedeError)):
        topics.ensure(guarded.bootstrap, [])
    assert Producer({"bootstrap.servers": guarded.broker.bootstrap}).list_topics(timeout=10).brokers
