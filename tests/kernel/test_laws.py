"""Laws for every order of the registry, on honest conversations and on hostile logs."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import partition_of
from tests import simulation
from tests.kernel import judge, traffic
from tests.kernel.effort import effort, seeds
from tests.kernel.feeding import Id, Outcome, feed, id_of, parsed
from tests.simulation import GROUP, Arrival, History, converse

every_order = pytest.mark.parametrize("order", ORDERS)
every_order_of_needs = pytest.mark.parametrize("order", simulation.NEEDS)
"""All except those by clocks, where no set of messages alone releases a message."""
randoms = st.randoms(use_true_random=False)


def conversation(random: Random, order: str, *, loss: float = 0.0) -> History:
    """A conversation whose shape is drawn too."""
    return converse(
        random,
        order,
        peers=random.randint(1, 6),
        messages=random.randint(1, 25),
        gateways=random.randint(1, 3),
        loss=loss,
        delay=random.choice([1, 10, 60]),
        replies=random.choice([0.3, 0.7, 1.0]),
    )


def test_every_order_has_its_law_against_the_true_history() -> None:
    by_clocks = {name for name, order in ORDERS.items() if order.waits_for_members}
    assert simulation.NEEDS.keys() | by_clocks == ORDERS.keys(), "those by clocks have theirs in test_laws_of_clocks.py"


def place_of(record: dict[str, Any]) -> tuple[Id, str | None]:
    """The delivered ids, each with its destination."""
    return id_of(record), record.get("destination")


def have_no_hole(records: list[dict[str, Any]]) -> None:
    """In each group and destination, positions are 1, 2, 3, ..., and each id occurs once."""
    sequences: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for one in records:
        sequences.setdefault((one["group"], one.get("destination")), []).append(one)
    for sequence in sequences.values():
        assert [one["position"] for one in sequence] == list(range(1, len(sequence) + 1))
        ids = [id_of(one) for one in sequence if one.get("kind", "message") == "message"]
        assert len(set(ids)) == len(ids)


# ── honest conversations ──────────────────────────────────────────────────────────────────────────────────────────


@every_order_of_needs
def test_what_has_all_it_needs_is_delivered_in_the_step_that_brings_the_last_of_it_and_nothing_else_is(
    order: str,
) -> None:
    for seed in seeds(150):
        random = Random(seed)
        history = conversation(random, order, loss=random.choice([0.0, 0.2]))
        outcome = feed(history.log, order=order)
        first = history.first_arrivals()
        released = {place_of(one): one["released_offset"] for one in parsed(outcome.ordered)}
        assert len(released) == len(outcome.ordered)
        steps = {(id_, at): simulation.step(history, id_, at, first) for id_ in first for at in history.places(id_)}
        assert released == {place: step for place, step in steps.items() if step is not None}
        assert outcome.dead == []


@every_order_of_needs
def test_each_message_follows_what_it_really_needed(order: str) -> None:
    for seed in seeds(150):
        history = conversation(Random(seed), order)
        number = {place_of(one): at for at, one in enumerate(parsed(feed(history.log, order=order).ordered))}
        assert number.keys() == {(id_, at) for id_ in history.said for at in history.places(id_)}
        for (id_, at), mine in number.items():
            for needed in simulation.needs(history, id_, at):
                assert number[needed, at] <= mine


def test_s_b_orders_no_pair_against_what_was_heard_before_speaking() -> None:
    # Theorem of section III-B: if members answer messages they have received, what S_b orders is also causally ordered.
    for seed in seeds(120):
        history = conversation(Random(seed), "s_b")
        for id_, said in history.said.items():
            assert history.ancestors(id_) <= said.past | {id_}


@every_order_of_needs
def test_what_is_held_names_what_it_lacks_and_goes_when_that_comes(order: str) -> None:
    for seed in seeds(120):
        history = conversation(Random(seed), order, loss=0.3)
        arrived = set(history.first_arrivals())
        kernel = Holdback(order=order)
        for record in history.log:
            kernel.receive(*record)
        at = len(history.log)
        while held := list(kernel.held()):
            for one in held:
                assert one.missing, "a held message that waits for nothing"
                assert not set(one.missing) & arrived, "it waits for a message that is there"
                id_ = (one.sender, one.epoch, one.seq)
                lacks = simulation.needs(history, id_, one.destination) - arrived
                assert set(one.missing) & lacks, "it names nothing that it needs"
                if one.destination is None:
                    assert set(one.missing) <= lacks, "it names what it does not need"
                else:  # a stamp does not show which of its ids were for this destination
                    assert set(one.missing) <= history.said[id_].past - arrived
            lacking = held[0].missing[0]
            kernel.receive(history.said[lacking].value, GROUP.encode(), 0, at, 0)
            arrived.add(lacking)
            at += 1
        assert len(kernel.ordered) == sum(len(history.places(id_)) for id_ in arrived)


@every_order_of_needs
def test_giving_up_on_all_that_is_missing_frees_all_that_is_held(order: str) -> None:
    for seed in seeds(120):
        history = conversation(Random(seed), order, loss=0.3)
        kernel = Holdback(order=order)
        for record in history.log:
            kernel.receive(*record)
        at = len(history.log)
        held_before = sum(1 for _ in kernel.held())
        while held := list(kernel.held()):
            ids = [[*id_, id_[2]] for id_ in held[-1].missing]
            record_ = {"group": GROUP, "kind": "abandon", "ids": ids}
            kernel.receive(json.dumps(record_).encode(), GROUP.encode(), 0, at, 0)
            held_now = sum(1 for _ in kernel.held())
            assert held_now < held_before or ORDERS[order].in_turn or order == "causal_p2p"
            held_before = held_now
            at += 1
        records = parsed(kernel.ordered)
        have_no_hole(records)
        delivered = {id_of(one) for one in records if one["status"] == "delivered"}
        assert delivered == set(history.first_arrivals())
        assert kernel.dead == []


@every_order
def test_duplicates_change_nothing(order: str) -> None:
    for seed in seeds(120):
        random = Random(seed)
        history = conversation(random, order, loss=0.1)
        spaced = [one._replace(offset=one.offset * 100) for one in history.log]
        with_copies = list(spaced)
        for one in spaced:
            for _ in range(0 if b'"kind"' in one.value else random.randint(0, 2)):
                later = random.choice([other for other in spaced if other.offset >= one.offset])
                with_copies.append(one._replace(offset=later.offset + random.randint(1, 99)))
        with_copies = list({one.offset: one for one in with_copies}.values())
        with_copies.sort(key=lambda one: one.offset)
        plain, copied = feed(spaced, order=order), feed(with_copies, order=order)
        assert copied.duplicates == plain.duplicates + len(with_copies) - len(spaced)
        assert (copied.ordered, copied.dead, copied.held) == (plain.ordered, plain.dead, plain.held)
        assert copied.blobs == plain.blobs


BAD: list[bytes] = [
    b"",
    b"not json",
    b'{"group":"chat","sender":"mallory","seq":1.0,"after":[]}',
    b'{"group":"chat","sender":"mallory","seq":1,"after":[],"position":1}',
    b'{"group":"chat","sender":"ann","seq":1,"after":[],"order":"total"}',
    b'{"group":"chat","sender":"mallory","seq":900000,"after":[["mallory",0,900001]]}',
    b'{"group":"other","sender":"mallory","seq":1,"after":[]}',
    b'{"group":"chat","kind":"leave","sender":"trent","last":1}',
    b'{"group":"chat","kind":"abandon","ids":[["ann",0,1,900000]]}',
    b'{"group":"chat","sender":"mallory","seq":1,"after":[],"data":"' + b"x" * 600_000 + b'"}',
]
"""Refused in every order, leaving no trace."""

BAD_IN_S_B: list[bytes] = [
    b'{"group":"chat","sender":"mallory","seq":1}',
    b'{"group":"chat","sender":"mallory","seq":1,"after":[["ann",0,1],["bob",0,1]]}',
    b'{"group":"chat","sender":"mallory","seq":2,"after":[["mallory",0,2]]}',
    b'{"group":"chat","sender":"mallory","seq":3,"after":[["mallory",0,2]]}',
]
"""Refused in s_b; the last two use up ids of their own sender that no honest message names."""


@every_order
def test_bad_records_change_nothing_for_those_who_do_not_name_them(order: str) -> None:
    for seed in seeds(100):
        random = Random(seed)
        history = conversation(random, order, loss=0.1)
        if not history.log:
            continue
        spaced = [one._replace(offset=one.offset * 100) for one in history.log]
        bad = (BAD + BAD_IN_S_B) if order == "s_b" else BAD
        attacks = [
            Arrival(value, GROUP.encode(), 0, 1 + at + 100 * random.randrange(len(spaced)), 5)
            for at, value in enumerate(bad)
        ]
        attacks.append(spaced[-1]._replace(partition=1, offset=spaced[-1].offset + 50))
        mixed = [*spaced, *attacks]
        mixed.sort(key=lambda one: one.offset)
        attacked = feed(mixed, order=order)
        plain = feed(spaced, order=order)
        assert len(attacked.dead) == len(attacks)
        assert attacked.ordered == plain.ordered
        assert attacked.held == plain.held
        assert attacked.duplicates == plain.duplicates


# ── hostile logs ──────────────────────────────────────────────────────────────────────────────────────────────────


def account(log: traffic.Log, outcome: Outcome) -> None:
    """First law: every raw record ends in exactly one way, at each of its destinations if it has any."""
    ordered = parsed(outcome.ordered)
    delivered = [(one["offset"], one.get("destination")) for one in ordered if one["status"] == "delivered"]
    dead = [(one["offset"], one.get("destination")) for one in parsed(outcome.dead)]
    held = [(one.offset, one.destination) for one in outcome.held]
    ended = Counter(delivered + dead + held)
    assert set(ended.values()) <= {1}, "a record that ended twice"
    places: dict[int, set[str | None]] = {}
    for offset, at in ended:
        places.setdefault(offset, set()).add(at)
    signs = silent = for_nobody = 0
    for record in log.records:
        fields = judge.read(record.value or b"") or {}
        ends = places.get(record.offset)
        if ends is None:
            silent += 1
            signs += fields["kind"] in ("heartbeat", "tick", "abandon")
            for_nobody += log.order == "causal_p2p" and is_for_nobody(fields, ordered, record.offset)
        elif ends != {None} and fields["kind"] == "message":
            assert ends == set(fields["to"]), "a destination where it did not end"
    assert signs <= silent - outcome.duplicates <= signs + for_nobody, "a record that did not end"


def is_for_nobody(fields: dict[str, Any], ordered: list[dict[str, Any]], offset: int) -> bool:
    """A message may name no destination, and a membership record may find none so far."""
    if fields["kind"] == "message":
        return fields.get("to") == []
    if fields["kind"] not in ("create", "leave", "evict"):
        return False
    return not any(one["group"] == fields["group"] and one["released_offset"] < offset for one in ordered)


@every_order
def test_every_record_ends_in_exactly_one_way(order: str) -> None:
    for seed in seeds(150):
        log = traffic.log(Random(f"{order} {seed}"), order, length=60)
        account(log, feed(log.records, order=order, limits=log.limits))


@every_order
def test_positions_have_no_hole_and_ids_come_once(order: str) -> None:
    for seed in seeds(120):
        log = traffic.log(Random(f"{order} {seed}"), order, length=60)
        records = parsed(feed(log.records, order=order, limits=log.limits).ordered)
        have_no_hole(records)


@every_order
def test_the_same_log_gives_the_same_bytes_whatever_the_cuts_and_restarts(order: str) -> None:
    for seed in seeds(120):
        random = Random(f"{order} {seed}")
        log = traffic.log(random, order, length=40)
        whole = feed(log.records, order=order, limits=log.limits)
        cuts = random.choice([range(len(log.records)), random.sample(range(len(log.records)), len(log.records) // 3)])
        assert feed(log.records, order=order, limits=log.limits, cuts=cuts) == whole, f"{log!r} cut at {list(cuts)}"


@every_order
@effort(25)
@given(random=randoms)
def test_the_same_log_gives_the_same_bytes_where_hypothesis_cuts(order: str, random: Random) -> None:
    log = traffic.log(random, order, length=12)
    cuts = [at for at in range(len(log.records)) if random.random() < 0.5]
    whole = feed(log.records, order=order, limits=log.limits)
    assert feed(log.records, order=order, limits=log.limits, cuts=cuts) == whole


@every_order
def test_state_loaded_touched_and_dumped_again_is_the_same_state(order: str) -> None:
    for seed in seeds(120):
        log = traffic.log(Random(f"{order} {seed}"), order, length=40)
        blobs = feed(log.records, order=order, limits=log.limits).blobs
        kernel = Holdback(order=order, limits=log.limits)
        kernel.load(blobs)
        for key in blobs:
            # No group lives in partition 9, so this is refused without a trace; but the group had to be decoded.
            touch = json.dumps({"group": key.decode(), "sender": "a", "seq": 1, "after": []}).encode()
            kernel.receive(touch, key, 9, 0, 0)
        assert len(kernel.dead) == len(blobs)
        assert kernel.dump() == blobs


@every_order
@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_records_in_other_partitions_than_their_key_says_do_not_matter(order: str, partitioner: str) -> None:
    strayed = 0
    for seed in seeds(60):
        random = Random(f"{order} {seed}")
        log = traffic.log(random, order, length=60)
        place: dict[str, Any] = {"partitions": random.randint(2, 4), "partitioner": partitioner}
        good = [one for one in log.records if one.key is None or partition_of(one.key, **place) == one.partition]
        with_strays = feed(log.records, order=order, limits=log.limits, **place)
        without = feed(good, order=order, limits=log.limits, **place)
        assert with_strays.ordered == without.ordered
        assert with_strays.blobs == without.blobs
        assert [one for one in with_strays.dead if one not in without.dead] == [
            one
            for one in with_strays.dead
            if parsed([one])[0]["offset"] in {one.offset for one in log.records} - {one.offset for one in good}
        ]
        strayed += sum(one["code"] == "wrong_partition" for one in parsed(with_strays.dead))
        cuts = [at for at in range(len(log.records)) if random.random() < 0.3]
        assert feed(log.records, order=order, limits=log.limits, cuts=cuts, **place) == with_strays
    assert strayed > 100


@every_order
def test_other_groups_do_not_matter_to_a_group(order: str) -> None:
    for seed in seeds(120):
        log = traffic.log(Random(f"{order} {seed}"), order, length=60)
        whole = feed(log.records, order=order, limits=log.limits)
        alone = feed([one for one in log.records if one.key == b"g"], order=order, limits=log.limits)
        assert [one for one, key in zip(whole.ordered, whole.ordered_keys, strict=True) if key == b"g"] == alone.ordered
        assert whole.blobs.get(b"g") == alone.blobs.get(b"g")


@every_order
def test_limits_on_what_is_held_hold_after_every_record(order: str) -> None:
    limits = Limits(held_max=3, held_bytes_max=200)
    refused = 0
    for seed in seeds(150):
        log = traffic.log(Random(f"{order} {seed}"), order, length=60)
        kernel = Holdback(order=order, limits=limits)
        size_of = {}
        before: set[int] = set()
        for record in log.records:
            kernel.receive(*record)
            size_of[record.offset] = len((record.value or b"").strip(b" \t\n\r"))
            for group in ("g", "h"):
                held = [one.offset for one in kernel.held(group)]
                assert len(held) <= 3
                assert sum(size_of[offset] for offset in set(held)) <= 200
            pressed = {one["offset"] for one in parsed(kernel.dead) if one["code"] == "backpressure"}
            assert not pressed & before, "a message already held was refused for lack of room"
            before = {one.offset for one in kernel.held()}
        refused += len(pressed)
    assert refused or order == "total"
