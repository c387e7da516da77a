"""Exhaustive small scope: every history of a few messages, in every arrival order, cut everywhere, in every order.

    make test-exhaustive ARGS="--messages 5"

A history lists who sends, one after the other, and what each sender had received: every forest if only the answered
message counts, otherwise every possible past. Names are interchangeable, so they are assigned in order of appearance.
Each arrival order is a path in a tree, with the kernel's state dumped to blobs and restored at every step. At the end
of each path a second kernel without restarts must have the same output and state, so cuts anywhere change nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import product
from multiprocessing import Pool
from typing import Any, NamedTuple, TypeAlias

from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS
from tests.kernel.clock_rules import ClockRule, LamportRule, TwoClockRule

Id: TypeAlias = tuple[str, int]
Walkers: TypeAlias = Callable[[Callable[["Story"], int], Iterable["Story"]], Iterable[int]]
ACCURACY_MS = 10
UNDER = tuple(ORDERS)


class Story(NamedTuple):
    """The records of one history, and what really precedes what."""

    members: str
    records: list[dict[str, Any]]
    needs: list[frozenset[int]]
    """For each message, the others that this order puts before it."""
    past: list[frozenset[int]]
    """Everything that really preceded each message."""


def speakers(messages: int) -> Iterator[tuple[int, ...]]:
    """The sequences of senders, up to renaming: new senders appear in the order of their numbers."""
    said: list[tuple[int, ...]] = [()]
    for _ in range(messages):
        said = [(*before, who) for before in said for who in range(max(before, default=-1) + 2)]
    yield from said


def pasts(who: tuple[int, ...]) -> Iterator[tuple[frozenset[int], ...]]:
    """Every possible past: the sender's earlier messages, those it received, and the pasts of these."""
    known = set()
    for heard in product(*[range(1 << at) for at in range(len(who))]):
        past: list[frozenset[int]] = []
        for at, bits in enumerate(heard):
            direct = {other for other in range(at) if bits >> other & 1 or who[other] == who[at]}
            past.append(frozenset(direct.union(*(past[other] for other in direct))))
        if tuple(past) not in known:
            known.add(tuple(past))
            yield tuple(past)


def stories(order: str, messages: int) -> Iterator[Story]:
    for who in speakers(messages):
        if order == "s_b":
            for parents in product(*[[None, *range(at)] for at in range(messages)]):
                yield _told(order, who, [frozenset(() if up is None else (up,)) for up in parents], None)
        elif order in ("fifo", "total"):
            yield _told(order, who, [frozenset()] * messages, None)
        else:
            for past in pasts(who):
                direct = [each.difference(*(past[one] for one in each)) for each in past]
                yield _told(order, who, [frozenset(each) for each in direct], past)


def _told(
    order: str, who: tuple[int, ...], after: list[frozenset[int]], past: tuple[frozenset[int], ...] | None
) -> Story:
    """Let the members send it, stamped for the order."""
    names = "abcdefgh"[: max(who) + 1]
    stamps = {name: ORDERS[order].stamps_of(name) for name in names}
    records: list[dict[str, Any]] = []
    observed: dict[str, set[int]] = {name: set() for name in names}
    for at, number in enumerate(who):
        name = names[number]
        for known in sorted((past[at] if past else after[at]) - observed[name]):
            stamps[name].observe(records[known])
            observed[name].add(known)
        parents = [(records[up]["sender"], 0, records[up]["seq"]) for up in sorted(after[at])]
        stamp = stamps[name].stamp(after=parents, to=list(names), clock_ms=ACCURACY_MS * at)
        records.append({"group": "g", **stamp})
        stamps[name].observe(records[at])
        observed[name].add(at)
    needs = [_needed(order, who, after, past, at) for at in range(len(who))]
    return Story(names, records, needs, list(past or needs))


def _needed(
    order: str,
    who: tuple[int, ...],
    after: list[frozenset[int]],
    past: tuple[frozenset[int], ...] | None,
    at: int,
) -> frozenset[int]:
    """What the order puts before a message, by its definition and not by the stamps."""
    if order == "total":
        return frozenset()
    if order == "fifo":
        return frozenset(other for other in range(at) if who[other] == who[at])
    if past is not None:
        return past[at]
    chain: set[int] = set()
    level = set(after[at])
    while level:
        chain |= level
        level = {up for one in level for up in after[one]}
    return frozenset(chain)


