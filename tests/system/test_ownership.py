"""Owners against a real broker: who may write the ordered topic, whom a start fences, and who of two jobs goes on.

Most of this needs no Spark: a job is its Ownership, and the producer that this opens.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from precede.ingest.kafka.topics import describe
from precede.ingest.progress import Progress, owner_record, read_progress, token_record
from precede.local.embedded_broker import Broker
from precede.streaming.order import ownership as ownerships
from precede.streaming.order import transaction
from precede.streaming.order.ownership import OwnerMonitor, Ownership
from precede.streaming.order.transaction import FencedError, OverdueError, TransactionalProducer
from precede.udfs.errors import Refused, TakenOver
from precede.udfs.rules import RULES
from tests.system.stream import Stream

NAMED = re.compile(
    r"Another job took over the ordered topic (\S+): job ([0-9a-f]{8}) \(engine (\w+), started \d{4}-\d\d-\d\d "
    r"\d\d:\d\d:\d\d UTC\) writes it now, and this one, job ([0-9a-f]{8}) \(engine (\w+), started .* UTC\), stops; "
    r"do not start it again while the other one runs\."
)


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    return Stream(broker.bootstrap, tmp_path)


@pytest.fixture
def job(stream: Stream) -> Iterator[Callable[..., Job]]:
    """Another job at each call."""
    made: list[Job] = []

    def make(engine: str = "spark", own_id: str | None = None) -> Job:
        made.append(Job(stream, engine, own_id))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Job:
    """A job without an engine: it claims the ordered topic, and publishes tokens."""

    def __init__(self, stream: Stream, engine: str, own_id: str | None) -> None:
        settings = stream.settings
        found = describe(settings.bootstrap, [settings.raw_topic, settings.progress_topic])
        raw, progress = (found[name] for name in (settings.raw_topic, settings.progress_topic))
        self.settings = settings
        self.ownership = Ownership(settings, raw, progress, engine=engine)
        self.ownership.transactional_id = own_id or self.ownership.transactional_id
        self.producer: TransactionalProducer | None = None
        self.progress: Progress | None = None

    @property
    def name(self) -> str:
        return self.ownership.job

    def open(self) -> Progress:
        self.close()
        self.producer, self.progress = self.ownership.open(print)
        return self.progress

    def begin(self, partition: int, after: int) -> None:
        """Put a token into a new transaction."""
        assert self.producer is not None
        key, value = token_record(self.settings.ordered_topic, partition, after)
        self.producer.begin()
        self.producer.produce(self.settings.progress_topic, [value], [key])

    def publish(self, partition: int, after: int) -> None:
        assert self.producer is not None
        self.begin(partition, after)
        self.producer.commit()

    def close(self) -> None:
        if self.producer is not None:
            self.producer.drop()
            self.producer = None


def progress_of(stream: Stream) -> Progress:
    settings = stream.settings
    found = describe(settings.bootstrap, [settings.progress_topic])
    return read_progress(settings.bootstrap, found[settings.progress_topic], settings.ordered_topic)


def jobs_of(stream: Stream) -> dict[int, str]:
    return {partition: owner.job for partition, owner in progress_of(stream).owners.items()}


def write(stream: Stream, *records: tuple[bytes, bytes | None]) -> None:
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        for key, value in records:
            producer.produce(stream.settings.progress_topic, value, key)


def fill(stream: Stream, count: int = 20) -> None:
    """Give the raw topic so many records in each partition."""
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        for at in range(count * 2):
            producer.produce(stream.settings.raw_topic, b"{}", partition=at % 2)


# ── what a start writes and reads ─────────────────────────────────────────────────────────────────────────────────


def test_a_start_writes_an_owner_record_for_each_raw_partition(stream: Stream, job: Callable[..., Job]) -> None:
    settings = stream.settings
    before = int(time.time() * 1000)
    one = job("process")
    assert one.open() == progress_of(stream)
    found = progress_of(stream)
    assert found.owners.keys() == {0, 1}
    known = describe(settings.bootstrap, [settings.raw_topic, settings.ordered_topic, settings.dead_letter_topic])
    for owner in found.owners.values():
        assert (owner.job, owner.engine) == (one.name, "process")
        assert owner.since_ms is not None
        assert before <= owner.since_ms <= time.time() * 1000
        assert owner.transactional_id == f"precede.{settings.ordered_topic}"
        assert owner.ids == [owner.transactional_id]
        assert (owner.order, owner.partitioner, owner.limits) == (settings.order, "murmur2", settings.limits)
        assert (owner.rules, owner.rules_from) == (RULES, 0)
        assert (owner.raw_topic_id, owner.partitions) == (known[settings.raw_topic].id, 2)
        assert (owner.ordered_topic_id, owner.ordered_partitions) == (known[settings.ordered_topic].id, 2)
        assert owner.dead_letter_topic_id == known[settings.dead_letter_topic].id


def test_a_start_reads_the_token_that_the_last_job_left(stream: Stream, job: Callable[..., Job]) -> None:
    fill(stream)
    first = job()
    first.open()
    first.publish(0, 7)
    assert job().open().token == {0: 7}


def test_a_start_fences_every_id_that_was_ever_named_and_only_then_reads_the_token(
    stream: Stream, job: Callable[..., Job]
) -> None:
    fill(stream)
    first, second = job(own_id="a job of its own"), job()
    first.open()
    first.publish(0, 7)
    first.begin(1, 9)
    assert second.open().token == {0: 7}
    with pytest.raises(FencedError):
        first.producer.commit()  # type: ignore[union-attr]
    assert progress_of(stream).token == {0: 7}
    for owner in progress_of(stream).owners.values():
        assert owner.ids == ["a job of its own", f"precede.{stream.settings.ordered_topic}"]


def test_an_id_that_crashed_between_its_records_and_its_fences_is_known_to_the_next_start(
    stream: Stream, job: Callable[..., Job]
) -> None:
    first, crashing, third = job(own_id="the first"), job(own_id="the one that crashes"), job()
    first.open()
    ownership = crashing.ownership
    producer = ownership._new_producer(ownership.transactional_id, print)
    ownership._write(producer, ownership._records({}, progress_of(stream)), [])
    producer.begin()
    producer.produce(stream.settings.progress_topic, [b"{}"], [b"[]"])
    first.begin(0, 3)  # nothing has fenced it yet
    third.open()
    assert set(jobs_of(stream).values()) == {third.name}
    for fenced in (producer, first.producer):
        with pytest.raises(FencedError):
            fenced.commit()  # type: ignore[union-attr]
    assert progress_of(stream).token == {}
    assert progress_of(stream).ids[0] == {"the first", "the one that crashes", third.ownership.transactional_id}


# ── two jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sentence_names_both_jobs(stream: Stream, job: Callable[..., Job]) -> None:
    first, second = job(), job("process")
    first.open()
    second.open()
    with pytest.raises(TakenOver) as taken_over:
        first.open()
    named = NAMED.fullmatch(str(taken_over.value))
    assert named is not None, str(taken_over.value)
    assert named.groups() == (stream.settings.ordered_topic, second.name[:8], "process", first.name[:8], "spark")
    second.publish(0, 0)


@pytest.mark.parametrize("ids", [(None, None, None), ("one", "two", "three")], ids=["one id", "an id each"])
def test_of_jobs_that_start_at_once_exactly_one_goes_on(
    stream: Stream, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, ids: tuple[str | None, ...]
) -> None:
    monkeypatch.setattr(ownerships, "CLAIM_S", 3.0)
    jobs = [job(own_id=own_id) for own_id in ids]
    together = threading.Barrier(len(jobs))
    ends: dict[str, Exception | None] = {}

    def start(one: Job) -> None:
        together.wait()
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            try:  # as the job does: a transaction that failed is tried again, and it publishes as soon as it can
                if one.producer is None:
                    one.open()
                one.publish(0, 0)
                ends[one.name] = None
                time.sleep(0.3)
            except FencedError:
                one.close()
                ends.pop(one.name, None)
            except Refused as refusal:
                ends[one.name] = refusal
                return
            if len(ends) == len(jobs) and sum(end is None for end in ends.values()) == 1:
                return

    threads = [threading.Thread(target=start, args=(one,)) for one in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    going_on = [name for name, end in ends.items() if end is None]
    assert len(going_on) == 1, ends
    assert set(jobs_of(stream).values()) == set(going_on)
    ended = [end for end in ends.values() if end is not None]
    assert all(isinstance(end, TakenOver) and NAMED.fullmatch(str(end)) for end in ended), ends
    assert len(ended) == len(jobs) - 1


def test_a_busy_job_is_taken_over_too(stream: Stream, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """It notices the fence before the other job has written its records, and must not fence that one in return."""
    first, second = job(), job()
    first.open()
    claim = Ownership._claim

    def claim_late(*arguments: Any) -> Progress:
        with pytest.raises(FencedError):
            first.publish(0, 0)
        waiting.start()
        time.sleep(1.0)
        return claim(*arguments)

    ends: list[Exception] = []

    def look() -> None:
        try:
            first.ownership.check_not_taken_over()
        except TakenOver as refusal:
            ends.append(refusal)

    waiting = threading.Thread(target=look)
    monkeypatch.setattr(Ownership, "_claim", claim_late)
    second.open()
    waiting.join()
    assert len(ends) == 1
    second.publish(0, 0)


def test_a_fenced_job_whose_records_still_stand_opens_again(
    stream: Stream, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownerships, "CLAIM_S", 0.5)
    first = job()
    first.open()
    # A start that crashed after its fence.
    TransactionalProducer(
        stream.settings.bootstrap, first.ownership.transactional_id, batch_bytes_max=1000, on_error=print
    )
    with pytest.raises(FencedError):
        first.publish(0, 0)
    first.ownership.check_not_taken_over()
    first.open()
    first.publish(0, 0)
    assert set(jobs_of(stream).values()) == {first.name}


def test_a_transaction_that_took_too_long_is_told_from_another_job(
    stream: Stream, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "TRANSACTION_S", 1)
    one = job()
    one.open()
    one.begin(0, 0)
    one.producer._producer.flush()  # type: ignore[union-attr]
    time.sleep(12)  # the broker looks for such transactions every ten seconds
    with pytest.raises(OverdueError):
        one.producer.commit()  # type: ignore[union-attr]


def test_an_idle_job_notices_within_two_seconds(stream: Stream, job: Callable[..., Job]) -> None:
    first, second = job(), job()
    first.open()
    noticed = threading.Event()
    refusals: list[Refused] = []

    def notice(refusal: Refused) -> None:
        refusals.append(refusal)
        noticed.set()

    watch = OwnerMonitor(first.ownership, notice)
    watch.start()
    try:
        first.publish(0, 0)  # what it writes itself, and what other streams write, is no other job
        write(stream, (b'["another",0,"owner"]', b"{}"))
        assert not noticed.wait(3.0)
        second.open()
        assert noticed.wait(2.0)
    finally:
        watch.stop()
    assert isinstance(refusals[0], TakenOver)


def test_a_job_that_was_taken_over_before_its_watch_began_notices_too(stream: Stream, job: Callable[..., Job]) -> None:
    first, second = job(), job()
    first.open()
    second.open()
    noticed = threading.Event()
    watch = OwnerMonitor(first.ownership, lambda _: noticed.set())
    watch.start()
    try:
        assert noticed.wait(2.0)
    finally:
        watch.stop()


# ── rules and refusals ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_under_older_rules_goes_on_and_the_new_rules_hold_from_its_token(
    stream: Stream, job: Callable[..., Job]
) -> None:
    fill(stream)
    job().open()
    topic = stream.settings.ordered_topic
    for at, owner in progress_of(stream).owners.items():
        older = msgspec.structs.replace(owner, rules=RULES - 1)
        write(stream, owner_record(topic, at, older), token_record(topic, at, 12 * at))
    one = job()
    assert {at: owner.rules for at, owner in progress_of(stream).owners.items()} == {0: RULES - 1, 1: RULES - 1}
    one.open()
    one.publish(1, 15)
    for _ in range(2):  # its next starts, and those of another job, keep what the first wrote
        found = progress_of(stream).owners
        assert {at: (owner.rules, owner.rules_from) for at, owner in found.items()} == {0: (RULES, 0), 1: (RULES, 12)}
        job().open()


def test_a_stream_under_newer_rules_is_refused_and_the_job_that_runs_does_not_notice(
    stream: Stream, job: Callable[..., Job]
) -> None:
    first = job()
    first.open()
    owner = progress_of(stream).owners[0]
    newer = msgspec.structs.replace(owner, rules=RULES + 1)
    write(stream, owner_record(stream.settings.ordered_topic, 0, newer))
    with pytest.raises(
        Refused, match=rf"under rules of version {RULES + 1}; this one knows version {RULES}: run the n"
    ):
        job().open()
    first.publish(0, 0)


def test_a_start_that_is_refused_disturbs_no_job_that_runs(stream: Stream, job: Callable[..., Job]) -> None:
    first = job()
    first.open()
    stream.change(order="fifo")
    with pytest.raises(Refused, match="was made with the order s_b, not fifo"):
        job().open()
    first.publish(0, 0)
    assert set(jobs_of(stream).values()) == {first.name}


def test_owner_records_that_were_removed_while_the_job_ran_end_it(stream: Stream, job: Callable[..., Job]) -> None:
    first = job()
    first.open()
    write(stream, *((key, None) for key, *_ in stream.read(stream.settings.progress_topic) if key is not None))
    with pytest.raises(Refused, match="no longer says who writes the ordered topic"):
        first.ownership.check_not_taken_over()
