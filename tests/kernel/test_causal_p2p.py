"""`causal_p2p` (lecture notes, 2.2: SES): one test per claim, every vector, printed rules against rulings."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.orders.causal_p2p import CausalPointToPoint
from tests.kernel.feeding import Tale, parsed, split
from tests.kernel.histories import vectors

Stamp = dict[str, Any]


def stamp(name: str, to: str, seen: str, **sent: str) -> Stamp:
    """A message by its short name: `stamp("b1", "cd", "a2 b1", c="a1")` goes to c and d."""
    sender, seq = split(name)
    entries = {who: ids(text) for who, text in sent.items()}
    return {"sender": sender, "seq": seq, "to": list(to), "seen": ids(seen), "sent": entries}


def ids(text: str) -> list[list[Any]]:
    return [[split(name)[0], 0, split(name)[1]] for name in text.split()]


def say(tale: Tale, name: str, to: str, seen: str, **sent: str) -> list[str]:
    """What such a message releases."""
    return tale.take(**stamp(name, to, seen, **sent)).out


# ── vectors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def from_vector(given: dict[str, Any]) -> Stamp:
    entries = [[name, 0, seq] for name, seq in given["t"].items()]
    sent = {name: [[who, 0, seq] for who, seq in clock.items()] for name, clock in given["S"].items()}
    own = str(given["src"])
    return {
        "sender": own,
        "seq": given["t"][own],
        "to": list(map(str, given["dst"])),
        "seen": entries,
        "sent": sent,
    }


def test_vector_ses_1_is_delivered_as_it_says_and_a_member_stamps_like_that() -> None:
    (vector,) = vectors("ses")
    stamps = {given["mid"]: from_vector(given) for given in vector["stamps"]}
    tale = Tale("causal_p2p")
    names = {f"{one['sender']}{one['seq']}": mid for mid, one in stamps.items()}
    for step in vector["steps"]:
        tale.take(**stamps[step["in"]])
        delivered = [names[f"{one['sender']}{one['seq']}"] for one in parsed(tale.kernel.ordered)]
        assert delivered == step["deliver"]
    one, two = CausalPointToPoint.stamps_of("1"), CausalPointToPoint.stamps_of("2")
    m1, m2 = one.stamp(to=["3"]), one.stamp(to=["2"])
    two.observe(m2)
    m3 = two.stamp(to=["3"])
    for mid, made in (("m1", m1), ("m2", m2), ("m3", m3)):
        made["sent"].pop(made["sender"], None)  # the entry for oneself, which the document drops
        assert {name: made[name] for name in stamps[mid]} == stamps[mid]
    three = CausalPointToPoint.stamps_of("3")
    three.observe(m1)
    three.observe(m3)
    assert three.delivered == {(name, 0): seq for name, seq in vector["V3_final"].items()}


def test_vector_ses_2_the_other_destinations_of_a_message_are_learned_with_it() -> None:
    (vector,) = vectors("ses-multicast")
    one, two = CausalPointToPoint.stamps_of("1"), CausalPointToPoint.stamps_of("2")
    a = one.stamp(to=["2", "3"])
    two.observe(a)
    b = two.stamp(to=["3"])
    entries = {
        name: [[who, 0, seq] for who, seq in clock.items()] for name, clock in vector["b.S_with_codest_merge"].items()
    }
    assert {name: b["sent"][name] for name in entries} == entries
    tale = Tale("causal_p2p")
    assert tale.take(**b).out == []
    delivered = ["a" if name == "3:11" else "b" for name in tale.take(**a).out if name.startswith("3:")]
    assert delivered == vector["deliver"]


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_2_2_a_message_waits_for_what_was_sent_to_its_destination_and_for_nothing_else() -> None:
    tale = Tale("causal_p2p")
    assert say(tale, "b1", "c", "a2 b1", c="a1") == []
    assert tale.held == {"c:b1": ["a1"]}
    assert say(tale, "a2", "b", "a2", c="a1") == ["b:a2"]
    assert say(tale, "a1", "c", "a1") == ["c:a1", "c:b1"]


def test_every_destination_has_its_own_positions_and_its_name_in_the_record() -> None:
    tale = Tale("causal_p2p")
    say(tale, "a1", "cb", "a1")
    say(tale, "b1", "c", "b1")
    say(tale, "a2", "b", "a2", b="a1", c="a1")
    kernel = Holdback(order="causal_p2p")
    for at, one in enumerate([stamp("a1", "cb", "a1"), stamp("b1", "c", "b1"), stamp("a2", "b", "a2", b="a1")]):
        kernel.receive(json.dumps({"group": "g", **one}).encode(), offset=at)
    found = [(one["destination"], one["position"], one["sender"]) for one in parsed(kernel.ordered)]
    assert found == [("b", 1, "a"), ("c", 1, "a"), ("c", 2, "b"), ("b", 2, "a")]
    assert b'"status":"delivered","destination":"b","partition":0' in kernel.ordered[0]


@pytest.mark.parametrize("name", ["50%d", 'say "hi"', "grün\n", "%b%%"])
def test_a_destination_may_have_any_name(name: str) -> None:
    tale = Tale("causal_p2p").take(**{**stamp("a1", "", "a1"), "to": [name]})
    (record,) = parsed(tale.kernel.ordered)
    assert (record["destination"], record["position"], record["status"]) == (name, 1, "delivered")


def test_a_destination_named_twice_gets_one_copy_and_a_message_to_nobody_is_delivered_to_nobody() -> None:
    tale = Tale("causal_p2p")
    assert say(tale, "a1", "bb", "a1") == ["b:a1"]
    assert say(tale, "a2", "", "a2") == []
    assert (tale.dead, tale.held) == ([], {})
    say(tale, "a2", "", "a2")
    assert tale.kernel.duplicates == 1


def test_a_message_may_be_delivered_here_and_held_there_and_its_copies_are_known_meanwhile() -> None:
    tale = Tale("causal_p2p")
    assert say(tale, "a2", "bc", "a2", c="a1") == ["b:a2"]
    assert tale.held == {"c:a2": ["a1"]}
    assert say(tale, "a2", "bc", "a2", c="a1") == []
    assert tale.kernel.duplicates == 1
    say(tale, "a2", "b", "a2")
    assert tale.dead == ["equivocation a2"]
    assert say(tale, "a1", "c", "a1") == ["c:a1", "c:a2"]


def test_a_clock_grows_by_what_is_delivered_and_not_by_what_is_held() -> None:
    tale = Tale("causal_p2p")
    say(tale, "b1", "c", "a2 b1", c="a1")  # shows a2, but waits
    assert say(tale, "d1", "c", "a2 d1", c="a2") == []
    assert say(tale, "a1", "c", "a1") == ["c:a1", "c:b1", "c:d1"]


def test_among_what_is_ready_together_the_lowest_offset_goes_first_whatever_the_destination() -> None:
    tale = Tale("causal_p2p", group="g")
    tale.take(kind="create", options={"closed": True}, members=["z"])
    say(tale, "a1", "cb", "a1")
    say(tale, "b1", "b", "b1")
    say(tale, "a2", "c", "a2", c="a1")
    assert tale.take(kind="join", sender="a").out == ["a:join", "z:join", "b:a1", "c:a1", "c:a2"]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"to": None}, "missing_stamp"),
        ({"seen": None}, "missing_stamp"),
        ({"sent": None}, "missing_stamp"),
        ({"seen": []}, "bad_stamp"),
        ({"seen": [["a", 0, 2]]}, "bad_stamp"),
        ({"seen": [["a", 0, 1], ["a", 0, 1]]}, "bad_stamp"),
        ({"seen": [["a", 0, 1], ["b", 0, 100_001]]}, "clock_poison"),
        ({"to": [f"m{number}" for number in range(101)]}, "malformed"),
        ({"to": [""]}, "malformed"),
        ({"sent": {"b": [["a", 0, 1.0]]}}, "malformed"),
        ({"sent": [["b", 0, 1]]}, "malformed"),
    ],
)
def test_a_stamp_that_is_missing_wrong_or_poisoned_is_one_dead_letter_and_leaves_no_trace(
    change: Stamp, code: str
) -> None:
    tale = Tale("causal_p2p")
    fields = {**stamp("a1", "bc", "a1"), **change}
    tale.take(**{name: value for name, value in fields.items() if value is not None})
    assert [one.split()[0] for one in tale.dead] == [code]
    assert "destination" not in parsed(tale.kernel.dead)[0]
    assert say(tale, "a1", "b", "a1") == ["b:a1"]


def test_a_hundred_destinations_are_served() -> None:
    names = [f"m{number:02}" for number in range(100)]
    tale = Tale("causal_p2p").take(**{**stamp("a1", "", "a1"), "to": names})
    assert tale.out == [f"{name}:a1" for name in names]


def test_room_is_counted_in_places_over_all_destinations_together_and_a_refusal_delivers_nowhere() -> None:
    tale = Tale("causal_p2p", Limits(held_max=2))
    say(tale, "a2", "bc", "a2", b="a1", c="a1")
    assert say(tale, "d1", "de", "d1", e="a1") == []
    assert tale.dead == ["backpressure d1"]
    assert say(tale, "d1", "d", "d1", e="a1") == ["d:d1"]
    say(tale, "a1", "b", "a1")
    assert say(tale, "d2", "de", "d2", e="a5") == ["d:d2"]


# ── loss ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_given_up_on_takes_a_position_at_every_destination_named_so_far_and_lets_its_followers_go() -> None:
    tale = Tale("causal_p2p")
    say(tale, "a2", "d", "a2", b="a1", c="a1")
    assert say(tale, "b1", "cd", "a1 b1", b="a1", c="a1") == ["d:b1"]
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == ["c:(a1)", "d:(a1)", "c:b1"]
    say(tale, "a1", "bc", "a1")
    assert tale.dead == ["late a1"]
    assert say(tale, "d1", "b", "a1 d1", b="a1", c="a1") == ["b:d1"], "nor does a destination that is named later"


def test_its_turn_comes_when_all_earlier_ones_of_its_sender_are_settled() -> None:
    tale = Tale("causal_p2p")
    say(tale, "a2", "b", "a2", b="a1")
    assert tale.take(kind="abandon", ids=[["a", 0, 3, 3]]).out == []
    assert say(tale, "a1", "bc", "a1") == ["b:a1", "b:a2", "c:a1", "b:(a3)", "c:(a3)"]


def test_who_followed_a_lost_message_does_not_wait_for_all_that_this_one_had_seen() -> None:
    # a1 had seen d1, which went elsewhere; no message at b can ever merge it, because a1 left no stamp.
    tale = Tale("causal_p2p")
    assert say(tale, "d1", "a", "d1") == ["a:d1"]
    assert say(tale, "c1", "b", "d1 a1 c1", b="d1 a1") == []
    assert tale.held == {"b:c1": ["a1"]}
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == ["a:(a1)", "b:(a1)", "b:c1"]


def test_held_messages_that_are_given_up_on_are_dead_letters_where_they_were_held_and_nowhere_else() -> None:
    tale = Tale("causal_p2p")
    say(tale, "a2", "bcd", "a2", b="a1", c="a1")  # d gets it
    tale.take(kind="abandon", ids=[["a", 0, 2, 2]])
    assert (tale.dead, tale.out) == (["abandoned b:a2", "abandoned c:a2"], [])
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == ["b:(a1)", "c:(a1)", "d:(a1)", "b:(a2)", "c:(a2)"]
    assert tale.kernel.held_growth == 0


def test_giving_up_asks_for_as_many_places_as_there_are_destinations() -> None:
    tale = Tale("causal_p2p")
    for number in range(11):
        tale.take(**{**stamp(f"a{number + 1}", "", f"a{number + 1}"), "to": [f"m{number}"]})
    tale.take(kind="abandon", ids=[["z", 0, 1, 100_000]])
    assert tale.dead == ["seq_jump"]


# ── membership ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_membership_records_take_a_position_at_every_member_and_destination_so_far() -> None:
    tale = Tale()
    tale.take(kind="create", options={"order": "causal_p2p"}, members=["a", "b"])
    assert tale.out == ["a:create", "b:create"]
    assert say(tale, "a1", "c", "a1") == ["c:a1"]
    assert tale.take(kind="join", sender="d").out == ["a:join", "b:join", "c:join", "d:join"]
    assert tale.take(kind="leave", sender="b", last=0).out == ["a:leave", "b:leave", "c:leave", "d:leave"]
    assert [one["position"] for one in parsed(tale.kernel.ordered)] == [3, 3, 3, 2]


def test_in_a_closed_group_a_stranger_s_message_is_held_for_all_its_destinations_until_the_join() -> None:
    tale = Tale()
    tale.take(kind="create", options={"order": "causal_p2p", "closed": True}, members=["b"])
    say(tale, "a1", "bc", "a1")
    assert tale.held == {"b:a1": ["a"], "c:a1": ["a"]}
    assert tale.take(kind="join", sender="a").out == ["a:join", "b:join", "b:a1", "c:a1"]
    say(tale, "z1", "bc", "z1")
    tale.take(kind="abandon", ids=[["z", 0, 1, 1]])
    assert tale.dead == ["not_member b:z1", "not_member c:z1"]


# ── strangers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def closed(*members: str, limits: Limits | None = None) -> Tale:
    """A closed group of these members."""
    options = {"order": "causal_p2p", "closed": True}
    return Tale(limits=limits).take(kind="create", options=options, members=list(members))


def invade(tale: Tale, messages: int) -> None:
    """A stranger names a hundred others in each of so many messages."""
    for seq in range(1, messages + 1):
        to = [f"m{seq}-{number}" for number in range(100)]
        tale.take(sender="x", seq=seq, to=to, seen=[["x", 0, seq]], sent={})
        assert tale.dead == []


def test_a_stranger_does_not_decide_how_many_records_a_join_writes() -> None:
    tale = closed("a", "b")
    invade(tale, 400)
    assert tale.take(kind="join", sender="c").out == ["a:join", "b:join", "c:join"]
    joined = tale.take(kind="join", sender="x").out
    assert joined[:4] == ["a:join", "b:join", "c:join", "x:join"]
    assert sorted(joined[4:]) == sorted(f"m{seq}-{number}:x{seq}" for seq in range(1, 401) for number in range(100))
    assert len(tale.take(kind="leave", sender="x", last=400).out) == 4 + 40_000


def test_a_stranger_cannot_have_a_rightful_abandon_refused() -> None:
    tale = closed("a", "b")
    invade(tale, 101)
    assert say(tale, "a1", "b", "a1") == ["b:a1"]
    tale.take(kind="abandon", ids=[["b", 0, 1, 100]])
    assert (tale.dead, tale.out) == ([], [f"b:(b{seq})" for seq in range(1, 101)])


def test_what_a_stranger_names_counts_from_its_join_on_and_never_if_it_is_given_up_on() -> None:
    tale = closed("a")
    say(tale, "x1", "bc", "x1")
    say(tale, "y1", "de", "y1")
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == []
    assert tale.take(kind="abandon", ids=[["y", 0, 1, 1]]).dead == ["not_member d:y1", "not_member e:y1"]
    assert tale.out == []
    assert tale.take(kind="join", sender="y").out == ["a:join", "y:join"]
    assert tale.take(kind="evict", member=["y", 0], cut=1).out == ["a:evict", "y:evict"]
    assert tale.take(kind="join", sender="x").out == ["a:join", "x:join", "y:join", "b:x1", "c:x1"]
    assert tale.take(kind="abandon", ids=[["a", 0, 2, 2]]).out == ["b:(a2)", "c:(a2)"]
    assert tale.take(kind="leave", sender="x", last=1).out == [f"{name}:leave" for name in "abcxy"]


def test_what_a_stranger_of_an_older_epoch_named_never_counts() -> None:
    tale = closed("a")
    say(tale, "x1", "bc", "x1")
    assert tale.take(kind="join", sender="x", epoch=1).out == ["a:join", "x:join"]
    assert tale.dead == ["fenced b:x1", "fenced c:x1"]
    assert tale.take(kind="leave", sender="x", epoch=1, last=0).out == ["a:leave", "x:leave"]


@pytest.mark.parametrize("members", [[], ["a"]])
@pytest.mark.parametrize("to", ["", "b", "bc"])
def test_the_places_of_a_stranger_s_message_are_counted_also_after_a_restart(members: list[str], to: str) -> None:
    places = max(1, len(to))
    tale = closed(*members, limits=Limits(held_max=places))
    say(tale, "x1", to, "x1")
    tale.restart()
    say(tale, "y1", "b", "y1")
    assert tale.dead == ["backpressure y1"]
    joins = [f"{at}:join" for at in [*members, "x"]]
    assert tale.take(kind="join", sender="x").out == [*joins, *(f"{at}:x1" for at in to)]
    tale.restart()
    say(tale, "y1", to, "y1")
    assert tale.dead == []
    assert len(tale.held) == places


STORED = (
    "AgAAAAAADbuqmqpjYXVzYWxfcDJwAACRmaF6AAIAxAAAzwAf////////wMCSmAEKAMRceyJncm91cCI6ICJnIiwgInNlbmRlciI6ICJ6Iiwg"
    "InNlcSI6IDEsICJ0byI6IFsiYiIsICJjIl0sICJzZWVuIjogW1sieiIsIDAsIDFdXSwgInNlbnQiOiB7fX3AkqF6AMDAmAIUAMRpeyJncm91"
    "cCI6ICJnIiwgInNlbmRlciI6ICJ6IiwgInNlcSI6IDIsICJ0byI6IFsiYyJdLCAic2VlbiI6IFtbInoiLCAwLCAyXV0sICJzZW50IjogeyJj"
    "IjogW1sieiIsIDAsIDFdXX19wJKhegDAwIKlb3JkZXKqY2F1c2FsX3AycKZjbG9zZWTDgaFikgDDlMKQkpShYsMBkJShY8MAkJLAwIDA"
)
"""The group of `b` with z:1 to b and c, and z:2 to c, of the stranger z: stored when c was a destination at once."""


def test_a_state_in_which_a_stranger_s_names_are_destinations_already_goes_on() -> None:
    tale = Tale()
    tale.kernel.load({b"g": base64.b64decode(STORED)})
    tale.offset = 3
    assert tale.held == {"b:z1": ["z"], "c:z1": ["z"], "c:z2": ["z"]}
    assert tale.restart().take(kind="join", sender="d").out == ["b:join", "c:join", "d:join"]
    assert tale.take(kind="join", sender="z").out == ["b:join", "c:join", "d:join", "z:join", "b:z1", "c:z1", "c:z2"]
    assert tale.kernel._groups["g"].release.places_held == 0  # type: ignore[attr-defined]


def test_a_fence_ends_what_is_held_above_it_at_each_destination() -> None:
    tale = Tale("causal_p2p")
    say(tale, "a2", "bc", "a2", b="a1", c="a1")
    assert tale.take(kind="evict", member=["a", 0], cut=1).out == ["b:evict", "c:evict"]
    assert tale.dead == ["fenced b:a2", "fenced c:a2"]
    assert tale.held == {}


def test_what_a_fence_cuts_off_on_its_way_to_some_is_settled_so_that_nobody_there_waits_for_ever() -> None:
    tale = Tale("causal_p2p")
    say(tale, "x2", "c", "x2", c="x1")
    say(tale, "a1", "bc", "a1", c="x1")  # b has got it
    say(tale, "d1", "c", "a1 d1", c="a1")
    assert tale.take(kind="evict", member=["a", 0], cut=0).out == ["b:evict", "c:evict", "c:d1"]
    assert tale.dead == ["fenced c:a1"]
    say(tale, "a1", "bc", "a1", c="x1")
    assert tale.kernel.duplicates == 1


# ── effort ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_entry_is_looked_at_once_however_often_its_message_is_woken() -> None:
    names = [f"s{number:03}" for number in range(200)]
    everything = [[name, 0, 1] for name in names]
    tale = Tale("causal_p2p").take(sender="z", seq=1, to=["d"], seen=[["z", 0, 1]], sent={"d": everything})
    (held,) = tale.kernel._groups["g"].held.values()
    assert held.message is not None
    for left, name in reversed(list(enumerate(names))):
        tale.take(sender=name, seq=1, to=["d"], seen=[[name, 0, 1]], sent={})
        assert len(held.message.sent["d"]) <= left  # type: ignore[index]
    assert tale.out == ["d:s0001", "d:z1"]
