"""The monitoring of a job, without a job: its counts, its health and its metrics."""

import http.client
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from precede.ingest.service import broker_monitor
from precede.ingest.service.broker_monitor import AWAY_S_MAX, BrokerMonitor, Unread
from precede.ingest.service.running import Announcer
from precede.streaming.monitoring.metrics import Metrics
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.monitoring.server import SILENT_S_MAX, STUCK_S_MAX, MonitoringServer, judge
from precede.streaming.order import counts
from precede.streaming.order.counts import HOLD_BOUNDS_S, SAMPLES_MAX, CountsFile, JobCounts, TimeHistogram, Times
from precede.streaming.places.place import LocalPlace
from precede.streaming.settings import Settings, check
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.records.wire import encode_message
from precede.udfs.steps import NOTHING_WAITS, Records


def never() -> Any:
    raise AssertionError("no query is started here")


def watch(name: str = "order", *, silent_s: float | None = 1.0) -> QueryKeeper:
    """A query that last reported this long ago."""
    one = QueryKeeper(name, never, print, 1.0, print)
    one._query = object()  # type: ignore[assignment]
    one.progress_at = 0.0 if silent_s is None else time.monotonic() - silent_s
    return one


def sink(counts: JobCounts, partitions: Sequence[int] = (0, 1, 2), *, is_token_known: bool = True) -> Any:
    """What the monitoring asks of a sink."""
    ownership, settings = SimpleNamespace(partitions=partitions), Settings()
    known = {"counts": counts, "times": Times(), "ownership": ownership, "settings": settings}
    return SimpleNamespace(**known, is_token_known=is_token_known)


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


def counted() -> JobCounts:
    batch, total = JobCounts(batches=1), JobCounts()
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
    assert counts.load(LocalPlace(tmp_path)) == JobCounts()


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
    one = QueryKeeper("history", never, print, 1.0, print, every_s=600.0)
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
    monkeypatch.setattr(broker_monitor, "ANSWER_S", 0.2)  # closing waits for the answer that does not come
    settings = Settings(bootstrap="127.0.0.1:1", checkpoint=str(tmp_path), delta=str(tmp_path), metrics="0")
    server = MonitoringServer(settings)
    server.open()
    server.follow_kafka()
    server.show([watch(), watch("history of deliveries")], None)
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
    metrics = Metrics(settings, BrokerMonitor(settings.bootstrap, settings.raw_topic), lambda: False)
    metrics.read_held()
    metrics.broker.ends = {0: (0, 100)}
    assert "precede_held_messages 1.0" in metrics.text().decode()
    assert "precede_lag_records{" not in metrics.text().decode()
    metrics.sink = sink(JobCounts(), is_token_known=False)
    assert "precede_lag_records{" not in metrics.text().decode()
    metrics.sink = sink(JobCounts(next={0: 90}))
    assert 'precede_lag_records{partition="0"} 10.0' in metrics.text().decode()


def test_every_number_that_is_told_is_the_one_that_was_counted(tmp_path: Path) -> None:
    settings = Settings(checkpoint=str(tmp_path), delta=str(tmp_path))
    metrics = Metrics(settings, BrokerMonitor(settings.bootstrap, settings.raw_topic), lambda: True)
    counts = JobCounts(read=50, delivered=30, duplicates=7, codes=Counter(malformed=2, late=4), next={0: 5, 1: 4})
    counts.held, counts.state_bytes = {0: 3, 4: 8}, {0: 70, 4: 31}
    counts.waiting = {0: (5_000, 2), 4: (1_000, 1), 5: NOTHING_WAITS}
    metrics.sink = sink(counts)
    metrics.broker.ends = {0: (0, 12), 1: (0, 4), 2: (20, 25)}  # nothing of the third was read
    metrics.keepers = [watch("order", silent_s=50.0), watch("history of gaps")]
    metrics.keepers[0].restarts, metrics.keepers[0].batches, metrics.keepers[1].behind = 3, 8, 17
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
    assert ask("/ready")[0] == 503
    assert ask("/")[0] == 404


