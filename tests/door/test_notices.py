"""What the sink tells the operator, and how it tells apart the errors of a transaction; without a broker."""

import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from precede.streaming.order import transaction
from precede.streaming.order.notices import NO_MORE_SENTENCES, SENTENCES_MAX, Notices
from precede.streaming.order.transaction import FENCED, FencedError, TransactionError

AWAY = KafkaError(KafkaError._ALL_BROKERS_DOWN)


def announced(notices: Notices) -> list[str]:
    said: list[str] = []
    notices.announce(lambda sentence, **_: said.append(sentence))
    return said


def test_a_sentence_is_said_once_and_not_more_than_somebody_reads() -> None:
    notices = Notices("kafka:9092")
    for _ in range(2):
        for number in range(SENTENCES_MAX + 5):
            notices.add(f"Group {number} lacks a key.")
    assert announced(notices) == [f"Group {number} lacks a key." for number in range(SENTENCES_MAX)] + [
        NO_MORE_SENTENCES
    ]
    notices.add("Group 0 lacks a key.")
    assert announced(notices) == []


def test_that_kafka_is_away_is_said_once_each_time() -> None:
    notices = Notices("kafka:9092")
    notices.client_error(KafkaError(KafkaError._TRANSPORT))
    assert announced(notices) == []
    for _ in range(2):
        notices.client_error(AWAY)
        assert notices.is_kafka_away
        assert [sentence.partition(";")[0] for sentence in announced(notices)] == [
            "Kafka at kafka:9092 does not answer"
        ]
        notices.client_error(AWAY)
        assert announced(notices) == []
        notices.kafka_answered()
        assert announced(notices) == []


@pytest.mark.parametrize("code", [*sorted(FENCED), KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN])
def test_a_fence_is_told_apart_from_every_other_error_of_a_transaction(code: int) -> None:
    producer = transaction.TransactionalProducer.__new__(transaction.TransactionalProducer)
    producer._began_at = time.monotonic()
    with pytest.raises(TransactionError) as raised, producer._as_transaction_error():
        raise KafkaException(KafkaError(code, "why"))
    assert isinstance(raised.value, FencedError) == (code in FENCED)
    assert raised.value.args[0].str() == "why"
