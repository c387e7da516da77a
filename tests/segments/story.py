"""Two stories of peers that talk while datagrams are lost.

With the log: two segments, a gateway that is killed, a segment that loses the log.

Four peers begin on each segment. While they talk, one peer crashes, one gateway is killed, one segment is cut off from
the log for five seconds, one peer leaves, and a newcomer comes to each segment. Then all are silent, and everyone who
is still there must have what the ordered topic has, in an order that is lawful against what truly happened.

Without the log: one segment, of which a half is cut off for five seconds and goes on talking; the same comings and
goings.
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
"""In these, whoever crashes holds all others up until it is put out of the group, so no one crashes."""


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
        """The peers that are in the group."""
        return [one for name, one in self.town.players.items() if name not in self.gone]

    def enter(self, name: str, segment: int) -> Player:
        """A peer comes, and is in the group once its own view has it."""
        options = ["--order", self.plan.order, "--leave"]
        if self.plan.has_log:
            player = self.town.peer(segment, name, GROUP, *options)
        else:
            player = self.town.peer(1, name, GROUP, *options, far=segment == 2)
        until(lambda: name in player.members or not player.is_running, JOIN_S_MAX, self.town.why)
        assert player.is_running, player.why()
        return player

    def speak(self) -> None:
        """Somebody says something; under `s_b` mostly as an answer."""
        player = self.random.choice(self.present)
        told = self.told.setdefault(player.name, [])
        seen = list(player.texts)
        parent = None
        if self.plan.order == "s_b" and seen and self.random.random() < 0.8:
            parent = self.random.choice(seen[-5:])
        text = f"{player.name} {len(told)}"
        told.append(text)
        self.truth.say(text, player.name, seen, parent)
        player.say(text, *([] if parent is None else [player.ids[parent]]))

    def crash(self, name: str) -> None:
        self.gone.add(name)
        self.town.players[name].kill()

    def leave(self, name: str) -> None:
        self.gone.add(name)
        self.town.players[name].end_of_input()

    def events(self) -> list[tuple[float, str, Callable[[], object]]]:
        """What happens while they talk: the share of the time, a word for it, and the deed."""
        town = self.town
        healed = 0.3 + CUT_S / self.plan.talk_s
        found: list[tuple[float, str, Callable[[], object]]] = [
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
        if self.plan.order not in BY_CLOCKS:
            found.append((0.1, "dan crashes", lambda: self.crash("dan")))
        return sorted(found, key=lambda one: one[0])


def play(folder: Path, plan: Plan, *, say: Callable[[str], None] = print) -> Outcome:
    """Play the story once, and judge it."""
    sizes = {} if plan.has_log else {"segments": 1, "gateways": 0}
    with Town(folder, loss=plan.loss, has_log=plan.has_log, **sizes) as town:
        story = Story(plan, town, say)
        ordered = _gather(story)
        _talk(story)
        return _judge(story, ordered)


def _gather(story: Story) -> Callable[[], list[dict[str, Any]]]:
    """All founders are in the group; returns what reads the ordered topic."""
    town = story.town
    story.enter("ann", 1)
    lines: list[str] = []
    if story.plan.has_log:
        lines = town.follow(GROUP).lines
        until(lambda: bool(lines), JOIN_S_MAX, town.why)

    def ordered() -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines.copy()]

    for name, segment in FOUNDERS.items():
        if name != "ann":
            story.enter(name, segment)
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


def _judge(story: Story, ordered: Callable[[], list[dict[str, Any]]]) -> Outcome:
    town, truth, survivors = story.town, story.truth, story.present
    begun = time.monotonic()

    def common() -> list[str]:
        """What the log has; without one, what the first survivor has."""
        if not story.plan.has_log:
            return survivors[0].texts.copy()
        return [one["data"] for one in ordered() if one.get("kind", "message") == "message" and "data" in one]

    def is_settled() -> bool:
        texts = set(common())
        own = all(_has_said(one, story.told.get(one.name, [])) <= texts for one in survivors)
        return own and all(set(one.texts) == texts for one in survivors)

    def why() -> str:
        counts = {one.name: len(set(one.texts)) for one in survivors}
        return f"in common {len(common())}, the peers have {counts}\n{town.why()}"

    until(is_settled, SETTLE_S_MAX, why)
    settled_s = time.monotonic() - begun
    texts = common()
    if story.plan.has_log:
        check_positions(ordered())
        check_lawful(truth, texts, "the log")
    for one in survivors:
        check_lawful(truth, one.texts, one.name)
    check_same({one.name: one.texts for one in survivors}, texts)
    if story.plan.order == "lamport":
        assert all([text for text in texts if text in one.texts] == one.texts for one in survivors)
    said = sum(map(len, story.told.values()))
    assert len(texts) >= 0.7 * said, f"of {said} messages all have only {len(texts)}"
    if story.plan.has_log:
        held = town.ask("held", GROUP, "--json")
        assert not held, held
    story.say(f"{len(texts)} messages at all {len(survivors)} peers, {settled_s:.1f} s after the last word")
    return Outcome(said, len(texts), [one.name for one in survivors], settled_s)


def _has_said(player: Player, told: list[str]) -> set[str]:
    """What it was told to say and was not refused."""
    refused = sum(event["event"] == "refused" for event in player.events)
    return set(told) if not refused else set(told) & set(player.texts)
