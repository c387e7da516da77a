"""The monitoring of a job, without a job: its counts, its health and its metrics."""

import http.client
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from precede.streaming.job import broker_watch
from precede.streaming.job.announcer import Announcer
from precede.streaming.job.broker_watch import BrokerWatch
from precede.streaming.job.settings import Settings, check
from precede.streaming.job.watch import QueryWatch
from precede.streaming.monitoring import counts
from precede.streaming.monitoring.counts import Counts, CountsFile
from precede.streaming.monitoring.health import AWAY_S_MAX, SILENT_S_MAX, judge
from precede.streaming.monitoring.metrics import Metrics
from precede.streaming.monitoring.server import MonitoringServer
from precede.streaming.places.place import LocalPlace
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.records.wire import encode_message
from precede.udfs.steps import NOTHING_WAITS, Records


def never() -> Any:
    raise AssertionError("no query is started here")


def watch(name: str = "order", *, silent_s: float | None = 1.0) -> QueryWatch:
    """A query that last reported this long ago."""
    one = QueryWatch(name, never, print, 1.0, print)
    one._query = object()  # type: ignore[assignment]
    one.progress_at = 0.0 if silent_s is None else time.monotonic() - silent_s
    return one


def kernel_records() -> Records:
    """A shard's output for a few good and bad records."""
    holdback = Holdback()
    good = encode_message("g", "a", 0, 1, after=[])
    held = encode_message("g", "b", 0, 1, after=[("a", 0, 2)])
    for offset, value in enumerate((good, held, b"junk", b"\xff", good)):
        holdback.receive(value, b"g", 0, offset, 1_000)
    dead_offsets = [2, 3]
    lists = (holdback.ordered, holdback.ordered_keys, [0], holdback.dead, holdback.dead_keys, dead_offsets)
    return Records(*lists, 5, holdback.duplicates, 1, (1_000, 1), 70, dead_codes=holdback.dead_codes)


def counted() -> Counts:
    batch, total = Counts(batches=1), Counts()
    records = kernel_records()
    batch.add_row(3, 0, 4, records)
    batch.add_published(records)
    total.add_batch(batch)
    return total


def test_what_a_batch_carries_is_counted_dead_letters_by_their_code() -> None:
    total = counted()
    assert (total.read, total.delivered, total.dead, total.duplicates) == (5, 1, 2, 1)
    assert total.codes == {"malformed": 2}
    assert (total.held_now, total.gaps_now, total.oldest_ms, total.next) == (1, 1, 1_000, {0: 5})


def test_what_is_held_is_known_again_after_a_start_and_nothing_else_is(tmp_path: Path) -> None:
    CountsFile(LocalPlace(tmp_path)).save(counted())
    again = counts.load(LocalPlace(tmp_path))
    assert (again.held_now, again.gaps_now, again.oldest_ms, again.state_bytes) == (1, 1, 1_000, {3: 70})
    assert (again.batches, again.read, again.next) == (0, 0, {})
    (tmp_path / counts.FILE).write_bytes(b"{")
    assert counts.load(LocalPlace(tmp_path)) == Counts()


def test_a_job_is_healthy_while_its_queries_speak_and_kafka_answers() -> None:
    now = time.monotonic()
    assert judge([watch(), watch("history")], now - 500, now - 1).healthy


