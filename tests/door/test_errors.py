"""Errors go through a pickle and come back whole, as programs with several processes need it."""

from __future__ import annotations

import pickle

import msgspec
import pytest

import precede
from precede.reading.delivery import as_delivery

FIELDS = {"order": "s_b", "status": "delivered", "partition": 0, "offset": 1, "arrived_ms": 2}
RECORD = {"group": "g", "sender": "ann", "seq": 4, "data": 1, "position": 4, **FIELDS}
RECORD |= {"released_offset": 1, "released_ms": 2}
ERRORS = [
    precede.Hole(as_delivery(msgspec.json.encode(RECORD), "here"), 1),
    precede.Difference("g", "position 3"),
    precede.Rejected("fenced", "It has left."),
    precede.Closed("the member ann of g"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_that_was_pickled_says_the_same(error: precede.PrecedeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)


def test_an_unconfirmed_error_keeps_its_id_through_a_pickle() -> None:
    error = precede.Unconfirmed("Kafka did not confirm a record.")
    error.id = ("ann", 0, 3)
    assert pickle.loads(pickle.dumps(error)).id == ("ann", 0, 3)
