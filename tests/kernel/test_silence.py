"""Members that fall silent in orders that wait for every member."""

from __future__ import annotations

from typing import Any

import pytest

from precede.udfs.limits import Patience
from precede.udfs.orders import ORDERS
from tests.kernel.feeding import Tale
from tests.signing import publics

CLOCKED = [name for name, order in ORDERS.items() if order.waits_for_members]


def group(order: str, *, silent_ms: int = 60_000) -> Tale:
    """Members A, B and C; A has sent a message and waits for the others."""
    tale = Tale(patience=Patience(silent_ms=silent_ms))
    tale.take(kind="create", options={"order": order}, members=["A", "B", "C"])
    return tale.take(sender="A", seq=1, time=5, clock_ms=5)


@pytest.mark.parametrize("order", CLOCKED)
def test_who_never_spoke_is_evicted_with_nothing_of_it_counting(order: str) -> None:
    tale = group(order)
    assert tale.tick(59).own == []
    assert tale.tick(2).own == ["writes evict B cut 0", "writes evict C cut 0"]
    tale.take(kind="evict", member=["B", 0], cut=0)
    assert tale.take(kind="evict", member=["C", 0], cut=0).out == ["evict", "A1"]


@pytest.mark.parametrize("order", CLOCKED)
def test_a_job_that_lacks_the_service_s_key_says_so_and_evicts_nobody(order: str) -> None:
    tale = Tale()
    options = {"order": order, "keys": publics("A", "B", "C", "precede")}
    tale.take(kind="create", options=options, members=["A", "B", "C"])
    tale.take(sender="A", seq=1, time=5, clock_ms=5, by="A")
    (told,) = tale.tick(61).own
    assert "`service_key`" in told
    assert tale.tick(59).own == []
    assert tale.tick(2).own == [told], "once for all silent members, as rarely as it would evict them"


@pytest.mark.parametrize("order", CLOCKED)
def test_a_sign_of_life_begins_the_wait_anew(order: str) -> None:
    tale = group(order).wait(50)
    tale.take(kind="heartbeat", sender="B", seq=1, time=2, clock_ms=2)
    tale.take(sender="C", seq=1, time=2, clock_ms=2).take(sender="C", seq=2, time=3, clock_ms=3)
    assert tale.tick(20).own == []
    assert tale.tick(41).own == ["writes evict B cut 0", "writes evict C cut 2"]


@pytest.mark.parametrize("order", CLOCKED)
def test_a_heartbeat_offered_again_is_no_sign_of_life(order: str) -> None:
    tale = group(order).take(kind="heartbeat", sender="C", seq=1, time=9, clock_ms=9)
    older: dict[str, Any] = {"kind": "heartbeat", "sender": "B", "seq": 1, "time": 1, "clock_ms": 1}
    later: dict[str, Any] = {"kind": "heartbeat", "sender": "B", "seq": 3, "time": 3, "clock_ms": 3}
    tale.take(**older).take(**later)
    tale.take(sender="B", seq=1, time=1, clock_ms=1).take(sender="B", seq=2, time=2, clock_ms=2)
    for at in range(57):
        assert tale.wait(1).take(**(older, later)[at % 2]).restart().tick().own == []
    assert tale.wait(2).take(**later).tick().own == ["writes evict B cut 2"]


@pytest.mark.parametrize("order", CLOCKED)
@pytest.mark.parametrize("is_offered_again", [False, True])
def test_nor_is_one_that_came_before_what_it_covers(order: str, is_offered_again: bool) -> None:
    tale = Tale().take(kind="create", options={"order": order}, members=["A", "B"])
    tale.take(sender="A", seq=1, time=50, clock_ms=50)
    ahead: dict[str, Any] = {"kind": "heartbeat", "sender": "B", "seq": 3, "time": 5, "clock_ms": 5}
    tale.take(**ahead).wait(40)
    if is_offered_again:
        tale.take(**ahead)
    tale.take(kind="abandon", ids=[["B", 0, 1, 2]])
    assert tale.tick(18).own == []
    assert tale.tick(3).own == ["writes evict B cut 2"]


