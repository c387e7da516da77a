"""Groups with keys: forged records, who may send what, and how keys change."""

from __future__ import annotations

import json
import random
from collections import Counter
from operator import itemgetter
from typing import Any

import pytest

from precede.udfs.engine.group import Shared
from precede.udfs.engine.outbox import BytesOutbox
from precede.udfs.engine.snapshot import restore, snapshot
from precede.udfs.limits import Limits, Patience
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import EPOCH_MAX, Options
from precede.udfs.records.signatures import TAIL_BYTES, sign
from tests.kernel.feeding import Tale, feed, parsed
from tests.records import conversation
from tests.signing import private, public, public_bytes, publics

STAMPS: dict[str, Any] = {
    "causal": {"seen": [["A", 0, 1]]},
    "lamport": {"time": 1},
    "two_clock": {"time": 1, "clock_ms": 1},
}


def created(
    *words: str, members: tuple[str, ...] = ("A", "B"), patience: Patience | None = None, **options: Any
) -> Tale:
    tale = Tale(patience=patience)
    tale.take(kind="create", options={**options, "keys": publics(*words)}, members=members)
    assert tale.out in (["create"], [f"{name}:create" for name in members])
    return tale


def reason(tale: Tale) -> str:
    return str(parsed(tale.kernel.dead)[0]["reason"])


# ── forged records ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS)
def test_in_every_order_the_sender_s_signature_is_asked_for(order: str) -> None:
    tale = created("A", "B", order=order)
    stamp = {"sender": "A", "seq": 1, "after": [], "to": ["B"], "sent": {}, **STAMPS.get(order, {})}
    if order == "causal_p2p":
        stamp["seen"] = [["A", 0, 1]]
        stamp["sent"] = {"A": [["A", 0, 1]]}
    assert tale.take(**stamp).dead == ["forged A1"]
    assert "nothing unsigned" in reason(tale)
    assert tale.take(**stamp, by="B").dead == ["forged A1"]
    assert "'A'" in reason(tale)
    tale.take(**stamp, by="A")
    assert tale.dead == []


def test_a_forged_record_leaves_no_trace() -> None:
    tale, clean = created("A", "B"), created("A", "B")
    before = dict(tale.kernel.dump())
    for by in (None, "B", "C"):
        tale.say("A1", by=by)
        tale.say("A100000", by=by)
        tale.say("C1", by=by)
        tale.take(kind="heartbeat", sender="A", seq=9, by=by)
        tale.take(kind="leave", sender="A", last=0, by=by)
        tale.take(kind="create", options={"order": "fifo"}, by=by)
        tale.take(kind="join", sender="A", epoch=7, key=public("C"), by=by)
        assert len(tale.dead) == 1
    assert dict(tale.kernel.dump()) == before
    clean.offset = tale.offset
    assert tale.say("A1", by="A").kernel.ordered == clean.say("A1", by="A").kernel.ordered


def test_the_signature_is_judged_before_all_but_key_and_partition() -> None:
    tale = created("A", "B").say("A1", by="A")
    assert tale.say("A1").dead == ["forged A1"], "a copy with another signature is no exact copy"
    assert tale.say("A1", "A1").dead == ["forged A1"], "before self_parent and equivocation"
    assert tale.take(sender="A", seq=2).dead == ["forged A2"], "before missing_stamp"
    assert tale.say("A2", partition=1).dead == ["wrong_partition A2"]
    wrong_key = json.dumps({"group": "h", "sender": "A", "seq": 2, "after": []}).encode()
    assert tale.raw(wrong_key, key=b"g").dead == ["wrong_key A2"]
    assert tale.raw(b'{"group":"g","sender":"A","seq":2,"signature":5}').dead == ["malformed A2"]


def test_an_exact_copy_of_a_signed_message_is_dropped_and_counted() -> None:
    tale = created("A").say("A1", by="A").say("A1", by="A")
    assert (tale.out, tale.dead, tale.kernel.duplicates) == ([], [], 1)


