"""The wire format, rule by rule (contract, sections 2, 4 and 5)."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.records.strict import Malformed, read_strict
from precede.udfs.records.wire import read
from tests.kernel import judge
from tests.kernel.feeding import Tale, parsed

GOOD = b'{"group":"g","sender":"a","seq":1,"after":[["b",0,2]],"data":{"x":[1,2]}}'


def with_(**fields: Any) -> bytes:
    """A good message with these fields set; None removes a field."""
    record: dict[str, Any] = {"group": "g", "sender": "a", "seq": 1, "after": []} | fields
    return json.dumps({name: value for name, value in record.items() if value is not None}).encode()


def verdict(value: bytes) -> str:
    """`good` or `malformed`; the fast reader, the strict reader and the judge must agree."""
    verdicts = {"judge": "malformed" if judge.read(value) is None else "good"}
    for name, reader in (("fast", read), ("strict", read_strict)):
        try:
            reader(value, Limits())
            verdicts[name] = "good"
        except Malformed as error:
            verdicts[name] = "malformed" if error.reason.endswith(".") else error.reason
    assert len(set(verdicts.values())) == 1, f"{value[:300]!r}: {verdicts}"
    return verdicts["fast"]


MALFORMED = {
    "nothing at all": b"",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "an array": b"[" + GOOD + b"]",
    "a string": b'"group"',
    "two objects": GOOD + GOOD,
    "something after the object": GOOD + b" x",
    "a brace missing": GOOD[:-1],
    "a comma too many": GOOD[:-1] + b",}",
    "a comma missing": b'{"group":"g" "sender":"a","seq":1}',
    "single quotes": b"{'group':'g','sender':'a','seq':1}",
    "a comment": b'{"group":"g",/**/"sender":"a","seq":1}',
    "NaN": with_(data=0).replace(b"0}", b"NaN}"),
    "Infinity": with_(data=0).replace(b"0}", b"Infinity}"),
    "minus Infinity": with_(data=0).replace(b"0}", b"-Infinity}"),
    "a leading zero": with_(data=0).replace(b"0}", b"01}"),
    "a plus sign": with_(data=0).replace(b"0}", b"+1}"),
    "a point without digits": with_(data=0).replace(b"0}", b"1.}"),
    "a control character in a string": with_(data="x").replace(b"x", b"\x01"),
    "a line break in a string": with_(data="x").replace(b"x", b"\n"),
    "an unknown escape": with_(data="x").replace(b"x", b"\\x"),
    "half an escape": with_(data="x").replace(b"x", b"\\u12"),
    "a form feed as white space": b'{\x0c"group":"g","sender":"a","seq":1}',
    "a no-break space as white space": b'{\xc2\xa0"group":"g","sender":"a","seq":1}',
    "a capital literal": with_(data=0).replace(b"0}", b"True}"),
    "a byte that is not UTF-8, in data": with_(data="x").replace(b"x", b"\xff"),
    "a byte that is not UTF-8, deep in data": with_(data=[{"y": ["x"]}]).replace(b"x", b"\xc3("),
    "a byte that is not UTF-8, in a name inside data": with_(data={"x": 1}).replace(b"x", b"\xe2\x82"),
    "an overlong encoding": with_(data="x").replace(b"x", b"\xc0\xaf"),
    "an encoded surrogate": with_(data="x").replace(b"x", b"\xed\xa0\x80"),
    "a code point above the last": with_(data="x").replace(b"x", b"\xf4\x90\x80\x80"),
    "an unknown field": with_(colour="red"),
    "an empty name": with_(**{"": 1}),
    "a field of another kind": with_(last=1),
    "a message with members": with_(members=["b"]),
    "a heartbeat with data": with_(kind="heartbeat", after=None, data=1),
    "a heartbeat with after": with_(kind="heartbeat"),
    "an unknown kind": with_(kind="shout"),
    "a kind that is no string": with_(kind=1),
    "no group": with_(group=None),
    "no sender": with_(sender=None),
    "no seq": with_(seq=None),
    "a heartbeat without seq": with_(kind="heartbeat", after=None, seq=None),
    "version 2": with_(v=2),
    "version 0": with_(v=0),
    "version 1.0": with_(v=1.0),
    "version in words": with_(v="1"),
    "seq 0": with_(seq=0),
    "seq below 0": with_(seq=-1),
    "seq past 2^53-1": with_(seq=2**53),
    "seq of 5,000 digits": with_(seq=7777).replace(b"7777", b"7" * 5_000),
    "seq with a point": with_(seq=1.0),
    "seq with an exponent": with_(seq=7777).replace(b"7777", b"1e0"),
    "seq as a string": with_(seq="1"),
    "seq true": with_(seq=True),
    "seq null": with_().replace(b'"seq": 1', b'"seq": null'),
    "epoch with a point": with_(epoch=0.0),
    "epoch with an exponent": with_(epoch=7777).replace(b"7777", b"0e0"),
    "epoch below 0": with_(epoch=-1),
    "epoch past 2^31-1": with_(epoch=2**31),
    "epoch null": with_(epoch=7777).replace(b"7777", b"null"),
    "time with a point": with_(time=5.0),
    "clock_ms with an exponent": with_(clock_ms=7777).replace(b"7777", b"1E3"),
    "time of a join with a point": b'{"group":"g","kind":"join","sender":"a","time":1.0}',
    "last with a point": b'{"group":"g","kind":"leave","sender":"a","last":1.0}',
    "cut with a point": b'{"group":"g","kind":"evict","member":["a",0],"cut":1.0}',
    "an evicted epoch with a point": b'{"group":"g","kind":"evict","member":["a",0.0],"cut":1}',
    "a given-up seq with a point": b'{"group":"g","kind":"abandon","ids":[["a",0,1.0,1]]}',
    "a window with a point": b'{"group":"g","kind":"create","options":{"window":5.0}}',
    "an epoch in after with a point": with_(after=[["b", 0.0, 1]]),
    "a seq in after with an exponent": with_(after=[["b", 0, 7777]]).replace(b"7777", b"1e0"),
    "a seq in seen with a point": with_(seen=[["b", 0, 1.0]]),
    "an epoch in seen with an exponent": with_(seen=[["b", 7777, 1]]).replace(b"7777", b"0e0"),
    "a seq in sent with a point": with_(sent={"b": [["b", 0, 1.0]]}),
    "an epoch in sent with a point": with_(sent={"b": [["b", 0.0, 1]]}),
    "a name of 256 bytes in seen": with_(seen=[["😀" * 64, 0, 1]]),
    "a name of 256 bytes in to": with_(to=["😀" * 64]),
    "a name of 256 bytes in sent": with_(sent={"b": [["😀" * 64, 0, 1]]}),
    "a member of 256 bytes in sent": with_(sent={"😀" * 64: [["b", 0, 1]]}),
    "seen twice": b'{"group":"g","sender":"a","seq":1,"seen":[["a",0,1]],"seen":[]}',
    "sent twice": b'{"group":"g","sender":"a","seq":1,"sent":{"b":[]},"sent":{}}',
    "to twice": b'{"group":"g","sender":"a","seq":1,"to":[],"to":["b"]}',
    "time twice": b'{"group":"g","sender":"a","seq":1,"time":1,"time":1}',
    "after null": with_().replace(b"[]", b"null"),
    "after no list": with_(after="b"),
    "an id in after too short": with_(after=[["b", 0]]),
    "an id in after too long": with_(after=[["b", 0, 1, 1]]),
    "an id in after as text": with_(after=["b:1"]),
    "a seq of 0 in after": with_(after=[["b", 0, 0]]),
    "21 ids in after": with_(after=[["b", 0, seq] for seq in range(1, 22)]),
    "101 names in to": with_(to=[f"n{at}" for at in range(101)]),
    "10,001 entries in seen": with_(seen=[["b", 0, 1]] * 10_001),
    "an empty sender": with_(sender=""),
    "an empty group": with_(group=""),
    "a sender of 256 bytes": with_(sender="a" * 256),
    "a sender of 256 bytes in 64 characters": with_(sender="😀" * 64),
    "a sender of 256 bytes in 128 characters, raw": with_(sender="?").replace(b"?", "é".encode() * 128),
    "a group of 256 bytes": with_(group="g" * 256),
    "a name of 256 bytes in after": with_(after=[["b" * 256, 0, 1]]),
    "an empty name in after": with_(after=[["", 0, 1]]),
    "a lone surrogate in the sender": with_(sender="?").replace(b"?", b"\\ud800"),
    "a lone low surrogate in the group": with_(group="?").replace(b"?", b"x\\udc00"),
    "a lone surrogate in a name in after": with_(after=[["?", 0, 1]]).replace(b"?", b"\\udfff"),
    "a lone surrogate in a field's name": b'{"group":"g","sender":"a","seq":1,"\\ud800":1}',
    "a lone surrogate in members": b'{"group":"g","kind":"create","members":["\\ud800"]}',
    "a field twice": b'{"group":"g","sender":"a","sender":"b","seq":1}',
    "a field twice, the same": b'{"group":"g","group":"g","sender":"a","seq":1}',
    "seq twice": b'{"group":"g","sender":"a","seq":1,"seq":1}',
    "data twice": b'{"group":"g","sender":"a","seq":1,"data":1,"data":2}',
    "data twice, the first a string": b'{"group":"g","sender":"a","seq":1,"data":"1","data":2}',
    "data twice, the last a string": b'{"group":"g","sender":"a","seq":1,"data":2,"data":"1"}',
    "data twice, quotes inside": b'{"group":"g","sender":"a","seq":1,"data":"\\"","data":0}',
    "after twice": b'{"group":"g","sender":"a","seq":1,"after":[],"after":[]}',
    "after twice, one longer": b'{"group":"g","sender":"a","seq":1,"after":[["b",0,1]],"after":[]}',
    "after twice, the first longer": b'{"group":"g","sender":"a","seq":1,"after":[],"after":[["b",0,1]]}',
    "epoch twice": b'{"group":"g","sender":"a","epoch":0,"seq":1,"epoch":0}',
    "v twice": b'{"v":1,"group":"g","sender":"a","seq":1,"v":1}',
    "kind twice": b'{"kind":"message","group":"g","sender":"a","seq":1,"kind":"message"}',
    "a field twice, once written with an escape": b'{"group":"g","sender":"a","s\\u0065q":1,"seq":1}',
    "a field twice, both with escapes": b'{"group":"g","sender":"a","s\\u0065q":1,"\\u0073eq":1}',
    "a field twice, spaces before the colon": b'{"group":"g","sender":"a","seq":1,"seq"  :1}',
    "a field twice, among other quotes": b'{"group":"g","sender":"a","seq":1,"data":"\\"\\"","seq":2}',
    "ids written backwards": b'{"group":"g","kind":"abandon","ids":[["a",0,5,4]]}',
    "ids without a first": b'{"group":"g","kind":"abandon","ids":[["a",0,0,4]]}',
    "ids of three": b'{"group":"g","kind":"abandon","ids":[["a",0,4]]}',
    "an abandon without ids": b'{"group":"g","kind":"abandon"}',
    "a leave without last": b'{"group":"g","kind":"leave","sender":"a"}',
    "a leave without sender": b'{"group":"g","kind":"leave","last":1}',
    "a join without sender": b'{"group":"g","kind":"join"}',
    "an evict without cut": b'{"group":"g","kind":"evict","member":["a",0]}',
    "an unknown option": b'{"group":"g","kind":"create","options":{"colour":"red"}}',
    "an option of another type": b'{"group":"g","kind":"create","options":{"closed":1}}',
    "an unknown way of loss": b'{"group":"g","kind":"create","options":{"loss":"drop"}}',
    "a description of 1,001 characters": json.dumps(
        {"group": "g", "kind": "create", "options": {"description": "é" * 1_001}}, ensure_ascii=False
    ).encode(),
    "a description that is no text": b'{"group":"g","kind":"create","options":{"description":1}}',
    "a description with a lone surrogate": b'{"group":"g","kind":"create","options":{"description":"\\ud800"}}',
    "a description of a message": with_(description="x"),
    "meta that is text": with_(meta="x"),
    "meta that is an array": with_(meta=[]),
    "meta null": with_(meta=7777).replace(b"7777", b"null"),
    "meta of 4,097 bytes": with_(meta=7777).replace(b"7777", b'{"x":"' + b"y" * 4_089 + b'"}'),
    "meta of 4,097 bytes, white space among them": with_(meta=7777).replace(b"7777", b"{" + b" " * 4_095 + b"}"),
    "meta of 4,097 bytes, fewer characters": with_(meta=7777).replace(b"7777", f'{{"x":"{"é" * 2_044}z"}}'.encode()),
    "meta twice": b'{"group":"g","sender":"a","seq":1,"meta":{},"meta":{}}',
    "meta deeper than a reader may follow": with_(meta=7777).replace(
        b"7777", b'{"x":' + b"[" * 1_000 + b"]" * 1_000 + b"}"
    ),
    "a heartbeat with meta": with_(kind="heartbeat", after=None, meta={}),
    "a join with meta": b'{"group":"g","kind":"join","sender":"a","meta":{}}',
    "a create without a group": b'{"kind":"create"}',
    "an unknown part of object": with_(object={"colour": "red"}),
    "an unknown type in object": with_(object={"type": "shout"}),
    "deeper than a reader may follow, in arrays": with_(data=0).replace(b"0}", b"[" * 9_000 + b"]" * 9_000 + b"}"),
    "deeper than a reader may follow, in objects": with_(data=0).replace(
        b"0}", b'{"x":' * 9_000 + b"1" + b"}" * 9_000 + b"}"
    ),
    "deep and never closed": with_(data=0).replace(b"0}", b"[" * 100_000),
} | {f"the appended field {name}": with_(**{name: 1}) for name in sorted(judge.APPENDED)}

NEEDED: dict[str, dict[str, Any]] = {
    "create": {},
    "join": {"sender": "a"},
    "leave": {"sender": "a", "last": 1},
    "evict": {"member": ["a", 0], "cut": 1},
    "abandon": {"ids": [["a", 0, 1, 1]]},
    "tick": {},
}

GOOD_ONES = {
    "the least": b'{"group":"g","sender":"a","seq":1}',
    "kind message": with_(kind="message"),
    "version 1": with_(v=1),
    "the largest numbers": with_(epoch=2**31 - 1, seq=2**53 - 1, after=[["b", 2**31 - 1, 2**53 - 1]]),
    "minus zero for an epoch": with_(epoch=7777).replace(b"7777", b"-0"),
    "20 ids in after": with_(after=[["b", 0, seq] for seq in range(1, 21)]),
    "100 names in to": with_(to=[f"n{at}" for at in range(100)]),
    "10,000 entries in seen": with_(seen=[["b", 0, 1]] * 10_000),
    "a sender of 255 bytes": with_(sender="a" * 255),
    "a sender of 255 bytes, four a character and three once": with_(sender="😀" * 63 + "€"),
    "a sender of 254 bytes in 127 characters, raw": with_(sender="?").replace(b"?", "é".encode() * 127),
    "a group and a name in after of 255 bytes": with_(group="g" * 255, after=[["b" * 255, 0, 1]]),
    "names with escapes": b'{"gr\\u006fup":"\\u0067","sender":"\\"","seq":1}',
    "a pair of surrogates in a name": with_(sender="?").replace(b"?", b"\\ud83d\\ude00"),
    "a zero character in a name": with_(sender="?").replace(b"?", b"\\u0000"),
    "white space inside": b'{ "group" :\t"g" ,\n"sender" : "a" , "seq" : 1\r}',
    "data null": with_(data=7777).replace(b"7777", b"null"),
    "data with a name twice": with_(data=7777).replace(b"7777", b'{"x":1,"x":2}'),
    "data with names of ours": with_(data={"position": 1, "group": "x", "seq": 1.0}),
    "data with a lone surrogate": with_(data="?").replace(b"?", b"\\ud800"),
    "data with a lone surrogate as a name": with_(data={"?": 1}).replace(b"?", b"\\udc00\\ud800"),
    "data of 5,000 digits": with_(data=7777).replace(b"7777", b"7" * 5_000),
    "data of 1e400": with_(data=7777).replace(b"7777", b"[1e400,-1E-400,0.1e+5]"),
    "data 1,000 deep in arrays": with_(data=7777).replace(b"7777", b"[" * 1_000 + b"]" * 1_000),
    "data 1,000 deep in objects": with_(data=7777).replace(b"7777", b'{"x":' * 999 + b"{}" + b"}" * 999),
    "data of 3,000 brackets in a string": with_(data="[" * 3_000),
    "data of 3,000 brackets side by side": with_(data=[[]] * 3_000),
    "data of quotes": with_(data='"' * 7 + "\\" * 5),
    "data in all scripts": with_(data="?").replace(b"?", "žluťoučký 漢字 😀".encode()),
    "every stamp at once": with_(
        seen=[["a", 0, 1]],
        to=["b"],
        sent={"b": [["a", 0, 1]]},
        time=5,
        clock_ms=-7,
        object={"instance": [1, "o"], "op": "w", "sender_op": "r", "type": "request"},
        signature="c2lnbmF0dXJl",
    ),
    "a member twice in sent": b'{"group":"g","sender":"a","seq":1,"sent":{"b":[],"b":[["a",0,1]]}}',
    "names of 255 bytes in every stamp": with_(
        seen=[["😀" * 63, 0, 1]], to=["😀" * 63], sent={"😀" * 63: [["😀" * 63, 0, 1]]}
    ),
    "a time of 30 digits": with_(time=10**30),
    "a heartbeat": with_(kind="heartbeat", after=None, time=5, clock_ms=6),
    "a heartbeat with all it may have": with_(
        kind="heartbeat", after=None, epoch=2, v=1, time=5, clock_ms=-6, signature="c2lnbmF0dXJl"
    ),
    "a heartbeat and nothing more": b'{"group":"g","sender":"a","seq":4,"kind":"heartbeat"}',
    "a request": with_(object={"instance": [1, "o"], "op": "w", "sender_op": "r", "type": "request"}),
    "an object called by a number": with_(object={"instance": [1, 2], "op": "w"}),
    "an object of nothing": with_(object={}),
    "an object of long names": with_(object={"op": "é" * 127, "instance": [0, "😀" * 63]}),
    "meta of nothing": with_(meta={}),
    "meta of 4,096 bytes": with_(meta=7777).replace(b"7777", b'{"x":"' + b"y" * 4_088 + b'"}'),
    "meta with a name twice, names of ours and a lone surrogate": with_(meta=7777).replace(
        b"7777", b' { "x":1,"x":[1e400, "\\ud800"] , "position":1.0,"seq":"\\"" } '
    ),
    "meta and data and a signature": with_(meta={"trace": '"1"'}, data='"2"', signature="c2lnbmF0dXJl"),
    "meta of 1,000 brackets and data of 1,000": with_(meta=7777, data=8888)
    .replace(b"7777", b'{"x":' + b"[" * 999 + b"]" * 999 + b"}")
    .replace(b"8888", b"[" * 1_000 + b"]" * 1_000),
    "a description of 1,000 characters": json.dumps(
        {"group": "g", "kind": "create", "options": {"description": "😀" * 1_000}}, ensure_ascii=False
    ).encode(),
    "a description of nothing": b'{"group":"g","kind":"create","options":{"description":""}}',
    "a create of nothing": b'{"group":"g","kind":"create"}',
    "a create of everything": json.dumps(
        {
            "group": "g",
            "kind": "create",
            "options": {
                "order": "fifo",
                "closed": True,
                "window": 10,
                "digests": 0,
                "accuracy_ms": 1,
                "delay_min_ms": 0,
                "delay_max_ms": 9,
                "give_up_ms": 1_000,
                "loss": "abandon",
                "conflicts": [["w", "w"]],
                "keys": {"a": "b64"},
            },
            "members": ["a", "b"],
        }
    ).encode(),
    "a join": b'{"group":"g","kind":"join","sender":"a","epoch":2,"time":4,"key":"b64"}',
    "a leave": b'{"group":"g","kind":"leave","sender":"a","last":0}',
    "an evict": b'{"group":"g","kind":"evict","member":["a",0],"cut":0}',
    "an abandon": b'{"group":"g","kind":"abandon","ids":[["a",0,4,4],["b",1,1,9]]}',
    "a tick": b'{"kind":"tick"}',
} | {
    f"seq is not read in a {kind}": json.dumps(
        {"group": "g", "kind": kind, **needed, "seq": [1.5, {"x": None}]}
    ).encode()
    for kind, needed in NEEDED.items()
}


@pytest.mark.parametrize("what", MALFORMED)
def test_all_three_readers_call_this_malformed(what: str) -> None:
    assert verdict(MALFORMED[what]) == "malformed"


@pytest.mark.parametrize("what", GOOD_ONES)
def test_all_three_readers_take_this(what: str) -> None:
    assert verdict(GOOD_ONES[what]) == "good"


@pytest.mark.parametrize(
    "what",
    [
        *("the least", "every stamp at once", "data of quotes", "an abandon", "data null", "a request"),
        *("a heartbeat with all it may have", "a heartbeat and nothing more"),
    ],
)
def test_both_readers_read_the_same_record(what: str) -> None:
    fast, strict = read(GOOD_ONES[what], Limits()), read_strict(GOOD_ONES[what], Limits())
    assert fast.__class__ is strict.__class__
    for name in fast.__struct_fields__:
        if name != "kind":  # the type says it
            assert getattr(fast, name) == getattr(strict, name)


@pytest.mark.parametrize("value", [b"[" * 1_000 + b"]" * 1_000, b'{"x":' * 1_000 + b"1" + b"}" * 1_000])
def test_depth_does_not_depend_on_the_recursion_limit_of_the_host(value: bytes) -> None:
    fits = with_(data=7777).replace(b"7777", value)
    too_deep = with_(data=7777).replace(b"7777", b"[" * 50_000 + b"]" * 50_000)
    before = sys.getrecursionlimit()
    for limit in (400, 20_000):
        sys.setrecursionlimit(limit)
        try:
            tale = Tale("total")
            assert len(tale.raw(fits).kernel.ordered) == 1, f"refused with a recursion limit of {limit}"
            assert len(tale.raw(too_deep).kernel.dead) == 1
        finally:
            sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    "what",
    [
        *("every stamp at once", "a heartbeat", "a heartbeat with all it may have", "a heartbeat and nothing more"),
        *("a request", "an object of nothing"),
    ],
)
def test_stamps_and_heartbeats_do_not_need_the_slower_reader(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precede.udfs.records.wire.read_strict", None)
    assert read(GOOD_ONES[what], Limits()) is not None


# ── into the log and out of it ────────────────────────────────────────────────────────────────────────────────────

TAIL = (
    ',"position":1,"order":"total","status":"delivered","partition":3,"offset":41,"arrived_ms":1234'
    ',"released_offset":41,"released_ms":1234}'
)


@pytest.mark.parametrize("what", [name for name, value in GOOD_ONES.items() if b'"kind"' not in value])
def test_a_delivered_record_is_the_raw_one_byte_for_byte_with_fields_before_its_closing_brace(what: str) -> None:
    value = GOOD_ONES[what].replace(str(2**53 - 1).encode(), b"9")  # or it would jump
    key = b"g" * 255 if value.count(b"g") > 255 else b"g"
    kernel = Holdback(order="total")
    kernel.receive(value, key, 3, 41, 1234)
    assert kernel.ordered == [value[:-1] + TAIL.encode()]
    assert kernel.ordered_keys == [key]


def test_white_space_outside_the_object_is_dropped() -> None:
    kernel = Holdback(order="total")
    kernel.receive(b" \t\r\n" + GOOD + b"\n \r\t", b"g", 3, 41, 1234)
    assert kernel.ordered == [GOOD[:-1] + TAIL.encode()]


@pytest.mark.parametrize("space", [b"\x0b", b"\x0c", b"\xc2\xa0", b"\x00"])
def test_only_the_white_space_of_json_is_white_space(space: bytes) -> None:
    assert Tale("total").raw(space + GOOD).dead == ["malformed"]
    assert Tale("total").raw(GOOD + space).dead == ["malformed"]


def test_a_record_without_a_value_is_malformed() -> None:
    tale = Tale().raw(None)
    (letter,) = parsed(tale.kernel.dead)
    assert letter["code"] == "malformed"
    assert letter["value"] is None


def test_a_record_of_exactly_the_limit_passes_and_one_byte_more_is_oversize() -> None:
    fits = with_(data="x" * 10)
    limits = Limits(record_bytes_max=len(fits))
    assert Tale("total", limits).raw(fits).out == ["a1"]
    (letter,) = parsed(Tale("total", limits).raw(with_(data="x" * 11)).kernel.dead)
    assert (letter["code"], letter["sender"]) == ("oversize", None)


@pytest.mark.parametrize("key", [None, b"gg", b"G", b"g ", b"\xff"])
def test_the_key_must_be_the_group(key: bytes | None) -> None:
    tale = Tale("total").raw(GOOD, key=key)
    assert tale.dead == ["wrong_key a1"]
    assert tale.kernel.dead_keys == [key]
    assert tale.raw(GOOD).out == ["a1"]


def test_a_key_that_is_not_ascii_is_compared_in_utf_8() -> None:
    kernel = Holdback(order="total")
    kernel.receive(with_(group="žába"), "žába".encode(), 0, 0, 0)
    assert kernel.ordered_keys == ["žába".encode()]


def test_a_tick_has_no_key_and_leaves_nothing() -> None:
    tale = Tale().raw(b'{"kind":"tick"}', key=None)
    assert (tale.out, tale.dead, tale.kernel.dump()) == ([], [], {})
    assert tale.raw(b'{"kind":"tick"}').dead == ["wrong_key"]
