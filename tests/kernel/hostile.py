"""Hostile traffic: bytes, records and whole groups that try to break the kernel.

    make test-hostile ARGS="--cases 200000"

Accidents: a good record with some bytes changed, for three readers and a kernel. Attacks: honest groups, and an
attacker who writes anything into groups of his own and garbage under the keys of others; the honest output must be the
same bytes as without him. Traces: hostile and honest records of one group, then the same log without those refused on
arrival; nothing else may differ. Growth: a long log that tries to leave much state, under tight limits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from tests.kernel import traffic
from tests.kernel.feeding import Outcome, Taken, feed, parsed
from tests.kernel.test_wire_fuzz import FIELDS, SNIPPETS, disagreement, mutated
from tests.simulation import converse

RECORD_S_MAX = 2.0
"""The time limit for a record of a fuzzed log: far above what any takes, far below human patience."""
TIGHT = Limits(held_max=6, held_bytes_max=600, runs_max=4, window=8, digests=2, record_bytes_max=400, after_max=3)
BLOB_BYTES_MAX = 1_200
"""The largest state of one group under these limits and with a case's few senders, for a log of any length."""
TAKES_ID = ("self_parent", "cycle", "orphan")
ORDER_NAMES = tuple(ORDERS)


def bytes_of_chance(random: Random) -> bytes:
    """Any bytes: noise, pieces of JSON, a good record with changed bytes."""
    match random.randrange(4):
        case 0:
            return random.randbytes(random.randint(0, 60))
        case 1:
            return b"".join(random.choices(SNIPPETS, k=random.randint(1, 12)))
        case 2:
            return b'{"group":"g"' + b"".join(random.choices(FIELDS, k=random.randint(1, 6))) + b"}"
        case _:
            return mutated(random)


def accident(seed: str) -> None:
    """One value: the readers agree, and a kernel gives it one outcome and no exception."""
    random = Random(seed)
    value = bytes_of_chance(random)
    assert (found := disagreement(value)) is None, found
    kernel = Holdback(order=random.choice(ORDER_NAMES))
    kernel.receive(value, random.choice([b"g", b"g", None, b"", b"\xff"]), random.randint(0, 3), 0, 0)
    ended = len(kernel.ordered) + len(kernel.dead) + sum(1 for _ in kernel.held())
    if ended == 0:
        fields = json.loads(value)
        silent = ("heartbeat", "tick") if kernel.order != "causal_p2p" else ("heartbeat", "tick", "create", "abandon")
        assert fields.get("kind") in silent, value  # a record for every destination has no position if there is none
    blobs = dict(kernel.dump())
    again = Holdback(order=kernel.order)
    again.load(dict(blobs))
    assert list(again.held()) == list(kernel.held())
    assert again.dump() == blobs
    kernel.close()


def attack(seed: str) -> None:
    """Honest groups of one log, with and without an attacker's records between theirs."""
    random = Random(seed)
    order = random.choice(ORDER_NAMES)
    honest: list[Taken] = []
    for name in (b"chat", b"tea"):
        history = converse(random, order, peers=random.randint(1, 4), messages=random.randint(1, 8), loss=0.1)
        honest += [
            (one.value.replace(b'"group":"chat"', b'"group":"%b"' % name), name, 0, 0, one.timestamp_ms)
            if b'"group":"chat"' in one.value
            else (one.value.replace(b'"group": "chat"', b'"group":"%b"' % name), name, 0, 0, one.timestamp_ms)
            for one in history.log
        ]
    spaced = [(value, key, 0, 100 * at, now) for at, (value, key, _, _, now) in enumerate(honest)]
    evil = [_evil(random, order, at) for at in range(random.randint(5, 60))]
    mixed = sorted(
        spaced
        + [
            (value, key, 0, 100 * random.randrange(len(spaced) or 1) + 1 + at, 7)
            for at, (value, key) in enumerate(evil)
        ],
        key=lambda one: one[3],
    )
    cuts = random.sample(range(len(mixed)), min(3, len(mixed)))
    plain, attacked = feed(spaced, order=order), feed(mixed, order=order, cuts=cuts)
    for key in (b"chat", b"tea"):
        assert of_group(plain, key) == of_group(attacked, key), seed
        assert plain.blobs.get(key) == attacked.blobs.get(key), seed


def _evil(random: Random, order: str, at: int) -> tuple[bytes | None, bytes | None]:
    """An attacker's record: anything in his own groups, unreadable bytes under the keys of others."""
    writer = traffic._Writer(random, order, seqs_max=6, hostile=0.5)
    match random.randrange(6):
        case 0:
            return b'{"group":"evil","sender":"m","seq":' + bytes_of_chance(random), b"chat"
        case 1:
            return b'{"group":"chat","sender":"m","seq":1,"after":[]}', random.choice([b"tea", b"evil", None])
        case 2:
            return b'{"group":"tea","sender":"m","seq":1,"after":[],"position":1}', b"tea"
        case 3:
            return random.choice([None, b"", b"\xff\xfe", b"[" * 2_000]), random.choice([b"chat", b"tea"])
        case _:
            record = writer.record(at)
            return record.value, b"evil" if record.key == b"g" and random.random() < 0.3 else record.key