class Walk:
    """Every arrival order of one story, checked at every step."""

    def __init__(self, order: str, story: Story) -> None:
        self.order = order
        self.story = story
        self.values = [json.dumps(record).encode() for record in story.records]
        self.number = {(one["sender"], one["seq"]): at for at, one in enumerate(story.records)}
        self.steps = 0
        self.created: list[bytes] = []
        if ORDERS[order].waits_for_members:
            options = {"order": order, **({"accuracy_ms": ACCURACY_MS} if order == "two_clock" else {})}
            members = list(story.members)
            self.created = [
                json.dumps({"group": "g", "kind": "create", "options": options, "members": members}).encode()
            ]

    def go(self) -> int:
        """Walk all paths; returns the number of steps."""
        kernel = Holdback(order=self.order)
        for value in self.created:
            kernel.receive(value, b"g", 0, 0, 0)
        self._go((), dict(kernel.dump()), [])
        return self.steps

    def _go(self, arrived: tuple[int, ...], blobs: dict[bytes, bytes], said: list[bytes]) -> None:
        if len(arrived) == len(self.values):
            self._never_stopped(arrived, blobs, said)
            return
        for at in range(len(self.values)):
            if at in arrived:
                continue
            kernel = Holdback(order=self.order)
            kernel.load(dict(blobs))
            kernel.receive(self.values[at], b"g", 0, len(arrived) + 1, 0)
            self.steps += 1
            path = (*arrived, at)
            now = [*said, *kernel.ordered]
            self._judge(path, now, kernel)
            self._go(path, dict(kernel.dump()), now)

    def _judge(self, path: tuple[int, ...], said: list[bytes], kernel: Holdback) -> None:
        """What is delivered so far is exactly what the order promises."""
        assert not kernel.dead, self._told(path, said)
        of: dict[str | None, list[int]] = {}
        for destination, id_ in map(_place_of, said):
            of.setdefault(destination, []).append(self.number[id_])
        places = self.story.members if self.order == "causal_p2p" else [None]
        for destination in places:
            self._judge_sequence(path, said, of.get(destination, []))

    def _judge_sequence(self, path: tuple[int, ...], said: list[bytes], delivered: list[int]) -> None:
        assert len(set(delivered)) == len(delivered), self._told(path, said)
        for place, one in enumerate(delivered):
            lacking = self.story.past[one] & set(path) - set(delivered[:place])
            assert self.order in ("total", "fifo") or not lacking, self._told(path, said)
            assert self.story.needs[one] <= set(delivered[:place]), self._told(path, said)
        if not ORDERS[self.order].waits_for_members:
            free = {at for at in path if self.story.needs[at] <= set(path)}
            assert set(delivered) == free, self._told(path, said)
            return
        assert delivered == self._by_rule(path), self._told(path, said)

    def _by_rule(self, path: tuple[int, ...]) -> list[int]:
        rule: ClockRule = (
            LamportRule(self.story.members)
            if self.order == "lamport"
            else TwoClockRule(self.story.members, 2 * ACCURACY_MS)
        )
        return [self.number[id_] for at in path for id_ in rule.take(self.story.records[at])]

    def _never_stopped(self, path: tuple[int, ...], blobs: dict[bytes, bytes], said: list[bytes]) -> None:
        kernel = Holdback(order=self.order)
        for value in self.created:
            kernel.receive(value, b"g", 0, 0, 0)
        kernel.clear()
        for offset, at in enumerate(path, start=1):
            kernel.receive(self.values[at], b"g", 0, offset, 0)
        assert kernel.ordered == said, self._told(path, said)
        assert dict(kernel.dump()) == blobs, self._told(path, said)
        if self.created:
            self._all_speak_once_more(kernel, len(path))
        assert not list(kernel.held()), self._told(path, said)
        kernel.close()

    def _all_speak_once_more(self, kernel: Holdback, offset: int) -> None:
        """After a heartbeat of every member nothing is held, and in lamport all is sorted by (time, sender)."""
        for name in self.story.members:
            seqs = [one["seq"] for one in self.story.records if one["sender"] == name]
            beat = {
                "kind": "heartbeat",
                "group": "g",
                "sender": name,
                "seq": max(seqs) + 1,
                "time": 99,
                "clock_ms": 9_999,
            }
            offset += 1
            kernel.receive(json.dumps(beat).encode(), b"g", 0, offset, 0)
        if self.order == "lamport":
            keys = [(one["time"], one["sender"]) for one in map(json.loads, kernel.ordered)]
            assert keys == sorted(keys)

    def _told(self, path: tuple[int, ...], said: list[bytes]) -> str:
        arrived = "\n".join(f"    {self.values[at].decode()}" for at in path)
        return f"{self.order}, arrived:\n{arrived}\n  delivered:\n" + "\n".join(f"    {one.decode()}" for one in said)


@lru_cache(maxsize=10_000)
def _place_of(record: bytes) -> tuple[str | None, Id]:
    """The destination and id of a record; cached, since the paths of a tree share most records."""
    told = json.loads(record)
    return told.get("destination"), (told["sender"], told["seq"])


def check(order: str, messages: int, walk_all: Walkers = map) -> tuple[int, int]:
    """Walk every story of this many messages; returns the number of stories and of steps."""
    steps = list(walk_all(partial(_steps, order), stories(order, messages)))
    return len(steps), sum(steps)


def _steps(order: str, story: Story) -> int:
    return Walk(order, story).go()


def main() -> int:
    """Check every order and print the number of stories and steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=5, help="histories of at most so many messages")
    parser.add_argument("--only", default="", help="only this order")
    chosen = parser.parse_args()
    with Pool() as pool:
        walk_all = partial(pool.imap_unordered, chunksize=10)
        for order in [chosen.only] if chosen.only else UNDER:
            for messages in range(1, chosen.messages + 1):
                began = time.monotonic()
                count, steps = check(order, messages, walk_all)
                took = time.monotonic() - began
                print(
                    f"{order:12} {messages} messages: {count:5} histories, {steps:9} steps, {took:6.1f} s", flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