@pytest.mark.parametrize(
    ("silent_s", "kafka_s", "problem"),
    [
        (SILENT_S_MAX + 5, 1.0, "The order query has been silent for 125 s."),
        (None, 1.0, "The order query has not begun yet."),
        (1.0, AWAY_S_MAX + 5, "Kafka has not answered for 35 s."),
        (1.0, None, "Kafka has not answered yet."),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(silent_s: float | None, kafka_s: float | None, problem: str) -> None:
    now = time.monotonic()
    health = judge([watch(silent_s=silent_s)], now - 500, None if kafka_s is None else now - kafka_s)
    assert not health.healthy
    assert health.problems == [problem]


def test_a_query_that_looks_seldom_may_be_silent_for_longer() -> None:
    one = QueryWatch("history", never, print, 1.0, print, every_s=600.0)
    one._query, one.progress_at = object(), time.monotonic() - 650  # type: ignore[assignment]
    now = time.monotonic()
    assert judge([one], now - 5_000, now).healthy


def test_a_query_between_two_starts_is_no_healthy_one() -> None:
    one = watch()
    one._query = None
    now = time.monotonic()
    problems = judge([one], now - 500, now).problems
    assert problems == ["The order query has stopped and will be started again."]
    one.done = True
    assert judge([one], now - 500, now).healthy, "a query that has processed everything may end"


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Pages of a job whose broker is down."""
    monkeypatch.setattr(broker_watch, "ANSWER_S", 0.2)  # closing waits for the answer that does not come
    settings = Settings(bootstrap="127.0.0.1:1", checkpoint=str(tmp_path), delta=str(tmp_path), metrics="0")
    server = MonitoringServer(settings)
    server.open()
    server.watch([watch(), watch("history of deliveries")], None)
    server.metrics.observe("order", "addBatch", 0.3)

    def get(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    yield get
    server.close()


def test_metrics_have_units_in_their_names_and_every_code_from_zero_on(ask: Callable[[str], tuple[int, str]]) -> None:
    status, text = ask("/metrics")
    assert status == 200
    assert 'precede_dead_letter_records_total{code="backpressure"} 0.0' in text
    assert 'precede_query_running{query="history of deliveries"} 1.0' in text
    assert 'precede_batch_seconds_bucket{le="0.5",phase="addBatch",query="order"} 1.0' in text
    assert 'precede_disk_free_bytes{folder="checkpoint"}' in text
    assert "precede_healthy 0.0" in text


def test_while_spark_starts_what_is_held_is_told_and_no_lag_is_guessed(tmp_path: Path) -> None:
    CountsFile(LocalPlace(tmp_path)).save(counted())
    settings = Settings(checkpoint=str(tmp_path), delta=str(tmp_path))
    metrics = Metrics(settings, BrokerWatch(settings), lambda: False)
    metrics.broker.ends = {0: (0, 100)}
    assert "precede_held_messages 1.0" in metrics.text().decode()
    assert "precede_lag_records{" not in metrics.text().decode()
    metrics.sink = SimpleNamespace(counts=Counts(), is_token_known=False)  # type: ignore[assignment]
    assert "precede_lag_records{" not in metrics.text().decode()
    metrics.sink = SimpleNamespace(counts=Counts(next={0: 90}), is_token_known=True)  # type: ignore[assignment]
    assert 'precede_lag_records{partition="0"} 10.0' in metrics.text().decode()


def test_every_number_that_is_told_is_the_one_that_was_counted(tmp_path: Path) -> None:
    settings = Settings(checkpoint=str(tmp_path), delta=str(tmp_path))
    metrics = Metrics(settings, BrokerWatch(settings), lambda: True)
    counts = Counts(read=50, delivered=30, duplicates=7, codes=Counter(malformed=2, late=4), next={0: 5, 1: 4})
    counts.held, counts.state_bytes = {0: 3, 4: 8}, {0: 70, 4: 31}
    counts.waiting = {0: (5_000, 2), 4: (1_000, 1), 5: NOTHING_WAITS}
    metrics.sink = SimpleNamespace(counts=counts, is_token_known=True)  # type: ignore[assignment]
    metrics.broker.ends = {0: (0, 12), 1: (0, 4), 2: (20, 25)}  # nothing of the third was read
    metrics.watches = [watch("order", silent_s=50.0), watch("history of gaps")]
    metrics.watches[0].restarts, metrics.watches[0].batches, metrics.watches[1].behind = 3, 8, 17
    told = dict(line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if line.startswith("precede_"))
    expected = {
        "precede_healthy": 1,
        "precede_read_records_total": 50,
        "precede_delivered_records_total": 30,
        "precede_duplicate_records_total": 7,
        'precede_dead_letter_records_total{code="malformed"}': 2,
        'precede_dead_letter_records_total{code="late"}': 4,
        'precede_dead_letter_records_total{code="forged"}': 0,
        "precede_held_messages": 11,
        "precede_gaps": 3,
        "precede_state_bytes": 101,
        'precede_lag_records{partition="0"}': 7,
        'precede_lag_records{partition="1"}': 0,
        'precede_lag_records{partition="2"}': 5,
        'precede_query_restarts_total{query="order"}': 3,
        'precede_batches_total{query="order"}': 8,
        'precede_query_behind_records{query="history of gaps"}': 17,
    }
    assert {name: float(told[name]) for name in expected} == expected
    assert time.time() - 1 - float(told["precede_held_oldest_seconds"]) == pytest.approx(0, abs=30)
    assert float(told['precede_query_silent_seconds{query="order"}']) == pytest.approx(50, abs=30)


def test_health_answers_503_and_says_why(ask: Callable[[str], tuple[int, str]]) -> None:
    status, text = ask("/health")
    assert status == 503
    assert msgspec.json.decode(text)["problems"] == ["Kafka has not answered yet."]
    assert ask("/")[0] == 404


def test_a_port_that_is_taken_is_refused_in_a_sentence(ask: Callable[[str], tuple[int, str]], tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"The setting metrics is {port}, but the job cannot listen there"):
            MonitoringServer(Settings(metrics=str(port)))


@pytest.mark.parametrize("metrics", ["http", "9464:", "1:2:3", "70000"])
def test_a_place_for_metrics_that_is_none_is_refused(metrics: str) -> None:
    with pytest.raises(Refused, match="The setting metrics is .* must be a port, or host:port"):
        check(Settings(metrics=metrics))


def test_sentences_are_for_a_person_or_lines_of_json_for_a_program() -> None:
    said: list[str] = []
    Announcer(said.append)("The order query stopped.", level="warning", query="order", batch=7)
    Announcer(said.append, "json")("The order query stopped.", level="warning", query="order", batch=7)
    Announcer(said.append, "json").refused(Refused("No."))
    assert said[0] == "The order query stopped."
    line = msgspec.json.decode(said[1])
    assert {name: line[name] for name in ("level", "message", "query", "batch")} == {
        "level": "warning",
        "message": "The order query stopped.",
        "query": "order",
        "batch": 7,
    }
    assert msgspec.json.decode(said[2])["level"] == "error"