def of_group(outcome: Outcome, key: bytes) -> list[bytes]:
    return [one for one, its in zip(outcome.ordered, outcome.ordered_keys, strict=True) if its == key]


def trace(seed: str) -> None:
    """A log with hostile records, and the same log without those that were refused on arrival."""
    random = Random(seed)
    order = random.choice(ORDER_NAMES)
    log = traffic.log(random, order, length=40)
    kernel = Holdback(order=order, limits=log.limits)
    refused = set()
    for record in log.records:
        before = len(kernel.dead)
        began = time.process_time()
        kernel.receive(*record)
        assert time.process_time() - began < RECORD_S_MAX, seed
        for letter in parsed(kernel.dead[before:]):
            if letter["offset"] == record.offset and letter["code"] not in TAKES_ID:
                refused.add(record.offset)
    kernel.close()
    whole = feed(log.records, order=order, limits=log.limits)
    without = feed([one for one in log.records if one.offset not in refused], order=order, limits=log.limits)
    assert without.ordered == whole.ordered, seed
    assert without.held == whole.held, seed
    assert without.duplicates == whole.duplicates, seed
    assert without.blobs == whole.blobs, seed
    kept = [one for one in whole.dead if json.loads(one)["offset"] not in refused]
    assert without.dead == kept, seed


def growth(seed: str, *, records: int = 1_000) -> int:
    """A long log of few senders under tight limits: the state of its group never exceeds a fixed size."""
    random = Random(seed)
    order = random.choice(ORDER_NAMES)
    ways = random.sample(["gap", "turn", "give up", "give up ahead", "refuse", "promise"], k=random.randint(1, 3))
    kernel = Holdback(order=order, limits=TIGHT)
    for offset in range(records):
        record = json.dumps(_greedy(random, kernel, random.choice("abc"), random.choice(ways))).encode()
        kernel.receive(record, b"g", 0, offset, offset)
        kernel.clear()
        assert sum(1 for _ in kernel.held()) <= TIGHT.held_max
    size = max(map(len, kernel.dump().values()), default=0)
    assert size <= BLOB_BYTES_MAX, (seed, size)
    kernel.close()
    return size


def _greedy(random: Random, kernel: Holdback, name: str, way: str) -> dict[str, Any]:
    """A record that tries to leave state: seqs with gaps, abandoned ids with gaps, promises far ahead."""
    group = kernel._groups.get("g")
    sender = None if group is None else group.senders.get(name)
    highest = 0 if sender is None else sender.highest
    ahead = highest + 2 + random.randint(0, 1)
    seq = highest + 1 if way == "turn" else ahead
    fields = {"group": "g", "sender": name, "seq": seq, "time": highest + 1, "clock_ms": highest}
    if way == "promise":
        return {**fields, "kind": "heartbeat"}
    if way.startswith("give up") and (way == "give up ahead" or random.random() < 0.5):
        given_up = ahead if way == "give up ahead" else highest + 1
        return {"group": "g", "kind": "abandon", "ids": [[name, 0, given_up, given_up]]}
    seq = fields["seq"] = highest + 1 if way == "give up" else seq
    stamp = {
        "after": [[name, 0, seq]] if way == "refuse" else [],
        "seen": [[name, 0, seq]],
        "to": ["a", "b"],
        "sent": {},
    }
    return {**fields, **stamp}


CASES: dict[str, tuple[Callable[[str], object], float]] = {
    "accidents": (accident, 0.8),
    "attacks": (attack, 0.05),
    "traces": (trace, 0.14),
    "growth": (growth, 0.01),
}
"""How each kind is made, and its share of the cases."""


def main() -> int:
    """Check this many cases and print how many of each kind there were."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument(
        "--seed", default=str(time.time_ns()), help="draw other cases; printed, so that they come again"
    )
    chosen = parser.parse_args()
    print(f"--seed {chosen.seed}")
    for name, (case, part) in CASES.items():
        began = time.monotonic()
        count = int(chosen.cases * part)
        for number in range(count):
            seed = f"{chosen.seed} {name} {number}"
            try:
                case(seed)
            except Exception:
                print(f"failed: tests.kernel.hostile.{case.__name__}({seed!r})", flush=True)
                raise
        print(f"{name:10} {count:7} cases, {time.monotonic() - began:6.1f} s, none failed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