def test_a_signed_record_is_delivered_byte_for_byte_with_its_signature() -> None:
    tale = created("A")
    record = sign(b'{"group":"g", "sender":"A","seq":1,"after":[],"data":"\xc3\xbc"}', private("A"))
    tale.raw(b" \r\n" + record + b"\n ")
    assert tale.kernel.ordered[0].startswith(record[:-1] + b',"position":2,')


def test_white_space_inside_the_object_after_the_signature_is_forged() -> None:
    tale = created("A")
    record = sign(b'{"group":"g","sender":"A","seq":1,"after":[]}', private("A"))
    assert tale.raw(record[:-1] + b" }").dead == ["forged A1"]


def test_who_has_no_key_cannot_speak() -> None:
    tale = created("A", members=("A", "B"))
    assert tale.say("B1", by="B").dead == ["forged B1"]
    assert "no key of 'B'" in reason(tale)


def test_a_group_without_keys_carries_signatures_unread() -> None:
    tale = Tale().say("A1", signature="nonsense")
    assert tale.out == ["A1"]
    assert tale.say("B1", by="C").out == ["B1"]
    assert tale.take(kind="join", sender="C", key="nonsense").out == ["join"]
    assert tale.say("C1").out == ["C1"]


# ── invalid keys ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keys", [{}, {"A": ""}, {"A": "b64"}, {"A": public("A"), "B": public("B")[:-1]}])
def test_a_create_with_a_key_that_is_none_is_bad_stamp_and_leaves_no_trace(keys: dict[str, str]) -> None:
    tale = Tale().take(kind="create", options={"keys": keys}, members=["A"])
    assert tale.dead == ["bad_stamp"]
    assert tale.kernel.dump() == {}
    assert tale.say("A1").out == ["A1"], "so it is a group without a `create` record"


@pytest.mark.parametrize("service", [(), ("precede",)])
@pytest.mark.parametrize("closed", [False, True])
def test_a_join_with_a_key_that_is_none_is_bad_stamp_where_it_is_signed_and_else_forged(
    closed: bool, service: tuple[str, ...]
) -> None:
    tale = created("A", *service, closed=closed)
    none: dict[str, Any] = {"kind": "join", "epoch": 1, "key": "b64"}
    assert tale.take(**none, sender="A", by="A").dead == ["bad_stamp"]
    for word in ("stranger", None):
        assert tale.take(**none, sender="A", by=word).dead == ["forged"]
        assert tale.take(**none, sender="B", by=word).dead == ["forged"]
        assert tale.take(**none, sender="precede", by=word).dead == ["forged"]
    assert tale.take(**none, sender="B", by="B").dead == ["forged"], "its key can verify nothing"
    if service:
        assert tale.take(**none, sender="B", by="precede").dead == ["bad_stamp"]
        assert tale.take(**none, sender="A", by="precede").dead == ["bad_stamp"]
    assert tale.say("A1", by="A").out == ["A1"]


def test_a_later_create_is_forged_unless_its_sender_signed_it_and_bad_stamp_then() -> None:
    tale = created("A", "precede")
    assert tale.take(kind="create").dead == ["forged"]
    assert tale.take(kind="create", by="A").dead == ["forged"], "a record without a sender is the service's"
    assert tale.take(kind="create", sender="A", by="precede").dead == ["forged"]
    assert tale.take(kind="create", by="precede").dead == ["bad_stamp"]
    assert tale.take(kind="create", sender="A", by="A").dead == ["bad_stamp"]


# ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_newcomer_of_an_open_group_proves_that_the_key_it_brings_is_its_own() -> None:
    tale = created("A")
    assert tale.take(kind="join", sender="C", key=public("C"), by="A").dead == ["forged"]
    assert tale.take(kind="join", sender="C", by="C").dead == ["forged"]
    assert tale.take(kind="join", sender="C", key=public("C"), by="C").out == ["join"]
    assert tale.say("C1", by="C").out == ["C1"]