@pytest.mark.parametrize("order", CLOCKED)
def test_a_heartbeat_that_says_something_new_is_a_sign_of_life(order: str) -> None:
    says: dict[str, Any] = {"seq": 1, "time": 1, "clock_ms": 1}
    for more in ["seq", "time", *(["clock_ms"] if order == "two_clock" else [])]:
        tale = group(order)
        tale.take(kind="heartbeat", sender="C", seq=1, time=9, clock_ms=9)
        tale.take(kind="heartbeat", sender="B", **says)
        assert tale.tick(50).own == []
        tale.take(kind="heartbeat", sender="B", **{**says, more: 2})
        assert [own for own in tale.tick(30).own if "evict" in own] == []


@pytest.mark.parametrize("order", CLOCKED)
def test_a_member_that_has_nothing_to_say_still_gives_signs_of_life(order: str) -> None:
    stamps = ORDERS[order].stamps_of("B")
    tale = group(order).take(kind="heartbeat", sender="C", seq=1, time=99, clock_ms=99)
    for at in range(2, 6):
        tale.wait(50).take(**stamps.heartbeat(clock_ms=at)).tick()
        assert tale.own == []


@pytest.mark.parametrize("order", CLOCKED)
def test_who_joins_where_somebody_has_waited_long_gets_all_its_time_to_speak(order: str) -> None:
    tale = group(order).wait(50)
    for who in ("B", "C"):
        tale.take(kind="heartbeat", sender=who, seq=1, time=2, clock_ms=2)
    assert tale.take(kind="join", sender="D").out == ["join"]
    assert tale.tick(20).own == []
    assert "writes evict D cut 0" in tale.tick(41).own


@pytest.mark.parametrize("order", CLOCKED)
def test_silence_that_keeps_nobody_waiting_is_nobody_s_business(order: str) -> None:
    tale = group(order)
    tale.take(kind="heartbeat", sender="B", seq=1, time=50, clock_ms=50)
    assert tale.take(kind="heartbeat", sender="C", seq=1, time=50, clock_ms=50).out == ["A1"]
    assert tale.tick(3_600).own == []
    tale.take(sender="A", seq=2, time=60, clock_ms=60)
    assert tale.tick(59).own == [], "the time before any message waited does not count"
    assert tale.tick(2).own == ["writes evict B cut 0", "writes evict C cut 0"]


@pytest.mark.parametrize("order", CLOCKED)
def test_a_member_is_not_evicted_twice_while_its_evict_is_on_the_way(order: str) -> None:
    tale = group(order)
    assert len(tale.tick(61).own) == 2
    assert tale.tick(1).own == []
    assert tale.tick(30).own == []


@pytest.mark.parametrize("order", CLOCKED)
def test_nobody_is_evicted_where_silence_may_last_for_ever(order: str) -> None:
    assert group(order, silent_ms=0).tick(10**6).own == []


@pytest.mark.parametrize("order", sorted(set(ORDERS) - set(CLOCKED)))
def test_nobody_is_evicted_where_nobody_waits_for_members(order: str) -> None:
    tale = Tale(order).take(kind="join", sender="B")
    tale.take(sender="A", seq=2, after=[["A", 0, 1]], seen=[["A", 0, 2]])
    tale.tick(1_000)
    assert [one for one in tale.own if "evict" in one] == []
    tale.tick(1_000)
    assert [one for one in tale.own if "evict" in one] == []


@pytest.mark.parametrize("order", CLOCKED)
def test_leaving_and_coming_back_works_for_ever(order: str) -> None:
    tale = Tale().take(kind="create", options={"order": order}, members=["A", "B"])
    for epoch in range(1, 30):
        tale.take(sender="A", seq=epoch, time=10 * epoch, clock_ms=10 * epoch)
        assert tale.tick(61).own == [f"writes evict B{f'@{epoch - 1}' if epoch > 1 else ''} cut 0"]
        assert tale.take(kind="evict", member=["B", epoch - 1], cut=0).out == ["evict", f"A{epoch}"]
        assert tale.take(sender="B", epoch=epoch - 1, seq=1, time=10**4, clock_ms=1).dead[0].startswith("fenced")
        assert tale.take(kind="join", sender="B", epoch=epoch).out == ["join"]
