"""Two stories of peers that talk while datagrams are lost.

With the log: two segments, a gateway that is killed, a segment that loses the log.

Four peers begin on each segment. While they talk, one peer crashes, one gateway is killed, one segment is cut off from
the log for five seconds, one peer leaves, and a newcomer comes to each segment. Then all are silent, and everyone who
is still there must have what the ordered topic has, in an order that is lawful against what truly happened.

Without the log: one segment, of which a half is cut off for five seconds and goes on talking; the same comings and
goings.

Where clocks decide, whoever crashes holds all others up: with the log until the job puts it out of the group, and
without one until it comes back.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.segments.judge import Truth, check_lawful, check_positions, check_same
from tests.segments.players import Player, until
from tests.segments.town import Town

GROUP = "story"
FOUNDERS = {"ann": 1, "bob": 1, "cem": 1, "dan": 1, "eve": 2, "fay": 2, "gus": 2, "hal": 2}
"""Where each begins: its segment, or without the log the part of it."""
CUT_S = 5.0
SETTLE_S_MAX = 60.0
JOIN_S_MAX = 45.0
STEP_S = 0.02
BY_CLOCKS = ("lamport", "two_clock")
SILENT_MS = 15_000
"""Who says nothing for so long is put out by the job: much longer than a segment is cut off from the log."""


@dataclass
class Plan:
    """One run of the story."""

    order: str
    seed: int = 1
    talk_s: float = 20.0
    loss: float = 0.2
    per_s: float = 20.0
    """How much all say together."""
    has_log: bool = True


@dataclass
class Outcome:
    """What there was at the end."""

    said: int
    common: int
    """How many messages all have."""
    survivors: list[str]
    settled_s: float
    """How long after the last word everyone had everything."""


@dataclass
class Story:
    """One run, as it goes."""

    plan: Plan
    town: Town
    say: Callable[[str], None]
    truth: Truth = field(init=False)
    told: dict[str, list[str]] = field(default_factory=dict)
    """What each peer was told to say."""
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.truth = Truth(self.plan.order)
        self.random = random.Random(self.plan.seed)

    @property
    def present(self) -> list[Player]:
        """The peers that are in the group: those whose own view has them."""
        return [one for name, one in self.town.players.items() if name not in self.gone and name in one.members]

    def enter(self, name: str, segment: int) -> None:
        """A peer comes."""
        options = ["--order", self.plan.order, "--leave"]
        if self.plan.has_log:
            self.town.peer(segment, name, GROUP, *options)
        else:
            self.town.peer(1, name, GROUP, *options, far=segment == 2)

    def wait_for_all(self) -> None:
        """All who came are in the group."""
        coming = [one for name, one in self.town.players.items() if name not in self.gone]
        until(lambda: all(one in self.present or not one.is_running for one in coming), JOIN_S_MAX, self.town.why)
        ended = [one.why() for one in coming if not one.is_running]
        assert not ended, ended

    def speak(self) -> None:
        """Somebody says something; under `s_b` mostly as an answer."""
        player = self.random.choice(self.present)
        to = self._some_of_the_present() if self.plan.order == "causal_p2p" else None
        told = self.told.setdefault(player.name, [])
        seen = list(player.texts)
        parent = None
        if self.plan.order == "s_b" and seen and self.random.random() < 0.8:
            parent = self.random.choice(seen[-5:])
        text = f"{player.name} {len(self.truth.before)}"
        told.append(text)
        self.truth.say(text, player.name, seen, parent, to)
        player.say(text, *([] if parent is None else [player.ids[parent]]), to=to)

    def _some_of_the_present(self) -> list[str]:
        present = [one.name for one in self.present]
        return self.random.sample(present, self.random.randint(1, len(present)))

    def crash(self, name: str) -> None:
        self.gone.add(name)
        self.town.players[name].kill()

    def come_back(self, name: str, segment: int) -> None:
        """The one that crashed begins again with its state; what it had no time to send it never said."""
        crashed = self.town.players[name]
        self.enter(name, segment)
        self.told[name] = [text for text in self.told.get(name, []) if text in crashed.texts]
        self.gone.remove(name)

    def leave(self, name: str) -> None:
        self.gone.add(name)
        self.town.players[name].end_of_input()

    def events(self) -> list[tuple[float, str, Callable[[], object]]]:
        """What happens while they talk: the share of the time, a word for it, and the deed."""
        town = self.town
        healed = 0.3 + CUT_S / self.plan.talk_s
        found: list[tuple[float, str, Callable[[], object]]] = [
            (0.1, "dan crashes", lambda: self.crash("dan")),
            (healed + 0.1, "hal leaves", lambda: self.leave("hal")),
            (healed + 0.2, "joe comes to segment 2", lambda: self.enter("joe", 2)),
        ]
        if self.plan.has_log:
            found += [
                (0.15, "gateway1a is killed", lambda: town.gateways[1, "a"].kill(signal.SIGKILL)),
                (0.3, "segment 2 is cut off from the log", lambda: town.cut_off(2)),
                (0.4, "ivy comes to segment 1", lambda: self.enter("ivy", 1)),
                (healed, "segment 2 reaches the log again", lambda: town.heal(2)),
            ]
        else:
            found += [
                (0.3, "a half is cut off", lambda: town.part(1)),
                (healed, "the halves hear each other again", lambda: town.rejoin(1)),
                (healed + 0.05, "ivy comes", lambda: self.enter("ivy", 1)),
            ]
            if self.plan.order in BY_CLOCKS:
                found.append((0.2, "dan comes back", lambda: self.come_back("dan", 1)))
        return sorted(found, key=lambda one: one[0])


def play(folder: Path, plan: Plan, *, say: Callable[[str], None] = print) -> Outcome:
    """Play the story once, and judge it."""
    sizes = {"silent_ms": SILENT_MS} if plan.has_log else {"segments": 1, "gateways": 0}
    with Town(folder, loss=plan.loss, has_log=plan.has_log, **sizes) as town:
        story = Story(plan, town, say)
        ordered = _gather(story)
        _talk(story)
        return _judge(story, ordered)


def _gather(story: Story) -> Callable[[], list[dict[str, Any]]]:
    """All founders are in the group; returns what reads the ordered topic."""
    town = story.town
    story.enter("ann", 1)
    story.wait_for_all()
    lines: list[str] = []
    if story.plan.has_log:
        lines = town.follow(GROUP).lines
        until(lambda: bool(lines), JOIN_S_MAX, town.why)

    def ordered() -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines.copy()]

    for name, segment in FOUNDERS.items():
        if name != "ann":
            story.enter(name, segment)
            story.wait_for_all()
    until(lambda: all(len(one.members) == len(FOUNDERS) for one in story.present), JOIN_S_MAX, town.why)
    story.say(f"all {len(FOUNDERS)} are in the group")
    return ordered


def _talk(story: Story) -> None:
    plan, pending = story.plan, story.events()
    begun = time.monotonic()
    spoken = 0
    while (elapsed := time.monotonic() - begun) < plan.talk_s or pending:
        while pending and pending[0][0] * plan.talk_s <= elapsed:
            _, words, deed = pending.pop(0)
            story.say(f"{elapsed:5.1f} s  {words}")
            deed()
        if spoken < elapsed * plan.per_s and elapsed < plan.talk_s:
            story.speak()
            spoken += 1
        else:
            time.sleep(STEP_S / 4)
    story.wait_for_all()


def _judge(story: Story, ordered: Callable[[], list[dict[str, Any]]]) -> Outcome:
    town, truth, survivors = story.town, story.truth, story.present
    begun = time.monotonic()

    def common() -> set[str]:
        """What the log has; without one, what any survivor has."""
        if not story.plan.has_log:
            return {text for one in survivors for text in one.texts.copy()}
        return {text for texts in _sequences(ordered()).values() for text in texts}

    def must_be_there(one: Player) -> set[str]:
        """What it said, to anybody who can still show it."""
        said = _has_said(one, story.told.get(one.name, []))
        return said if story.plan.has_log else {text for other in survivors for text in truth.sent_to(other.name, said)}

    def is_settled() -> bool:
        texts = common()
        own = all(must_be_there(one) <= texts for one in survivors)
        return own and all(set(one.texts) == truth.sent_to(one.name, texts) for one in survivors)

    def why() -> str:
        counts = {one.name: len(set(one.texts)) for one in survivors}
        return f"in common {len(common())}, the peers have {counts}\n{town.why()}"

    until(is_settled, SETTLE_S_MAX, why)
    settled_s = time.monotonic() - begun
    texts = common()
    for one in survivors:
        check_lawful(truth, one.texts, one.name)
    check_same(truth, {one.name: one.texts for one in survivors}, texts)
    if story.plan.has_log:
        _judge_log(story, ordered())
    elif story.plan.order == "lamport":
        _check_one_sequence(max((one.texts for one in survivors), key=len), survivors)
    said = sum(map(len, story.told.values()))
    assert len(texts) >= 0.7 * said, f"of {said} messages all have only {len(texts)}"
    story.say(f"{len(texts)} messages at all {len(survivors)} peers, {settled_s:.1f} s after the last word")
    return Outcome(said, len(texts), [one.name for one in survivors], settled_s)


def _judge_log(story: Story, records: list[dict[str, Any]]) -> None:
    """The ordered topic is lawful, too, without holes, and nothing is held."""
    for destination, texts in _sequences(records).items():
        check_lawful(story.truth, texts, "the log" if destination is None else f"the log for {destination}")
        check_positions([one for one in records if one.get("destination") == destination])
        if story.plan.order == "lamport":
            _check_one_sequence(texts, story.present)
    held = story.town.ask("held", GROUP, "--json")
    assert not held, held


def _sequences(records: list[dict[str, Any]]) -> dict[str | None, list[str]]:
    """What the ordered topic has, by destination."""
    found: dict[str | None, list[str]] = {}
    for one in records:
        if one.get("kind", "message") == "message" and "data" in one:
            found.setdefault(one.get("destination"), []).append(one["data"])
    return found


def _check_one_sequence(texts: list[str], survivors: list[Player]) -> None:
    """Every survivor has what it has in this order."""
    place = {text: number for number, text in enumerate(texts)}
    for one in survivors:
        assert one.texts == sorted(one.texts, key=place.__getitem__), f"{one.name} has another sequence"


def _has_said(player: Player, told: list[str]) -> set[str]:
    """What it was told to say and was not refused."""
    refused = sum(event["event"] == "refused" for event in player.events)
    return set(told) if not refused else set(told) & set(player.texts)
