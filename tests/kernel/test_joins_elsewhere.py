"""Under clocks nobody may deliver beyond what a newcomer says first, wherever that one joins, and whatever is lost."""

from __future__ import annotations

import os
from random import Random

import pytest

from precede.udfs.peers import membership_records
from precede.udfs.records.messages import Id
from tests.kernel.gateways import World
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, Segments

SEEDS = range(3 * int(os.environ.get("PRECEDE_EXPLORE", "1")))
HERE, THERE = ("ann", "bob"), ("cem", "dan")


class Talk:
    """Two segments of which the second loses the log for a while, and meanwhile somebody joins on the first."""

    def __init__(self, order: str, seed: int, *, loss: float = 0.2) -> None:
        self.chance = Random(seed)
        self.world = one = World(seed=seed, segments=2, weather=Weather(loss=loss))
        for name, at in (("here-a", 0), ("here-b", 0), ("there-a", 1), ("there-b", 1)):
            one.gateway(name, at=(at,))
        for number, names in enumerate((HERE, THERE)):
            for name in names:
                one.segments[number].start(name)
        one.run(3_000)
        one.together(*HERE, *THERE, order=order, accuracy_ms=1)
        self.present = [*HERE, *THERE]

    def talk(self, for_ms: float) -> None:
        end_ms = self.world.now_ms + for_ms
        while self.world.now_ms < end_ms:
            name = self.chance.choice(self.present)
            if self.world.place(name).joined(name):
                self.world.say(name, "x")
            self.world.run(self.chance.choice((5, 20, 50)))

    def cut_off_and_join(self) -> None:
        one = self.world
        one.log.cut_off = {"there-a", "there-b"}
        self.talk(500)
        one.segments[0].start("eve")
        one.until(lambda: one.segments[0].is_offered("eve"))
        one.segments[0].join("eve")
        self.present.append("eve")
        one.until(lambda: one.segments[0].joined("eve"))
        self.talk(2_000)
        one.log.cut_off.discard(self.chance.choice(("there-a", "there-b")))
        self.talk(self.chance.choice((10, 100, 500)))
        one.log.cut_off.clear()
        self.talk(2_000)

    def everything(self) -> list[Id]:
        """What the log delivers, once everybody has everything."""
        one = self.world

        def is_settled() -> bool:
            in_log = set(one.log.delivered(GROUP))
            is_free = not list(one.log.ordered().held())
            return is_free and all(in_log == set(one.delivered(name)) for name in self.present)

        one.until(is_settled, 60_000)
        return one.log.delivered(GROUP)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("order", ["lamport", "two_clock"])
def test_who_joined_while_a_segment_had_lost_the_log_is_lawfully_delivered_there_too(order: str, seed: int) -> None:
    talk = Talk(order, seed)
    talk.cut_off_and_join()
    in_log = talk.everything()
    assert not talk.world.log.dead()
    for name in talk.present:
        assert not talk.world.place(name).refused(name)
        if order == "lamport":
            assert talk.world.delivered(name) == in_log