def test_a_job_without_kafka_is_alive_and_one_that_is_stuck_is_not(
    ask: Callable[[str], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask("/live")[0] == 200
    monkeypatch.setattr("precede.streaming.monitoring.server.STUCK_S_MAX", -1.0)
    assert STUCK_S_MAX > 0
    status, text = ask("/live")
    assert status == 503
    assert text == "The process has been stuck for 0 s.\n"


# ── times ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def ordered_records(count: int, *, held_every: int = 0, held_ms: int = 0) -> list[bytes]:
    """Messages of one sender, of which every n-th was held for so long."""
    holdback = Holdback(order="fifo")
    now_ms = int(time.time() * 1000)
    for seq in range(1, count + 1):
        holdback.receive(encode_message("g", "a", 0, seq, after=[], data="x" * 300), b"g", 0, seq, now_ms - 2_000)
    found = list(holdback.ordered)
    if held_every:
        old, new = b'"released_offset":', b'"released_offset":9'
        for at in range(0, count, held_every):
            times = f'"released_ms":{now_ms - 2_000 + held_ms}}}'.encode()
            head = found[at].rpartition(b',"released_ms":')[0]
            found[at] = head.replace(old, new) + b"," + times
    return found


def observed(found: TimeHistogram) -> dict[str, float]:
    return dict(found.buckets())


def test_the_time_from_arrival_to_the_commit_is_in_its_bucket() -> None:
    times = Times()
    times.begin()
    times.note(ordered_records(10))
    assert observed(times.delay)["+Inf"] == 0, "nothing is committed yet"
    times.committed()
    assert (observed(times.delay)["1"], observed(times.delay)["30"], observed(times.delay)["+Inf"]) == (0, 10, 10)
    assert times.delay.sum_s == pytest.approx(20, abs=15)
    assert observed(times.hold)["+Inf"] == 0, "none was held"


def test_a_message_that_was_held_counts_from_its_release_and_its_hold_by_itself() -> None:
    times = Times()
    times.begin()
    times.note(ordered_records(10, held_every=5, held_ms=1_900))
    times.committed()
    assert (observed(times.hold)["1"], observed(times.hold)["2.5"]) == (0, 2)
    assert observed(times.delay)["1"] == 2


def test_what_a_transaction_that_failed_would_have_published_does_not_count() -> None:
    times = Times()
    times.begin()
    times.note(ordered_records(10))
    times.begin()
    times.note(ordered_records(3))
    times.committed()
    assert observed(times.delay)["+Inf"] == 3


def test_of_many_records_some_are_read_and_stand_for_all() -> None:
    times = Times()
    times.begin()
    times.note(ordered_records(50 * SAMPLES_MAX, held_every=2, held_ms=100))
    times.committed()
    assert observed(times.delay)["+Inf"] == pytest.approx(50 * SAMPLES_MAX)


def test_bytes_that_are_no_ordered_record_stop_nothing() -> None:
    times = Times()
    times.begin()
    times.note([b"", b"1", b'{"a":1,"b":2,"c":3,"d":"x"}', *ordered_records(1)])
    times.committed()
    assert observed(times.delay)["+Inf"] == 1


def test_a_bucket_has_what_is_not_above_its_bound() -> None:
    found = TimeHistogram(HOLD_BOUNDS_S)
    for seconds in (0.01, 0.011, 86_400.0, 90_000.0):
        found.add(seconds, 1)
    assert found.buckets()[0] == ("0.01", 1)
    assert found.buckets()[1] == ("0.1", 2)
    assert found.buckets()[-2:] == [("86400", 3), ("+Inf", 4)]


def test_lag_in_seconds_is_that_of_the_oldest_record_which_is_not_processed(tmp_path: Path) -> None:
    settings = Settings(checkpoint=str(tmp_path), delta=str(tmp_path))
    metrics = Metrics(settings, BrokerMonitor(settings.bootstrap, settings.raw_topic), lambda: True)
    since_ms = int((time.time() - 600) * 1000)
    metrics.broker.ends = {0: (0, 12), 1: (0, 9), 2: (0, 7)}
    metrics.broker.unread = {
        "precede.raw": {0: Unread(12, since_ms), 1: Unread(9, since_ms)},
        "precede.ordered": {0: Unread(20, since_ms), 3: Unread(30, since_ms - 600_000)},
    }
    metrics.sink = sink(JobCounts(next={0: 5, 1: 9}), [0, 1])
    metrics.keepers = [watch("history of deliveries"), watch("history of gaps")]
    metrics.keepers[0].reached = {("precede.ordered", 0): 19, ("precede.ordered", 3): 30}
    told = dict(line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if line.startswith("precede_"))
    assert float(told['precede_lag_seconds{partition="0"}']) == pytest.approx(600, abs=30)
    assert told['precede_lag_seconds{partition="1"}'] == "0.0", "it was processed since the look"
    assert 'precede_lag_seconds{partition="2"}' not in told, "another job has it"
    assert float(told['precede_history_lag_seconds{table="deliveries"}']) == pytest.approx(600, abs=30)
    assert 'precede_history_lag_seconds{table="gaps"}' not in told, "it has not said yet where it is"


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
