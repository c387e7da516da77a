"""The sequence that every engine must deliver, found by a second, slow implementation of `s_b` without the kernel.

A digest of each group's sequence stands for it: the same digests mean that nothing is missing, nothing came twice, and
everything came in the same sequence.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from confluent_kafka import Consumer

from bench.traffic import Pair

Id = tuple[str, int, int]


class Message(msgspec.Struct):
    """What the order needs of a message, raw or ordered."""

    group: str
    sender: str
    seq: int
    epoch: int = 0
    after: list[Id] = []
    position: int = 0


class Sequences:
    """The sequence of each group, as a digest that grows with it."""

    def __init__(self) -> None:
        self.records = 0
        self.problems: list[str] = []
        self._of: dict[str, tuple[list[int], hashlib._Hash]] = {}

    def add(self, group: str, one: Id, position: int | None = None) -> None:
        count, digest = self._of.setdefault(group, ([0], hashlib.sha256()))
        count[0] += 1
        self.records += 1
        digest.update(b"%s %d %d\n" % (one[0].encode(), one[1], one[2]))
        if position is not None and position != count[0]:
            self.problems.append(f"{group}: position {position} came as number {count[0]}")

    def groups(self) -> dict[str, tuple[int, str]]:
        """Each group's number of messages and its digest."""
        return {group: (count[0], digest.hexdigest()) for group, (count, digest) in self._of.items()}

    def digest(self) -> str:
        """One digest for all groups."""
        return hashlib.sha256(msgspec.json.encode(sorted(self.groups().items()))).hexdigest()[:12]


class Order:
    """`s_b`, the slow way: what was delivered, and what waits for which id in order of arrival."""

    def __init__(self) -> None:
        self.sequences = Sequences()
        self._seen: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
        """By group, sender and epoch, the numbers that came."""
        self._delivered: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
        self._waiting: dict[tuple[str, Id], list[Id]] = {}

    def through(self, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """Take these messages on their way to the topic."""
        decode = msgspec.json.Decoder(Message).decode
        for key, value in pairs:
            self.take(decode(value))
            yield key, value

    def take(self, message: Message) -> None:
        group, one = message.group, (message.sender, message.epoch, message.seq)
        seen = self._seen[group, message.sender, message.epoch]
        if message.seq in seen:
            return
        seen.add(message.seq)
        for parent in message.after:  # at most one under this order
            if parent[2] not in self._delivered[group, parent[0], parent[1]]:
                self._waiting.setdefault((group, parent), []).append(one)
                return
        ready = [one]
        while ready:
            released = ready.pop()
            self._delivered[group, released[0], released[1]].add(released[2])
            self.sequences.add(group, released)
            ready += reversed(self._waiting.pop((group, released), []))


def read(consumer: Consumer, expected: int, quiet_s: float) -> Sequences:
    """All committed records of an assigned topic, until there are enough and no more come."""
    sequences, silent_s = Sequences(), 0.0
    decode = msgspec.json.Decoder(Message).decode
    while silent_s < (1.0 if sequences.records >= expected else quiet_s):
        records = consumer.consume(20_000, 0.5)
        silent_s = 0.0 if records else silent_s + 0.5
        for record in records:
            value = record.value()
            if record.error() is None and value is not None:
                message = decode(value)
                sequences.add(message.group, (message.sender, message.epoch, message.seq), message.position)
    return sequences


def compared(found: Sequences, wanted: Sequences) -> str:
    """`right`, or what is wrong with it."""
    if found.groups() == wanted.groups() and not found.problems:
        return "right"
    mine, theirs = found.groups(), wanted.groups()
    wrong = sum(mine.get(group) != theirs.get(group) for group in mine.keys() | theirs.keys())
    more = f"; {found.problems[0]}" if found.problems else ""
    return f"wrong in {wrong:,} of {len(theirs):,} groups: {found.records:,} of {wanted.records:,} records{more}"
