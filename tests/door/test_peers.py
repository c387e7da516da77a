"""What the comparison with other engines checks their output by, and how it shows it; `make bench-peers` measures."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from xml.etree import ElementTree

import msgspec
import pytest

from bench import traffic
from bench.peers import engines, programs, table
from bench.peers.measures import Backlog, Killed, Steady
from bench.peers.reference import Message, Order, Sequences, compared
from bench.peers.table import Measured
from precede import Holdback
from precede.streaming.spark import jars

PAIRS = traffic.whole(20, 2_000, seed=7)


def wanted() -> Sequences:
    order = Order()
    assert list(order.through(PAIRS)) == PAIRS
    return order.sequences


def sequences(records: Iterable[bytes]) -> Sequences:
    found = Sequences()
    for record in records:
        message = msgspec.json.decode(record, type=Message)
        found.add(message.group, (message.sender, message.epoch, message.seq), message.position)
    return found


@pytest.fixture(scope="module")
def ordered() -> list[bytes]:
    """What the kernel makes of the same messages."""
    kernel = Holdback(order="s_b")
    for number, (key, value) in enumerate(PAIRS):
        kernel.receive(value, key, 0, number, 0)
    return list(kernel.ordered)


def test_the_slow_way_finds_the_sequence_that_the_kernel_delivers(ordered: list[bytes]) -> None:
    assert wanted().records == 2_000
    assert compared(sequences(ordered), wanted()) == "right"
    assert sequences(ordered).digest() == wanted().digest()


def test_a_repeated_message_changes_nothing_of_what_is_wanted() -> None:
    order = Order()
    again = [pair for pair in PAIRS for pair in (pair, pair)]
    random.Random(1).shuffle(again)
    list(order.through(again))
    assert order.sequences.records == 2_000


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda records: records[:-1], "wrong in 1 of 20 groups: 1,999 of 2,000 records"),
        (lambda records: [*records, records[-1]], "wrong in 1 of 20 groups: 2,001 of 2,000 records; room-"),
        (lambda records: records[::-1], "wrong in 20 of 20 groups: 2,000 of 2,000 records; room-"),
        (lambda _records: [], "wrong in 20 of 20 groups: 0 of 2,000 records"),
    ],
    ids=["lost", "twice", "backwards", "nothing"],
)
def test_every_harm_to_the_sequence_is_told(ordered: list[bytes], harm: object, said: str) -> None:
    assert callable(harm)
    assert compared(sequences(harm(ordered)), wanted()).startswith(said)


def test_a_table_shows_figures_ratios_and_what_was_wrong() -> None:
    base = Measured(
        Backlog(1_000, 2_000, 100, "right"),
        Steady(1, 10, 20, 0.1, 0.01, 50),
        Killed(2, "wrong: 5 of 6"),
    )
    half = Measured(Backlog(500, 500, 300, "right"), Steady(3, 20, 80, 0.2, 0.01, 60), Killed(4, "right"))
    failed = Measured(problems=["backlog: failed"])
    found = {"plain loop": base, "spark": half, "flink": failed}
    assert [" | ".join(row) for row in table.measured(found).rows] == [
        "plain loop | 1,000 | 2,000 | 10 | 20 | 0.10 | 0.010 | 50 | 100 | 1.0 | 2.0 | backlog: right; killed: wrong",
        "spark | 500 | 500 | 20 | 80 | 0.20 | 0.010 | 60 | 300 | 3.0 | 4.0 | right",
        "flink | - | - | - | - | - | - | - | - | - | - | backlog: failed",
    ]
    assert [" | ".join(row) for row in table.ratios(found, "plain loop").rows[1:]] == [
        "spark | 0.50 | 0.25 | 2.00 | 4.00 | 2.00 | 1.00 | 1.20 | 3.00 | 3.00 | 2.00",
        "flink | - | - | - | - | - | - | - | - | - | -",
    ]


def test_every_engine_says_what_runs_and_what_is_unequal() -> None:
    assert all(engine.about for engine in engines.ENGINES.values())
    theirs = [engine.about for name, engine in engines.ENGINES.items() if name in ("kafka-streams", "flink")]
    assert all("does not check its input and writes no dead letters" in about for about in theirs)


@pytest.mark.parametrize("configuration", programs.CONFIGURATIONS)
def test_every_jar_of_the_other_engines_has_its_checksum(configuration: str) -> None:
    dependencies = ElementTree.fromstring(programs.LISTED.declared.read_text()).findall("./dependencies/dependency")
    declared = {
        f"{one.attrib['name']}-{one.attrib['rev']}.jar"
        for one in dependencies
        if configuration in one.attrib["conf"].partition("->")[0].split(",")
    }
    pinned = jars.expected(configuration, programs.LISTED)
    assert declared
    assert declared <= set(pinned)
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in pinned.values())