def test_a_closed_group_without_service_lets_nobody_new_in() -> None:
    tale = created("A", "B", closed=True)
    assert tale.take(kind="join", sender="C", key=public("C"), by="C").dead == ["forged"]
    assert "newcomers" in reason(tale)


def test_the_service_may_let_in_whom_it_likes_with_the_key_it_names() -> None:
    tale = created("A", "precede", closed=True)
    assert tale.take(kind="join", sender="C", key=public("C"), by="precede").out == ["join"]
    assert tale.say("C1", by="C").out == ["C1"]
    assert tale.take(kind="join", sender="D", by="precede").dead == ["forged"], "without a key it could never send"


def test_nobody_becomes_the_service_by_joining() -> None:
    tale = created("A")
    assert tale.take(kind="join", sender="precede", key=public("C"), by="C").dead == ["forged"]
    assert tale.take(kind="evict", member=["A", 0], cut=0, by="C").dead == ["forged"]


def test_coming_back_without_a_new_key_keeps_the_old_one() -> None:
    tale = created("A").take(kind="join", sender="A", epoch=1, by="A")
    assert tale.out == ["join"]
    assert tale.say("A1", epoch=1, by="A").out == ["A1@1"]


def test_a_refused_join_brings_no_key() -> None:
    tale = created("A").take(kind="join", sender="A", epoch=0, key=public("new"), by="A")
    assert tale.dead == ["bad_stamp"]
    assert tale.say("A1", by="new").dead == ["forged A1"]
    assert tale.say("A1", by="A").out == ["A1"]


def test_the_service_key_can_be_changed_and_the_old_one_is_worth_nothing_then() -> None:
    tale = created("A", "precede").take(kind="join", sender="precede", epoch=1, key=public("new"), by="precede")
    assert tale.out == ["join"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]], by="precede").dead == ["forged"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]], by="new").out == ["(A1)"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_service_that_changes_its_key_keeps_nobody_waiting_and_is_sent_nothing(order: str) -> None:
    tale = created("A", "B", "precede", order=order)
    for epoch, (old, new) in enumerate([("precede", "second"), ("second", "third")], start=1):
        tale.take(kind="join", sender="precede", epoch=epoch, key=public(new), by=old)
        assert tale.out == (["A:join", "B:join"] if order == "causal_p2p" else ["join"])
    members = {name: ORDERS[order].stamps_of(name) for name in "AB"}
    said: list[dict[str, Any]] = []
    for at in range(6):
        after = [(said[-1]["sender"], 0, said[-1]["seq"])] if said else []
        stamp = members["AB"[at % 2]].stamp(after=after, to=["A", "B"], clock_ms=10 * at)
        said.append({**stamp, "to": ["A", "B"]})
        for member in members.values():
            member.observe(said[-1])
        tale.take(**said[-1], by="AB"[at % 2])
        assert tale.dead == []
    for name, member in members.items():
        tale.take(**member.heartbeat(clock_ms=1_000), by=name)
        assert tale.dead == []
    assert tale.held == {}


def test_a_service_that_is_a_member_stays_one_with_its_new_key() -> None:
    tale = created("A", "precede", members=("A", "precede"), order="lamport")
    tale.take(sender="A", seq=1, time=5, by="A")
    tale.take(kind="join", sender="precede", epoch=1, key=public("new"), by="precede")
    assert tale.held == {"A1": ["precede"]}
    assert tale.take(sender="precede", epoch=1, seq=1, time=6, by="new").out == ["A1"]


def test_who_lost_its_key_to_a_thief_is_given_a_new_one_by_the_service() -> None:
    tale = created("A", "precede").take(kind="join", sender="A", epoch=1, key=public("thief"), by="A")
    assert tale.take(kind="join", sender="A", epoch=2, key=public("new"), by="precede").out == ["join"]
    for thief in ("A", "thief"):
        assert tale.take(kind="join", sender="A", epoch=3, key=public("thief"), by=thief).dead == ["forged"]
        assert tale.say("A1", epoch=2, by=thief).dead == ["forged A1@2"]
    assert tale.say("A1", epoch=2, by="new").out == ["A1@2"]


def test_a_thief_who_joins_with_the_largest_epoch_uses_the_name_up_and_is_put_out_with_it() -> None:
    tale = created("A", "precede").take(kind="join", sender="A", epoch=EPOCH_MAX, key=public("thief"), by="A")
    for epoch in (1, EPOCH_MAX):
        tale.take(kind="join", sender="A", epoch=epoch, key=public("new"), by="precede")
        assert tale.dead == ["bad_stamp" if epoch == EPOCH_MAX else "fenced"]
    assert tale.take(kind="evict", member=["A", EPOCH_MAX], cut=0, by="precede").out == ["evict"]
    assert tale.say("A1", epoch=EPOCH_MAX, by="thief").dead[0].startswith("fenced")
    assert tale.take(kind="join", sender="A2", key=public("A2"), by="A2").out == ["join"]


# ── evicting and abandoning ───────────────────────────────────────────────────────────────────────────────────────────


def test_with_a_service_only_it_puts_others_out_and_gives_up_on_what_they_said() -> None:
    tale = created("A", "B", "precede")
    names: list[dict[str, Any]] = [{}, {"sender": "B"}, {"sender": "precede"}]
    for name in names:
        assert tale.take(kind="evict", member=["A", 0], cut=0, **name, by="B").dead == ["forged"]
        assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]], **name, by="B").dead == ["forged"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]], by="precede").out == ["(A1)"]
    assert tale.take(kind="evict", sender="precede", member=["A", 0], cut=1, by="precede").out == ["evict"]


