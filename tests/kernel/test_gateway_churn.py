"""Hours of two segments, their gateways and a log, from a seed: everyone who is left has what the log has."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.kernel.gateways import World
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP

SEEDS = range(2 * int(os.environ.get("PRECEDE_EXPLORE", "1")))
NAMES = ("ann", "bob", "cem", "dan")
BY_CLOCKS = ("lamport", "two_clock")


class Churn:
    """One play."""

    def __init__(self, order: str, seed: int) -> None:
        self.order = order
        self.chance = Random(seed)
        self.world = one = World(seed=seed, segments=2, weather=Weather(loss=0.1, repeat=0.05))
        one.gateway("left", at=(0,))
        one.gateway("right", at=(1,))
        one.gateway("both", at=(0, 1))
        for number, name in enumerate(NAMES):
            one.segments[number % 2].start(name)
        one.run(3_000)
        one.together(*NAMES, order=order)
        self.here = list(NAMES)
        self.newcomers = iter([("eve", 0), ("fay", 1), ("gus", 0), ("hal", 1)])

    def play(self, steps: int) -> None:
        for _ in range(steps):
            if self.chance.random() < 0.1:
                self.happen()
            for name in self.here:
                if self.chance.random() < 0.3 and self.world.place(name).joined(name):
                    self.world.say(name, "x")
            self.world.run(self.chance.choice((20, 50, 200)))

    def happen(self) -> None:
        one, chance = self.world, self.chance
        match chance.choice(("away", "kill", "join", "cut", "client")):
            case "away":
                one.log.is_away = not one.log.is_away
            case "kill":
                name = chance.choice(("left", "right", "both"))
                at = {"left": (0,), "right": (1,), "both": (0, 1)}[name]
                one.kill(name)
                one.run(chance.choice((100, 2_000)))
                one.gateway(name, at=at)
            case "join":
                name, number = next(self.newcomers, ("", 0))
                if name:
                    one.segments[number].start(name)
                    one.until(lambda: one.segments[number].is_offered(name))
                    one.segments[number].join(name)
                    self.here.append(name)
            case "cut":
                of = chance.choice(one.segments)
                gates = [name for name in of.medium.nodes if name in one.gateways]
                of.medium.cut([name for name in of.medium.nodes if name not in gates], gates)
                one.run(1_000)
                of.medium.heal()

    def settle(self) -> None:
        one = self.world
        one.log.is_away = False
        one.until(lambda: all(one.place(name).joined(name) for name in self.here), 60_000)
        one.until(self.is_settled, 120_000)

    def is_settled(self) -> bool:
        in_log = set(self.world.log.delivered(GROUP))
        held = list(self.world.log.ordered().held())
        return not held and all(in_log == set(self.world.delivered(name)) for name in NAMES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("order", ["s_b", "fifo", "causal", "lamport", "two_clock"])
def test_everyone_has_what_the_log_has(order: str, seed: int) -> None:
    churn = Churn(order, seed)
    churn.play(60)
    churn.settle()
    one = churn.world
    in_log = one.log.delivered(GROUP)
    assert not one.log.dead()
    for name in NAMES:
        assert sorted(one.delivered(name)) == sorted(in_log)
        if order == "lamport":
            assert one.delivered(name) == in_log
    for name in churn.here:
        own = [id_ for id_ in one.delivered(name) if id_[0] == name]
        assert set(own) <= set(in_log)
        if order == "lamport":
            got = one.delivered(name)
            assert got == [id_ for id_ in in_log if id_ in set(got)]
