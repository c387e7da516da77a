"""Views of a group's members merge as a join-semilattice (M2MC, chapter 5); its tombstone set does not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.peers.views import IN, OUT, View, members, merge, raise_standing, view_of
from tests.kernel.effort import effort
from tests.kernel.feeding import Tale, parsed, short

names = st.sampled_from(["A", "B", "C", "D"])
standings = st.tuples(st.integers(0, 3), st.sampled_from([IN, OUT]))
views = st.dictionaries(names, standings)


@effort(300)
@given(views, views, views)
def test_merging_is_idempotent_commutative_and_associative(one: View, two: View, three: View) -> None:
    assert merge(one, one) == merge(one) == one
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three)) == merge(one, two, three)


@effort(200)
@given(views, views)
def test_a_merged_view_is_the_least_that_says_all_the_parts_say(one: View, two: View) -> None:
    both = merge(one, two)
    assert merge(both, one) == merge(both, two) == both
    assert all(standing in (one.get(name), two.get(name)) for name, standing in both.items())


@effort(200)
@given(st.lists(st.tuples(names, standings)), st.randoms(use_true_random=False))
def test_what_is_heard_late_twice_or_in_another_order_makes_the_same_view(
    heard: list[tuple[str, tuple[int, bool]]], random: Any
) -> None:
    again = [*heard, *heard]
    random.shuffle(again)
    told: list[View] = [{}, {}]
    for view, facts in zip(told, (heard, again), strict=True):
        for name, standing in facts:
            raise_standing(view, name, standing)
    assert told[0] == told[1]


def test_who_is_in_is_listed_by_name_with_its_epoch() -> None:
    assert members({"C": (0, IN), "B": (2, OUT), "A": (1, IN)}) == {"A": 1, "C": 0}
    assert members(view_of(["B", "A"])) == {"A": 0, "B": 0}


class _TombstoneSet:
    """The merge as printed (M2MC 5.1.2, state RecvGrpsInfoList and UpdateGrpInfo): current members and left ones."""

    def __init__(self, *current: str) -> None:
        self.current, self.left = set(current), set[str]()

    def join(self, name: str) -> None:
        self.current.add(name)

    def leave(self, name: str) -> None:
        self.current.discard(name)
        self.left.add(name)

    def hear(self, other: _TombstoneSet) -> None:
        self.left |= other.left
        self.current -= other.left
        self.current |= other.current - self.left


def test_the_documents_tombstone_set_puts_a_member_out_for_ever_where_epochs_do_not() -> None:
    # Vector GJLP-2: B leaves and returns; D does not know of the return and tells A what it knows.
    printed_a, printed_d = _TombstoneSet("A", "B", "D"), _TombstoneSet("A", "B", "D")
    for one in (printed_a, printed_d):
        one.leave("B")
    printed_a.join("B")
    assert "B" in printed_a.current
    printed_a.hear(printed_d)
    assert "B" not in printed_a.current
    printed_a.join("B")
    printed_a.hear(printed_d)
    assert "B" not in printed_a.current, "each stale list removes it again"

    at_a = view_of(["A", "B", "D"], 1)
    at_d = dict(at_a)
    for view in (at_a, at_d):
        raise_standing(view, "B", (1, OUT))
    raise_standing(at_a, "B", (2, IN))
    assert merge(at_a, at_d) == {"A": (1, IN), "B": (2, IN), "D": (1, IN)}
    assert members(merge(at_d, at_a)) == {"A": 1, "B": 2, "D": 1}


def test_in_the_log_a_member_leaves_and_comes_back_for_ever() -> None:
    for order in ("s_b", "total", "fifo"):
        tale = Tale(order).take(kind="create", options={"closed": True, "order": order}, members=["A", "B"])
        for epoch in range(40):
            assert tale.take(sender="B", epoch=epoch, seq=1, after=[]).out == [short(("B", epoch, 1))]
            assert tale.take(kind="leave", sender="B", epoch=epoch, last=1).out == ["leave"]
            assert tale.take(kind="join", sender="B", epoch=epoch, time=9).dead == ["fenced"]
            assert tale.take(kind="join", sender="B", epoch=epoch + 1).out == ["join"]
            assert tale.take(kind="leave", sender="B", epoch=epoch, last=0).dead == ["fenced"]
            assert tale.take(sender="B", epoch=epoch, seq=2, after=[]).dead == [
                f"fenced {'B2' if not epoch else f'B2@{epoch}'}"
            ]


@effort(150)
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "evict"]), names, st.integers(0, 3)), max_size=25))
def test_the_view_of_a_log_is_the_merge_of_the_records_that_took_effect(records: list[tuple[str, str, int]]) -> None:
    tale = Tale().take(kind="create", members=["A", "B"])
    facts: list[View] = [view_of(["A", "B"])]
    for kind, name, epoch in records:
        about: dict[str, Any] = (
            {"member": [name, epoch], "cut": 0} if kind == "evict" else {"sender": name, "epoch": epoch}
        )
        if kind == "leave":
            about["last"] = 0
        tale.take(kind=kind, **about)
        if parsed(tale.kernel.ordered):
            facts.append({name: (epoch, IN if kind == "join" else OUT)})
    in_order: View = {}
    for fact in facts:
        in_order |= fact
    assert merge(*facts) == merge(*reversed(facts)) == in_order
    (group,) = tale.kernel._groups.values()
    assert {name: epoch for name, (epoch, is_in) in group.members.items() if is_in} == members(in_order)