def test_a_sender_may_always_give_up_on_its_own() -> None:
    tale = created("A", "B", "precede")
    mixed = [["B", 0, 1, 1], ["A", 0, 1, 1]]
    assert tale.take(kind="abandon", sender="B", ids=mixed, by="B").dead == ["forged"]
    assert tale.take(kind="abandon", sender="B", ids=mixed[:1], by="B").out == ["(B1)"]


@pytest.mark.parametrize("service", [(), ("precede",)])
@pytest.mark.parametrize("order", ORDERS)
def test_who_is_out_gives_up_on_nothing_any_more_and_nobody_on_an_epoch_never_seen(
    order: str, service: tuple[str, ...]
) -> None:
    tale = created("A", "B", "C", *service, members=("A", "B", "C"), order=order, closed=True)
    other = service[0] if service else "A"
    own: dict[str, Any] = {"kind": "abandon", "sender": "B"}
    tale.take(**own, ids=[["B", 7, 1, 100]], by="B")
    assert tale.dead == ["forged"]
    assert "epoch" in reason(tale)
    assert tale.take(**own, ids=[["B", 0, 1, 1]], by="B").dead == []
    tale.take(kind="evict", sender=other, member=["B", 0], cut=3, by=other)
    tale.take(kind="leave", sender="C", last=3, by="C")
    for name in "BC":
        for ids in ([[name, 0, 2, 3]], [[name, 0, 4, 100]], [[name, 1, 1, 100]]):
            tale.take(kind="abandon", sender=name, ids=ids, by=name)
            assert tale.dead == ["forged"]
            assert "is out" in reason(tale)
        assert tale.take(kind="abandon", sender=other, ids=[[name, 0, 2, 3]], by=other).dead == []
    tale.take(kind="join", sender="B", epoch=1, key=public("B"), time=9, by=other if service else "B")
    assert tale.dead == []
    assert tale.take(**own, ids=[["B", 1, 1, 1]], by="B").dead == [], "a member that has returned may"


