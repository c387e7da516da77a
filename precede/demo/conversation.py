"""The conversation of the demo's group, and the two couriers between its members and the log.

Members hear each other directly, as people in one room do, so an answer may reach the log before its question: one
courier is near; the other is slow, and loses and repeats messages. If a message is lost, its sender gets no
acknowledgement and sends it again through the other courier. One seed determines everything.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from precede.demo.lossy_path import Courier, LossyPath
from precede.udfs.records.messages import Id
from precede.udfs.records.wire import encode_message

Said = TypeVar("Said")

GROUP = "travel"
NEAR, FAR = "near", "far"
MEMBERS = {"ann": NEAR, "bob": FAR, "chen": NEAR, "dara": FAR, "eli": NEAR}  # member to courier
PAUSE_S = (0.1, 0.7)  # between two messages
ACKNOWLEDGEMENT_S = 3.0  # a member repeats a message after this time without one

# Each line: its depth in the thread, its sender and its text. It answers the nearest line above that is one level up.
THREADS = """
0 ann   Long weekend ahead. Who is in for a trip?
1 bob   Me! Mountains or sea?
2 ann   Sea, if anybody asks me.
3 dara  Sea. I have not swum since August.
2 eli   Mountains. The huts are empty now.
3 chen  Empty because it snows, Eli.
4 eli   That is what boots are for.
1 chen  In, but I must be back by Monday noon.
0 dara  Train or car?
1 ann   Train. Six of us do not fit into Bob's car.
2 bob   Five. And they did fit, last time.
3 ann   Chen sat on the tent.
4 chen  I was the tent.
1 eli   There is one at 7:40, change in Lindau.
2 dara  7:40 in the morning?
3 eli   There is no other 7:40 on a Saturday.
4 bob   There is, and I like it better.
0 bob   Should I book the little house again?
1 dara  The one with the stove? Yes!
2 chen  Yes, and this time we bring dry wood.
1 ann   Only if it has three rooms.
2 bob   It has two and a half.
3 ann   Half a room is where Bob sleeps, then.
4 bob   Agreed, I booked it.
5 dara  You are the best.
0 chen  What do we cook on Saturday?
1 ann   Dumplings. Chen, you said you would teach us.
2 chen  I said I would eat them.
3 eli   Same thing, with more steps.
1 bob   I bring cheese, whatever we cook.
2 dara  Of course you do.
0 eli   Does anybody have a spare sleeping bag?
1 ann   I do, the red one.
2 eli   The one with the hole?
3 ann   The one with the window.
1 dara  Mine is free if you bring it back washed.
2 eli   Washed, dried and folded.
0 ann   Weather says rain from two o'clock on Sunday.
1 chen  Then we walk in the morning.
2 bob   What is a morning?
3 chen  The thing before your coffee.
1 eli   Rain is only loud fog.
2 dara  Put that on a shirt.
3 eli   I would wear it.
0 bob   Who has the tickets?
1 chen  I bought five, they are in your mail.
2 bob   Mine says Tuesday.
3 chen  Look again.
4 bob   Thursday?
5 chen  Saturday, Bob. It says Saturday.
6 bob   It does now.
2 ann   Got it, thank you!
2 dara  Got it too. What do I owe you?
3 chen  A dumpling.
"""


@dataclass(frozen=True)
class Line:
    """One line of the script; `answers` is the index of the line it answers, in the same thread."""

    sender: str
    text: str
    answers: int | None


def threads() -> list[list[Line]]:
    """The script, thread by thread."""
    found: list[list[Line]] = []
    above: list[int] = []
    for text in THREADS.strip().splitlines():
        depth, sender, words = int(text[0]), text[2:7].strip(), text[8:]
        if depth == 0:
            found.append([])
        del above[depth:]
        found[-1].append(Line(sender, words, above[-1] if above else None))
        above.append(len(found[-1]) - 1)
    return found


class Script(Generic[Said]):
    """The script, over and over: three threads are open at a time."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._threads: list[list[Line]] = []
        self._open: list[tuple[list[Line], list[Said]]] = []

    def thread(self) -> tuple[list[Line], list[Said]]:
        """One of the open threads, and what its caller has noted of each line that is said."""
        self._open = [(lines, said) for lines, said in self._open if len(said) < len(lines)]
        while len(self._open) < 3:
            if not self._threads:
                self._threads = threads()
                self._chance.shuffle(self._threads)
            self._open.append((self._threads.pop(), []))
        return self._chance.choice(self._open)


@dataclass(frozen=True)
class SentMessage:
    """A message on its way: what goes to Kafka, and through which courier."""

    id: Id
    value: bytes
    courier: str


class ScriptedConversation:
    """Plays the script repeatedly, a few threads at a time, up to the time that the caller passes in."""

    def __init__(self, publish: Callable[[SentMessage], object], *, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (a play that can be repeated, not a secret)
        paths = {
            NEAR: LossyPath(seed=seed + 1, delay_s=(0.02, 0.5), repeat=0.06),
            FAR: LossyPath(seed=seed + 2, delay_s=(0.3, 4.0), repeat=0.15, loss=0.15),
        }
        self._couriers = {name: Courier[SentMessage](publish, path) for name, path in paths.items()}
        self._script: Script[Id] = Script(self._random)
        self._again: list[tuple[float, Id, bytes, str]] = []
        self._next_s = 0.0
        self.seqs = dict.fromkeys(MEMBERS, 0)

    @property
    def said(self) -> int:
        """How many different messages were sent."""
        return sum(self.seqs.values())

    @property
    def lost(self) -> int:
        """How often a courier lost a message; each was sent again."""
        return sum(courier.lost for courier in self._couriers.values())

    @property
    def under_way(self) -> int:
        """How many messages have yet to reach the log."""
        return len(self._again) + sum(courier.under_way for courier in self._couriers.values())

    def play(self, now_s: float, *, speaking: bool) -> None:
        """Do everything that is due by now; without `speaking`, only messages on their way still move."""
        while speaking and self._next_s <= now_s:
            self._speak(self._next_s)
            self._next_s += self._random.uniform(*PAUSE_S)
        while self._again and self._again[0][0] <= now_s:
            at_s, id_, value, courier = heapq.heappop(self._again)
            self._hand_over(SentMessage(id_, value, courier), at_s)
        for path in self._couriers.values():
            path.pump(now_s=now_s)

    def _speak(self, now_s: float) -> None:
        lines, ids = self._script.thread()
        line = lines[len(ids)]
        self.seqs[line.sender] += 1
        id_: Id = (line.sender, 0, self.seqs[line.sender])
        after = [] if line.answers is None else [ids[line.answers]]
        ids.append(id_)
        value = encode_message(GROUP, *id_, after=after, data=line.text)
        self._hand_over(SentMessage(id_, value, MEMBERS[line.sender]), now_s)

    def _hand_over(self, message: SentMessage, now_s: float) -> None:
        if self._couriers[message.courier].take(message, now_s=now_s).lost:
            other = FAR if message.courier == NEAR else NEAR
            heapq.heappush(self._again, (now_s + ACKNOWLEDGEMENT_S, message.id, message.value, other))
