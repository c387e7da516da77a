"""Good records with random byte changes: the fast reader, the strict reader and the judge agree."""

from __future__ import annotations

from random import Random

import pytest

from precede.udfs.limits import Limits
from precede.udfs.records.messages import Message
from precede.udfs.records.strict import Malformed, read_strict
from precede.udfs.records.wire import read
from tests.kernel import judge
from tests.kernel.effort import seeds
from tests.kernel.test_wire import GOOD_ONES

LIMITS = Limits()
SEEDS = [value for value in GOOD_ONES.values() if len(value) < 500]
SNIPPETS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\t", b"\x00", b"\x1f", b"\x7f"),
    *(b"0", b"1", b"-", b".0", b"e0", b"E+1", b"9" * 20, b"null", b"true", b"NaN", b'""', b"[]", b"{}", b'"a"'),
    *(b"\\u0061", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\n", b'\\"', b"\xff", b"\xc3", b"\xed\xa0\x80"),
    *(b"\xef\xbb\xbf", "é".encode(), "😀".encode(), b"\xc0\x80", b"\xf4\x90\x80\x80"),
    *(b'"b",0,1', b'["b",0,1]', b'["b",0,1],', b"1.0", b"1e0", b"-0", b"-1", b'"\\u0000"', b"x" * 63, b"x" * 256),
]
FIELDS = [
    *(b',"seq":1', b',"seq":2', b',"s\\u0065q":1', b',"seq" :1', b',"group":"g"', b',"data":1', b',"data":"x"'),
    *(b',"after":[]', b',"after":[["b",0,1]]', b',"epoch":0', b',"epoch":1', b',"v":1', b',"kind":"message"'),
    *(b',"position":1', b',"order":"s_b"', b',"time":1', b',"to":[]', b',"seen":[]', b',"sent":{}', b',"x":1'),
    *(b',"seen":[["a",0,1]]', b',"to":["b"]', b',"sent":{"b":[["a",0,1]]}', b',"time":1.0', b',"clock_ms":-1'),
    *(b',"kind":"heartbeat"', b',"object":{}', b',"object":{"op":"w","op":"w"}', b',"object":{"instance":[1.0,"o"]}'),
    *(b',"object":{"instance":[1,"o"],"type":"data"}', b',"object":{"op":"w","sender_op":"r","x":1}'),
    *(b',"meta":{}', b',"meta":{"a":"b"}', b',"meta":[]', b',"meta":{"a":1,"a":"\\""}'),
    *(b',"object":{"instance":[1,2]}', b',"object":{"instance":[1,2.0]}', b',"object":{"instance":[1,-2]}'),
]
SNIPPETS += FIELDS


def mutated(random: Random) -> bytes:
    """A good record after one to three small accidents."""
    value = random.choice(SEEDS)
    for _ in range(random.choice([1, 1, 1, 2])):
        at = random.randint(0, len(value))
        upto = min(len(value), at + random.randint(1, 4))
        match random.randrange(9):
            case 0:
                value = value[:at] + random.choice(SNIPPETS) + value[at:]
            case 1:
                value = value[:at] + random.choice(SNIPPETS) + value[upto:]
            case 2:
                value = value[:at] + value[upto:]
            case 3:
                value = value[:at] + bytes([random.randrange(256)]) + value[upto:]
            case 4:
                start = random.randint(0, len(value))
                value = value[:at] + value[start : start + random.randint(1, 20)] + value[at:]
            case 5 | 6:
                value = value[:-1] + random.choice(FIELDS) + value[-1:]
            case _:
                commas = [place for place, byte in enumerate(value) if byte == ord(",")]
                if commas:
                    at = random.choice(commas)
                    value = value[:at] + random.choice(SNIPPETS) + value[at:]
    return value


def disagreement(value: bytes) -> str | None:
    """Whether the three readers differ, in the verdict or in the fields."""
    trimmed = value.strip(b" \t\n\r")
    judged = judge.read(value)
    try:
        fast = read(trimmed, LIMITS)
    except Malformed:
        fast = None
    try:
        strict = read_strict(trimmed, LIMITS)
    except Malformed:
        strict = None
    if (judged is None, fast is None) != (strict is None, strict is None):
        return f"{value!r}: judge {judged}, fast {fast}, strict {strict}"
    if isinstance(fast, Message) and isinstance(strict, Message) and judged is not None:
        for name in ("group", "sender", "seq", "epoch"):
            if not getattr(fast, name) == getattr(strict, name) == judged[name]:
                return f"{value!r}: {name} is {getattr(fast, name)}, {getattr(strict, name)}, {judged[name]}"
        if isinstance(fast.after, list) and [list(id_) for id_ in fast.after] != judged["after"]:
            return f"{value!r}: after is {fast.after}, {judged['after']}"
    return None


@pytest.mark.parametrize("part", range(4))
def test_the_readers_agree_on_records_with_random_accidents(part: int) -> None:
    verdicts = [0, 0]
    for seed in seeds(2_000):
        value = mutated(Random(f"{part} {seed}"))
        found = disagreement(value)
        assert found is None, found
        verdicts[judge.read(value) is not None] += 1
    assert min(verdicts) > sum(verdicts) / 10, "the accidents are too hard or too soft to tell the readers apart"
