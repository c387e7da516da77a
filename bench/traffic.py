"""The messages for measurements: many groups, some messages late, determined by a seed."""

import random
from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile

Pair = tuple[bytes, bytes]
"""key, value"""

SENDERS = ("alice", "bob", "carol", "dave")
OVERTAKEN_MAX = 10
WAIT_MAX = 50_000


class Late:
    """A message on its way: how many of its group will still overtake it, and when it arrives at the latest."""

    __slots__ = ("deadline", "gone", "left", "pair")

    def __init__(self, pair: Pair, left: int, deadline: int) -> None:
        self.pair = pair
        self.left = left
        self.deadline = deadline
        self.gone = False


class Conversation:
    """Endless messages of `groups` groups, each an answer to one of the last four of its group.

    The fraction `late` of the messages arrives out of order, after 1 to 10 later messages of the same group, or after
    50,000 messages of any group, whichever is first.
    """

    def __init__(self, groups: int, *, late: float = 0.3, senders: int = 4, seed: int = 1) -> None:
        self._ended = False
        sent = takewhile(lambda _: not self._ended, _sent(groups, senders, random.Random(seed)))
        self._stream = arrivals(sent, late, random.Random(seed + 1))

    def take(self, count: int) -> list[Pair]:
        """The next messages, in order of arrival."""
        return list(islice(self._stream, count))

    def finish(self) -> list[Pair]:
        """End the talk; returns the messages still on their way."""
        self._ended = True
        return list(self._stream)


def whole(groups: int, count: int, *, late: float = 0.3, senders: int = 4, seed: int = 1) -> list[Pair]:
    """A conversation of `count` messages, all of which arrive."""
    sent = islice(_sent(groups, senders, random.Random(seed)), count)
    return list(arrivals(sent, late, random.Random(seed + 1)))


def chain(count: int) -> list[Pair]:
    """One group in which each message answers the one before."""
    return [
        (b"group", b'{"group":"group","sender":"alice","seq":%d,"after":%b,"data":"message"}' % (seq, _parent(seq)))
        for seq in range(1, count + 1)
    ]


def _parent(seq: int) -> bytes:
    return b"[]" if seq == 1 else b'[["alice",0,%d]]' % (seq - 1)


def _sent(groups: int, senders: int, chance: random.Random) -> Iterator[Pair]:
    names = SENDERS[:senders]
    seqs: dict[tuple[int, str], int] = {}
    lasts: dict[int, list[str]] = {}
    choice, below = chance.choice, chance.random
    number = 0
    while True:
        number += 1
        group = int(below() * groups)
        sender = choice(names)
        seq = seqs[group, sender] = seqs.get((group, sender), 0) + 1
        last = lasts.setdefault(group, [])
        after = choice(last) if last and below() < 0.9 else ""
        last.append(f'["{sender}",0,{seq}]')
        if len(last) > 4:
            del last[0]
        key = f"room-{group}"
        text = f"message {number} of a person who writes"
        value = f'{{"group":"{key}","sender":"{sender}","epoch":0,"seq":{seq},"after":[{after}],"data":"{text}"}}'
        yield key.encode(), value.encode()


def arrivals(sent: Iterator[Pair], late: float, chance: random.Random) -> Iterator[Pair]:
    by_group: dict[bytes, list[Late]] = {}
    by_time: deque[Late] = deque()
    for number, pair in enumerate(sent):
        waiting = by_group.get(pair[0])
        if waiting:
            for one in waiting:
                one.left -= 1
        if chance.random() < late:
            one = Late(pair, chance.randint(1, OVERTAKEN_MAX), number + WAIT_MAX)
            by_group.setdefault(pair[0], []).append(one)
            by_time.append(one)
        else:
            yield pair
        if waiting and any(one.left <= 0 for one in waiting):
            for one in [one for one in waiting if one.left <= 0]:
                one.gone = True
                waiting.remove(one)
                yield one.pair
        while by_time and (by_time[0].gone or by_time[0].deadline <= number):
            one = by_time.popleft()
            if not one.gone:
                by_group[one.pair[0]].remove(one)
                yield one.pair
    for one in by_time:
        if not one.gone:
            yield one.pair
