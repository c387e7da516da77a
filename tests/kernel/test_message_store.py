"""The messages that a member keeps: under their ids, in the order in which they came."""

from __future__ import annotations

from precede.udfs.peers.kept_messages import MessageStore
from precede.udfs.records.messages import Who

A: Who = ("a", 0)
B: Who = ("b", 3)


def test_messages_are_told_in_the_order_in_which_they_came() -> None:
    store = MessageStore()
    store.put(A, 1, [b"a1", b"a2"])
    store.put(B, 7, [b"b7"])
    store.put(A, 3, [b"a3"])
    assert list(store.items()) == [
        (("a", 0, 1), b"a1"),
        (("a", 0, 2), b"a2"),
        (("b", 3, 7), b"b7"),
        (("a", 0, 3), b"a3"),
    ]
    assert (len(store), store.get(("b", 3, 7)), store.get(("b", 0, 7))) == (4, b"b7", None)
    assert ("a", 0, 3) in store
    assert ("a", 0, 4) not in store


def test_the_oldest_goes_first_and_what_was_dropped_before_is_passed_over() -> None:
    store = MessageStore()
    store.put(A, 1, [b"a1", b"a2", b"a3"])
    store.put(B, 1, [b"b1"])
    assert store.drop(("a", 0, 2)) == b"a2"
    assert store.drop(("a", 0, 2)) is None
    assert [store.drop_oldest() for _ in range(len(store))] == [
        (("a", 0, 1), b"a1"),
        (("a", 0, 3), b"a3"),
        (("b", 3, 1), b"b1"),
    ]
    assert list(store) == []


def test_what_is_put_back_is_the_youngest() -> None:
    store = MessageStore()
    store.put(A, 1, [b"a1", b"a2"])
    id_, value = store.drop_oldest()
    store.put(id_[:2], id_[2], [value])
    assert list(store) == [("a", 0, 2), ("a", 0, 1)]
    store.clear()
    assert (len(store), list(store)) == (0, [])