def test_without_a_service_members_are_equals_until_they_are_out() -> None:
    tale = created("A", "B")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]], by="B").dead == ["forged"], "it must name its sender"
    assert tale.take(kind="abandon", sender="B", ids=[["A", 0, 1, 1]], by="B").out == ["(A1)"]
    assert tale.take(kind="evict", sender="B", member=["A", 0], cut=1, by="B").out == ["evict"]
    assert tale.take(kind="evict", sender="A", member=["B", 0], cut=0, by="A").dead == ["forged"]
    assert tale.take(kind="abandon", sender="A", ids=[["B", 0, 1, 1]], by="A").dead == ["forged"]


# ── saving ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keys_go_through_snapshots_at_any_place() -> None:
    log: list[tuple[bytes, bytes, int, int, int]] = []

    def add(by: str | None, **fields: Any) -> None:
        record = json.dumps({"group": "g", **fields}).encode()
        log.append((record if by is None else sign(record, private(by)), b"g", 0, len(log), len(log)))

    add(None, kind="create", options={"keys": publics("A", "precede"), "order": "fifo"}, members=["A"])
    add("A", sender="A", seq=1)
    add("A", sender="A", seq=3)
    add("A", kind="join", sender="A", epoch=1, key=public("second"))
    add("second", kind="join", sender="A", epoch=4, key=public("third"))
    add("B", kind="join", sender="B", epoch=2, key=public("B"))
    for by in ("A", "second", "third", "B"):
        add(by, sender="A", seq=2)
        add(by, sender="A", epoch=1, seq=1)
        add(by, sender="A", epoch=4, seq=1)
        add(by, sender="B", epoch=2, seq=1)
        add(by, kind="join", sender="A", epoch=9)
    whole = feed(log)
    assert len(whole.ordered) + len(whole.dead) + whole.duplicates + len(whole.held) == len(log)
    assert {record["code"] for record in parsed(whole.dead)} == {"forged", "fenced"}
    for cut in range(1, len(log)):
        assert feed(log, cuts=[cut]) == whole
    assert feed(log, cuts=range(len(log))) == whole


@pytest.mark.parametrize("cuts", [(), range(2_000)])
def test_of_a_sender_the_last_thousand_keys_are_kept(cuts: range) -> None:
    words = [f"key {epoch}" for epoch in range(1_100)]
    log: list[tuple[bytes, bytes, int, int, int]] = []

    def add(by: str | None, **fields: Any) -> None:
        record = json.dumps({"group": "g", **fields}).encode()
        log.append((record if by is None else sign(record, private(by)), b"g", 0, len(log), len(log)))

    add(None, kind="create", options={"keys": {"A": public(words[0])}, "order": "total"}, members=["A"])
    add(words[0], sender="A", seq=1)
    for epoch in range(1, 1_100):
        add(words[epoch - 1], kind="join", sender="A", epoch=epoch, key=public(words[epoch]))
        add(words[epoch], sender="A", epoch=epoch, seq=1)
    length = len(log)
    for epoch in (0, 99, 100, 1_099):
        add(words[epoch], sender="A", epoch=epoch, seq=2)
    outcome = feed(log, cuts=[cut for cut in cuts if cut % 300 == 299])
    assert len(outcome.ordered) == length + 1
    assert [letter["code"] for letter in parsed(outcome.dead)] == ["forged", "forged", "fenced"]


def test_a_key_in_an_old_state_that_is_none_lets_nobody_speak() -> None:
    group = restore(b"g", created("A").kernel.dump()[b"g"], Shared(Limits(), ORDERS, BytesOutbox()))
    group.options = Options(keys={"A": "b64"})  # as a precede that did not read keys would have kept it
    tale = Tale()
    tale.kernel.load({b"g": snapshot(group, None)})
    assert tale.say("A1", by="A").dead == ["forged A1"]