class OneSegment:
    """Members of one segment without a log that talk, and somebody who joins where not all can answer."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.of = of = Segments(*HERE, *THERE, seed=seed, weather=Weather(loss=0.2))
        of.run(1_000)
        of.together(*HERE, *THERE, order="lamport")
        self.present = [*HERE, *THERE]
        self.said: list[Id] = []

    def talk(self, for_ms: float) -> None:
        end_ms = self.of.medium.now_ms + for_ms
        while self.of.medium.now_ms < end_ms:
            name = self.chance.choice(self.present)
            if self.of.joined(name):
                self.said.append(self.of.say(name, "x"))
            self.of.run(self.chance.choice((5, 20, 50)))

    def join(self, name: str, at: str) -> None:
        """Somebody joins on the side of another."""
        self.of.start(name)
        self.of.medium.nodes[name].side = self.of.medium.nodes[at].side
        self.of.until(lambda: self.of.is_offered(name))
        self.of.join(name)
        self.present.append(name)
        self.of.until(lambda: self.of.joined(name))

    def check_same(self) -> None:
        """All deliver everything, in one sequence."""
        of = self.of
        of.until(lambda: all(len(of.delivered(name)) >= len(self.said) for name in self.present), 60_000)
        for name in self.present:
            assert of.delivered(name) == of.delivered("ann")
            assert set(of.delivered(name)) == set(self.said)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_joined_one_half_of_a_cut_segment_is_delivered_in_the_same_place_by_the_other_half(seed: int) -> None:
    one = OneSegment(seed)
    one.of.medium.cut(list(HERE), list(THERE))
    one.talk(4_000)
    one.join("eve", "ann")
    one.talk(1_000)
    one.of.medium.heal()
    one.talk(1_500)
    one.check_same()


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_away_when_somebody_joined_delivers_the_same_sequence(seed: int) -> None:
    one = OneSegment(seed)
    one.talk(500)
    one.of.run(1_000)
    state = one.of["cem"].dump()
    one.of.medium.crash("cem")
    one.present.remove("cem")
    one.talk(3_500)
    one.join("eve", "ann")
    one.talk(1_000)
    one.of.start("cem", state=state)
    one.present.append("cem")
    one.talk(1_500)
    one.check_same()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("heard_bytes_max", [membership_records.HEARD_BYTES_MAX, 1_500])
def test_who_comes_soon_after_somebody_came_back_has_what_that_one_said_before(
    seed: int, heard_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_records, "HEARD_BYTES_MAX", heard_bytes_max)
    one = OneSegment(seed)
    one.talk(1_500)
    one.of.run(1_000)
    one.of.medium.crash("cem")
    one.present.remove("cem")
    one.of.told.pop("cem")
    one.talk(300)
    one.join("cem", "dan")
    one.talk(200)
    one.join("eve", "ann")
    one.talk(1_000)
    one.check_same()


@pytest.mark.parametrize("seed", range(5))
def test_who_joins_alone_on_a_segment_under_clocks_is_not_too_late_anywhere(seed: int) -> None:
    one = World(seed=seed, segments=2)
    one.gateway("gate0", at=(0,))
    one.gateway("gate1", at=(1,))
    for name in ("ann", "bob"):
        one.segments[1].start(name)
    one.segments[0].start("cem")
    one.run(3_000)
    one.together("ann", "bob", order="lamport")
    one.until(lambda: one.segments[0].is_offered("cem"))
    one.segments[0].join("cem")
    while not one.segments[0].joined("cem"):
        one.say("ann", "x")
        one.say("bob", "y")
        one.run(7)
    said = one.say("cem", "hello")
    for _ in range(20):
        one.say("ann", "x")
        one.run(7)
    one.until(lambda: all(said in one.delivered(name) for name in ("ann", "bob")))
    one.until(lambda: len(one.delivered("ann")) == len(one.delivered("bob")) == len(one.log.delivered(GROUP)))
    assert one.log.dead() == []
    assert one.delivered("ann") == one.delivered("bob") == one.log.delivered(GROUP)
    assert one.segments[1].refused("ann") == one.segments[1].refused("bob") == []


def test_a_join_after_a_long_time_without_the_log_counts_within_seconds() -> None:
    one = World(segments=2)
    for number in range(2):
        one.gateway(f"gate{number}", at=(number,))
    one.segments[0].start("ann")
    one.segments[1].start("bob")
    one.run(3_000)
    one.together("ann", "bob", order="lamport")
    one.log.cut_off = {"gate0"}
    for _ in range(60):
        one.say("ann", "x")
        one.run(500)
    one.log.cut_off = set()
    one.segments[0].start("cem")
    one.until(lambda: one.segments[0].is_offered("cem"))
    one.segments[0].join("cem")
    one.until(lambda: one.segments[0].joined("cem"), 10_000)
