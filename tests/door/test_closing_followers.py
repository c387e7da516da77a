"""Closing a follower, from any thread: a thread that waits is told, and no error of a Kafka client comes out."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, sleep

import pytest

from precede.ingest.follower_token import read_token
from precede.reading.following import Follower
from precede.reading.ordered_topic import OrderedTopic
from precede.udfs.errors import Closed, Refused
from precede.udfs.records.messages import LogRecord
from tests.door.test_following import Topic, follower, ordered


class SlowTopic(Topic):
    """A topic whose client waits as long as it is told to, and breaks where two threads are in it, or one too late."""

    def __init__(self, *records: bytes, more_s: float = 0.0) -> None:
        super().__init__(list(records))
        self.is_in = threading.Lock()
        self.more_s = more_s

    def read(self, timeout_s: float) -> list[LogRecord]:
        if self.closed or not self.is_in.acquire(blocking=False):
            raise RuntimeError("Consumer closed")
        try:
            found = super().read(timeout_s)
            if not found:
                sleep(timeout_s + self.more_s)
            return found
        finally:
            self.is_in.release()

    def close(self) -> None:
        assert self.is_in.acquire(blocking=False), "closed while another thread reads"
        self.is_in.release()
        super().close()


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., "Future[object]"]]:
    """Calls a function in another thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def patient(topic: Topic) -> Follower:
    return Follower(OrderedTopic(topic, topic="t", group="g"), patience_s=None, name="the follower of g")


Elsewhere = Callable[..., "Future[object]"]


def test_a_reader_that_waits_is_told_when_another_thread_closes_its_follower(elsewhere: Elsewhere) -> None:
    topic = SlowTopic()
    following = patient(topic)
    waiting = elsewhere(following.poll, 60.0)
    sleep(0.3)
    began = monotonic()
    following.close()
    with pytest.raises(Closed, match="The follower of g is closed"):
        waiting.result(1.0)
    assert monotonic() - began < 1.0
    assert topic.closed


def test_an_iteration_that_waits_ends_when_another_thread_closes_its_follower(elsewhere: Elsewhere) -> None:
    following = patient(SlowTopic(ordered(1)))
    waiting = elsewhere(list, following)
    sleep(0.3)
    following.close()
    assert [one.position for one in waiting.result(1.0)] == [1]  # type: ignore[attr-defined]
    with pytest.raises(Closed):
        next(following)


def test_after_close_all_reading_says_so_and_the_token_is_still_there() -> None:
    following = follower(Topic([ordered(1), ordered(2)]))
    next(following)
    following.close()
    following.close()
    for use in (lambda: next(following), lambda: following.poll(0), lambda: following.at_end):
        with pytest.raises(Closed):
            use()
    assert read_token(following.token).offsets == {0: 1}


def test_close_does_not_wait_for_a_read_that_does_not_end_and_that_thread_disconnects(elsewhere: Elsewhere) -> None:
    topic = SlowTopic(more_s=2.0)
    following = patient(topic)
    waiting = elsewhere(following.poll, 60.0)
    sleep(0.3)
    began = monotonic()
    following.close()
    assert monotonic() - began < 1.0
    assert not topic.closed
    with pytest.raises(Closed):
        waiting.result(3.0)
    assert topic.closed


def test_a_second_thread_that_reads_is_refused_in_a_sentence_and_the_first_reads_on(elsewhere: Elsewhere) -> None:
    topic = SlowTopic()
    following = patient(topic)
    waiting = elsewhere(next, following)
    sleep(0.3)
    with pytest.raises(Refused, match="Another thread reads the follower of g at this moment"):
        following.poll(0)
    topic.partitions[0].append(ordered(1))
    assert waiting.result(2.0).position == 1  # type: ignore[attr-defined]
    following.close()


def test_the_token_can_be_read_while_another_thread_waits(elsewhere: Elsewhere) -> None:
    following = patient(SlowTopic(ordered(1)))
    assert next(following).position == 1
    waiting = elsewhere(following.poll, 60.0)
    sleep(0.1)
    began = monotonic()
    assert read_token(following.token).offsets == {0: 1}
    assert monotonic() - began < 1.0
    following.close()
    with pytest.raises(Closed):
        waiting.result(1.0)


class Shared(Topic):
    """Notes whether the last message counts as handled."""

    gave_back = False

    def give_back(self) -> None:
        self.gave_back = True


@pytest.mark.parametrize("handles", ["here", "there", "no more"])
def test_what_another_thread_still_handles_does_not_count_as_handled(elsewhere: Elsewhere, handles: str) -> None:
    topic = Shared([ordered(1)])
    source = OrderedTopic(topic, topic="t", group="g")
    source.give_back = topic.give_back  # type: ignore[method-assign]
    following = Follower(source, patience_s=None)
    if handles == "here":
        next(following)
    elif handles == "there":
        elsewhere(next, following).result(1.0)  # the pool's thread goes on
    else:
        thread = threading.Thread(target=next, args=[following])
        thread.start()
        thread.join()
    following.close()
    assert topic.gave_back is (handles == "there")
