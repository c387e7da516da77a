"""Looking at what a job would have written at any moment, and at streams about which nothing can be said."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from precede.inspect import holding
from precede.inspect.knowledge import look
from precede.inspect.why import find_out
from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.records.wire import encode_message
from tests.records import Row, conversation
from tests.system.stream import Stream
from tests.system.written_state import write

TICK = (None, b'{"kind":"tick"}')


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    return Stream(broker.bootstrap, tmp_path, ask_after_ms=1, give_up_ms=0)


def whole(stream: Stream, rows: list[Row]) -> Holdback:
    kernel = Holdback(order=stream.settings.order, partitions=2, patience=stream.settings.patience())
    for key, value, partition, offset, timestamp_ms in sorted(rows, key=lambda row: row[2:4]):
        kernel.receive(value, key, partition, offset, timestamp_ms)
    return kernel


@pytest.mark.parametrize("order", ["s_b", "fifo", "lamport"])
@pytest.mark.parametrize("lag", [0, 40])
def test_wherever_the_state_ends_what_is_held_is_what_a_kernel_over_the_whole_log_holds(
    stream: Stream, order: str, lag: int
) -> None:
    stream.change(order=order)
    pairs = conversation(300, groups=15, late=0.6)
    lost = [pair for number, pair in enumerate(pairs) if number % 7]
    stream.send(lost[:200])
    written = stream.raw()
    reached = {at: max((row[3] for row in written if row[2] == at), default=-1) + 1 for at in (0, 1)}
    write(stream.settings, written, 2, horizon={at: max(0, end - lag) for at, end in reached.items()})
    stream.send(lost[200:] + [TICK] * 4)
    kernel, knowledge = whole(stream, stream.raw()), look(stream.settings)
    knowledge.catch_up()
    assert list(kernel.held()), "otherwise nothing is compared"
    assert list(holding.held(knowledge)) == list(kernel.held())
    assert list(holding.gaps(knowledge)) == list(kernel.gaps())
    by_state = {
        one.group: (one.held, one.oldest_ms, one.gaps, one.bytes) for one in holding.top(knowledge, "bytes", 99)
    }
    assert by_state == {
        key.decode(): (held, oldest_ms if held else None, gaps, len(blob))
        for key, blob in kernel.dump().items()
        for oldest_ms, gaps, held in [kernel.waiting_of(key) or (0, 0, 0)]
    }
    assert [(one.group, one.order) for one in holding.listings(knowledge)] == [
        (key.decode(), order) for key in sorted(kernel.dump())
    ]


def test_an_old_message_is_found_behind_many_newer_ones_and_what_is_read_is_told(
    broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=1)
    first = (b"old", encode_message("old", "ann", 0, 1, after=[]))
    stream.send([first])
    later = conversation(160_000, groups=100, late=0.0, twice=0.0)
    stream.send(later[:80_000])
    stream.send(later[80_000:])
    write(stream.settings, stream.raw(), 1)
    told: list[tuple[str, float]] = []
    answer = find_out(
        stream.settings, "old", ("ann", 0, 1), tell=lambda what, part: told.append((what, part)), warn=pytest.fail
    )
    assert (answer.end, answer.deliveries[0].position, answer.deliveries[0].offset) == ("delivered", 1, 0)
    assert told[-1][0] == f"partition 0 of {stream.settings.ordered_topic}"
    assert [part for _, part in told] == sorted(part for _, part in told)
    assert 0.9 < told[-1][1] <= 1


def test_a_job_with_other_rules_is_told_in_a_warning(stream: Stream) -> None:
    stream.send(conversation(20, groups=2))
    write(stream.settings, stream.raw(), 2, rules=999)
    told: list[str] = []
    find_out(stream.settings, "group-0", ("a", 0, 99), warn=told.append)
    (warning,) = told
    assert warning.startswith("The job orders by rules 999, and this precede knows rules ")


def test_the_limits_and_the_order_are_the_jobs_and_not_the_readers(stream: Stream) -> None:
    stream.change(order="fifo", limits=Limits(record_bytes_max=1_000))
    stream.send([(b"g", encode_message("g", "ann", 0, 1, data="x" * 2_000)), (b"g", encode_message("g", "ann", 0, 2))])
    write(stream.settings, [], 2)
    other = msgspec.structs.replace(stream.settings, order="s_b", limits=Limits())
    answer = find_out(other, "g", ("ann", 0, 2), warn=pytest.fail)
    assert (answer.end, answer.order, answer.waits[0].missing) == ("held", "fifo", [("ann", 0, 1)])


def test_a_raw_log_that_was_cut_behind_the_horizon_is_refused(stream: Stream) -> None:
    stream.send(conversation(100, groups=6))
    write(stream.settings, stream.raw(), 2, horizon={0: 3, 1: 3})
    stream.cut(stream.settings.raw_topic, 10)
    knowledge = look(stream.settings)
    with pytest.raises(Refused, match="Partition 0 of .* begins at offset 10, and the state topic reaches only to"):
        knowledge.catch_up()


def test_a_topic_that_was_made_again_is_refused(stream: Stream) -> None:
    stream.send(conversation(20, groups=2))
    write(stream.settings, stream.raw(), 2)
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    for future in admin.delete_topics([stream.settings.raw_topic]).values():
        future.result()
    with pytest.raises(Refused, match="uses, has been deleted: see what `precede run` says"):
        look(stream.settings)
    Stream.__init__(stream, stream.settings.bootstrap, Path(stream.settings.checkpoint).parent, **_topics(stream))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="uses, has been deleted, and another one has its name"):
        look(stream.settings)


def _topics(stream: Stream) -> dict[str, str]:
    names = ("raw_topic", "ordered_topic", "dead_letter_topic", "progress_topic", "control_topic")
    return {name: getattr(stream.settings, name) for name in names}


@pytest.fixture
def left_open(stream: Stream) -> Iterator[Stream]:
    """A stream in whose state topic a killed job has left a transaction open."""
    stream.send([(b"g", encode_message("g", "bob", 0, 1, after=[("ann", 0, 1)]))])
    write(stream.settings, stream.raw(), 2)
    producer = Producer({"bootstrap.servers": str(stream.settings.bootstrap), "transactional.id": "killed"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(stream.settings.state_topic_name, b"?", b'["g",0]', partition)
    producer.flush(20)
    yield stream
    producer.abort_transaction(20)


def test_a_transaction_that_a_killed_job_left_open_delays_the_answer_by_seconds_only(left_open: Stream) -> None:
    began = time.monotonic()
    answer = find_out(left_open.settings, "g", ("bob", 0, 1), warn=pytest.fail)
    assert answer.end == "held"
    assert time.monotonic() - began < 6
