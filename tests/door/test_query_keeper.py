"""A failed query is restarted, and abandoned only if nothing useful can go on without it."""

import math
import re
import time
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import PySparkException

from precede.streaming.monitoring.query_keeper import FIRST_RETRY_S, QueryKeeper
from precede.streaming.spark.spark_query import started
from precede.udfs.errors import Refused

AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT, "away"))
FOREIGN = PySparkException("precede.udfs.errors.Refused: A topic holds a record that precede did not write: x.\n")


def look_twice(error: Exception, patience_s: float) -> list[str]:
    """The sentences about a query that fails at its first and second start."""
    said: list[str] = []

    def start() -> Any:
        raise error

    begin = partial(started, start)
    watch = QueryKeeper("history", begin, lambda sentence, **_: said.append(sentence), patience_s, lambda *_: None)
    watch.check()
    time.sleep(FIRST_RETRY_S)
    watch.check()
    return said


def test_a_query_that_fails_longer_than_there_is_patience_is_given_up_in_a_sentence() -> None:
    with pytest.raises(Refused, match=r"The history query has failed for 0 s: away"):
        look_twice(AWAY, 0.1)


def test_what_no_retry_can_mend_is_given_up_at_once() -> None:
    with pytest.raises(Refused, match=r"A topic holds a record that precede did not write: x\."):
        look_twice(FOREIGN, 300.0)


@pytest.mark.parametrize(("error", "reason"), [(AWAY, "away"), (FOREIGN, "A topic holds a record that .* write: x")])
def test_with_endless_patience_a_query_is_started_again_for_ever_later_each_time(error: Exception, reason: str) -> None:
    said = look_twice(error, math.inf)
    assert [sentence.rpartition("; ")[2] for sentence in said] == ["it starts again in 1 s.", "it starts again in 2 s."]
    assert said[0].startswith("The history query stopped: ")
    assert re.search(reason, said[0])


def test_a_start_that_ends_because_the_job_is_stopping_is_no_failure() -> None:
    assert look_twice(InterruptedError("The job is stopping."), 0.1) == []