# ── under attack ──────────────────────────────────────────────────────────────────────────────────────────────────────


def forgeries(chance: random.Random, signed: list[bytes]) -> bytes:
    """A record made from records in the log, without the key of any member."""
    one, other = chance.choice(signed), chance.choice(signed)
    at = chance.randrange(len(one))
    return chance.choice(
        [
            one[:-TAIL_BYTES] + b"}",
            one[:-TAIL_BYTES] + other[-TAIL_BYTES:] if one != other else b"{}",
            one[:at] + bytes((one[at] ^ (1 << chance.randrange(8)),)) + one[at + 1 :],
            one[:at] + one[at + 1 :],
            sign(one[:-TAIL_BYTES] + b"}", private("attacker")),
            sign(one, private("attacker")),
            one[:-1] + b',"data":"twice"}',
            one.replace(b'"seq":', b'"epoch":7,"seq":', 1),
            sign(
                b'{"group":"group-0","kind":"join","sender":"a","epoch":1,"key":"%b"}' % public("attacker").encode(),
                private("attacker"),
            ),
            sign(b'{"group":"group-0","kind":"abandon","ids":[["a",0,1,9]]}', private("attacker")),
            sign(b'{"group":"group-0","kind":"evict","member":["a",0],"cut":0}', private("attacker")),
            b'{"group":"group-0","kind":"heartbeat","sender":"a","seq":99}',
        ]
    )


@pytest.mark.parametrize("seed", range(6))
def test_without_a_member_s_key_nobody_changes_a_byte_of_what_is_delivered(seed: int) -> None:
    chance = random.Random(seed)
    create = {"group": "group-0", "kind": "create", "members": ["a", "b", "c"]}
    begin = json.dumps(create | {"options": {"keys": publics("a", "b", "c", "precede")}}).encode()
    honest = [(b"group-0", begin)]
    for key, value in conversation(120, groups=1, seed=seed):
        honest.append((key, sign(value, private(json.loads(value)["sender"]))))
    signed = [value for _, value in honest[1:]]
    calm = [(value, key, 0, at * 10, at) for at, (key, value) in enumerate(honest)]
    noise = [
        (forgeries(chance, signed), b"group-0", 0, at * 10 + 1 + number, at)
        for at in range(len(honest))
        for number in range(chance.randrange(3))
    ]
    attacked = feed(sorted([*calm, *noise], key=itemgetter(3)))
    undisturbed = feed(calm)
    assert attacked.ordered == undisturbed.ordered
    assert (attacked.held, attacked.blobs, attacked.duplicates) == (
        undisturbed.held,
        undisturbed.blobs,
        undisturbed.duplicates,
    )
    codes = Counter(letter["code"] for letter in parsed(attacked.dead))
    assert set(codes) <= {"forged", "malformed", "wrong_key"}
    assert codes["forged"] > 50
    assert sum(codes.values()) == len(noise)


# ── the job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("service", [(), ("precede",)])
def test_the_job_writes_nothing_where_nobody_would_believe_it(service: tuple[str, ...], has_key: bool) -> None:
    patience = Patience(service_key=public_bytes("precede") if has_key else None)
    lacking = created("A", "B", *service, patience=patience, give_up_ms=100).say("B1", "A1", by="B")
    silent = created("A", "B", *service, patience=patience, order="lamport").take(sender="B", seq=1, time=5, by="B")
    told = False
    kinds: set[str] = set()
    for tale in (lacking, silent):
        for _ in range(20):
            tale.offset += 100_000
            tale.raw(b'{"kind":"tick"}', key=None)
            kinds |= {json.loads(own.value)["kind"] for own in tale.kernel.own if own.topic == "raw"}
            told = told or any("`service_key`" in said for said in tale.own)
    assert kinds == ({"abandon", "evict"} if service and has_key else set())
    assert told is (bool(service) and not has_key)
