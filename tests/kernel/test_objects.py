"""The object-based protocol at clients and hosts: object vectors, predecessors, the ready rule; one test per claim."""

from __future__ import annotations

import json
from itertools import permutations
from random import Random

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.member.objects import (
    AFTER_MAX,
    Conflicts,
    InstanceQueue,
    ObjectMessage,
    Queued,
    precedes,
    was_sent_before,
)
from precede.udfs.records.messages import Id
from precede.udfs.records.wire import encode_message
from tests.kernel.effort import seeds
from tests.kernel.histories import vectors
from tests.kernel.object_clients import Group

COUNTER = [("increment", "show"), ("decrement", "show")]


def text(id_: tuple[int, str, int] | None) -> str:
    return "0" if id_ is None else "{}{}{}".format(*id_)


def fig_4(conflicts: list[tuple[str, str]]) -> tuple[Group, dict[str, ObjectMessage]]:
    """op1 on i sends m1 to j and k; op3 on j, invoked by m1, sends m2 to k; op2 on i, beside op1, sends m3 to k."""
    group = Group("i", "j", "k", conflicts=conflicts)
    op1, op2 = group.start("i", "op1"), group.start("i", "op2")
    m1 = group.send(op1, "op4", "j", "k")
    m3 = group.send(op2, "op6", "k")
    group.deliver(m1, "j")
    op3 = group.start("j", "op3", m1)
    m2 = group.send(op3, "op5", "k")
    return group, {"m1": m1, "m2": m2, "m3": m3}


def test_table_2_and_fig_4_give_their_identifiers_and_vectors() -> None:
    (vector,) = vectors("obg")
    _, messages = fig_4([])
    for name, expected in vector["msgs"].items():
        message = messages[name]
        assert text(message.global_id) == expected["id"]
        assert [text(message.vector.get(one)) for one in "ijk"] == expected["V"]


@pytest.mark.parametrize("key", ["precedes_if_conflict(op4,op5)", "precedes_otherwise"])
def test_fig_4_orders_m1_before_m2_if_op4_and_op5_conflict_and_nothing_else(key: str) -> None:
    (vector,) = vectors("obg")
    group, messages = fig_4([("op4", "op5")] if "if" in key else [])
    found = [
        f"{one}<{two}"
        for one, two in permutations(sorted(messages), 2)
        if precedes(messages[one], messages[two], group.conflicts)
    ]
    assert found == vector[key]


def test_fig_3_an_instance_counts_its_messages_and_what_it_invokes_starts_later() -> None:
    group = Group("i", "j")
    op1 = group.start("i", "op1")
    first = group.send(op1, "op2", "j")
    group.deliver(first, "j")
    op2 = group.start("j", "op2", first)
    assert (text(first.global_id), first.vector) == ("1i0", {})
    assert (op1.vector, op2.sid, op2.vector) == ({"i": (1, "i", 0)}, (2, "j"), {"i": (1, "i", 0)})
    group.commit(op2)
    assert group.objects["j"].vector == {"i": (1, "i", 0)}
    assert text(group.send(op1, "op2", "j").global_id) == "1i1"


def test_what_an_aborted_instance_knew_its_object_does_not_know() -> None:
    group = Group("i", "j")
    message = group.send(group.start("i", "op1"), "op2", "j")
    group.deliver(message, "j")
    group.start("j", "op2", message)  # and it never commits
    assert group.objects["j"].vector == {}


# ── the printed rule against the ruling ───────────────────────────────────────────────────────────────────────────


def test_identifiers_as_text_put_the_tenth_instance_before_the_second_and_tuples_do_not() -> None:
    assert text((10, "i", 0)) < text((2, "i", 0))
    assert (10, "i", 0) > (2, "i", 0)


def test_without_merging_the_identifier_received_table_2_cannot_be_reached() -> None:
    _, messages = fig_4([])
    printed: dict[str, tuple[int, str, int]] = dict(messages["m1"].vector)  # v_j := max(v_j, m.v_j) alone
    assert printed == {}
    assert messages["m2"].vector == {"i": (1, "i", 0)}


def test_theorem_2_orders_m3_before_m2_by_their_vectors_and_the_rule_leaves_them_alone() -> None:
    group, messages = fig_4([("op4", "op5"), ("op5", "op6")])
    m2, m3 = messages["m2"], messages["m3"]
    assert m3.vector.items() < m2.vector.items()  # m3.V < m2.V, so the theorem puts m3 before m2
    assert not was_sent_before(m3, m2)
    assert not precedes(m3, m2, group.conflicts)


def test_conflict_closed_transitively_makes_increments_wait_for_each_other_and_the_table_does_not() -> None:
    closed = Conflicts([*COUNTER, ("increment", "increment"), ("increment", "decrement"), ("decrement", "decrement")])
    table = Conflicts(COUNTER)
    waits = []
    for conflicts in (closed, table):
        queue = InstanceQueue(conflicts)
        waits.append([not queue.arrive(("a", 0, seq), op) for seq, op in enumerate(["increment"] * 2 + ["decrement"])])
    assert waits == [[False, True, True], [False, False, False]]


def test_cid_leaves_two_conflicting_instances_unordered_and_the_table_orders_them() -> None:
    # On o_i: A starts, B (compatible with both) starts, A ends, C (which conflicts with A) starts while B runs.
    group = Group("i", "k", conflicts=[("A", "C")])
    cid: dict[str, str] = {}
    running: list[str] = []
    sent = {}
    for step in ("+A", "+B", "-A", "+C"):
        name = step[1]
        if step[0] == "-":
            running.remove(name)
            continue
        cid[name] = cid[running[-1]] if running else name  # the printed rule: the cid of a running instance
        running.append(name)
        sent[name] = group.send(group.start("i", name), "op", "k")
    assert cid["A"] == cid["C"]  # so the printed rule treats them as compatible
    assert precedes(sent["A"], sent["C"], group.conflicts)
    assert not precedes(sent["B"], sent["C"], group.conflicts)
    assert sent["A"].id in sent["C"].after


# ── the ready rule ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_instance_waits_while_a_conflicting_one_runs_or_waits_before_it() -> None:
    queue = InstanceQueue(Conflicts(COUNTER))
    one, two, look, three = (("a", 0, seq) for seq in range(1, 5))
    assert (queue.arrive(one, "increment"), queue.arrive(two, "decrement")) == (True, True)
    assert queue.arrive(look, "show") is False
    assert queue.arrive(three, "increment") is False  # or a stream of increments would starve the show
    assert queue.finish(one) == []
    assert queue.finish(two) == [look]
    assert queue.finish(look) == [three]
    assert (queue.running, queue.waiting) == ({three: Queued("increment")}, {})


class _PlainQueue:
    """The ready rule as it is said, without any index."""

    def __init__(self, conflicts: Conflicts) -> None:
        self.conflicts = conflicts
        self.running: dict[Id, Queued] = {}
        self.waiting: dict[Id, Queued] = {}

    def arrive(self, id_: Id, op: str, transaction: Id | None) -> bool:
        self.waiting[id_] = Queued(op, transaction)
        return id_ in self.look()

    def finish(self, id_: Id) -> list[Id]:
        (self.running if id_ in self.running else self.waiting).pop(id_)
        return self.look()

    def keep_undecided(self, id_: Id) -> list[Id]:
        self.running[id_] = self.running[id_]._replace(undecided=True)
        return self.look()

    def look(self) -> list[Id]:
        before: list[Queued] = []
        started: list[Id] = []
        for id_, new in list(self.waiting.items()):
            own = [one for one in self.running.values() if one.undecided and one.transaction == new.transaction]
            others = [one for one in self.running.values() if one not in own]
            others += [one for one in before if not any(self.conflicts.between(one.op, mine.op) for mine in own)]
            if any(self.conflicts.between(new.op, one.op) for one in others):
                before.append(new)
            else:
                self.running[id_] = self.waiting.pop(id_)
                started.append(id_)
        return started


def test_the_queue_starts_what_the_rule_says_whatever_comes_and_ends() -> None:
    for seed in seeds(400):
        random = Random(seed)
        table = Conflicts([(random.choice("abcd"), random.choice("abcd")) for _ in range(random.randrange(5))])
        queue, plain = InstanceQueue(table), _PlainQueue(table)
        for number in range(60):
            there = [*queue.running, *queue.waiting]
            choice = random.random()
            if choice < 0.5 or not there:
                id_, op, of = ("x", 0, number), random.choice("abcde"), ("t", 0, random.randrange(6))
                assert queue.arrive(id_, op, of) == plain.arrive(id_, op, of), f"seed {seed}"
            elif choice < 0.8 or not queue.running:
                id_ = random.choice(there)
                assert queue.finish(id_) == plain.finish(id_), f"seed {seed}"
            else:
                id_ = random.choice(list(queue.running))
                if not queue.running[id_].undecided:
                    assert queue.keep_undecided(id_) == plain.keep_undecided(id_), f"seed {seed}"
            assert (queue.running, queue.waiting) == (plain.running, plain.waiting), f"seed {seed}"


def test_one_that_is_not_ready_blocks_nobody_else() -> None:
    queue = InstanceQueue(Conflicts([("a", "a")]))
    assert [queue.arrive(("x", 0, seq), op) for seq, op in enumerate("aab")] == [True, False, True]


# ── stamping the predecessors ─────────────────────────────────────────────────────────────────────────────────────


def test_compatible_requests_do_not_name_each_other_and_conflicting_ones_that_are_known_do() -> None:
    group = Group("i", "j", "k", "l", conflicts=COUNTER)
    for name in "ij":
        instance = group.start(name, "client")
        group.deliver(group.send(instance, "increment", "k"))
        group.commit(instance)
    i1, j1 = group.said.values()
    assert (i1.after, j1.after) == ((), ())
    look = group.start("l", "look", i1)
    group.receive(look, j1)
    assert set(group.send(look, "show", "k").after) == {i1.id, j1.id}


def test_what_another_predecessor_names_is_not_named_again() -> None:
    group = Group("i", "k")
    instance = group.start("i", "client")
    sent = [group.send(instance, "op", "k") for _ in range(4)]
    assert [one.after for one in sent] == [(), *((one.id,) for one in sent[:3])]


def test_a_message_names_at_most_what_a_record_may_and_its_causes_first() -> None:
    group = Group("i", "j", "k", conflicts=COUNTER)
    for _ in range(3 * AFTER_MAX):
        instance = group.start("i")
        last = group.send(instance, "increment", "k")
        group.deliver(last)
        group.commit(instance)
    after = group.send(group.start("j", "look", last), "show", "k").after
    assert (len(after), after[0]) == (AFTER_MAX, last.id)


def test_what_compatible_instances_say_is_not_chained_and_a_third_object_follows_what_it_received() -> None:
    # i sends x to k and, from a later instance, y to j, while x is on its way; j sends m to k, which conflicts with x.
    group = Group("i", "j", "k", conflicts=[("put", "get")])
    first = group.start("i", "client")
    x = group.send(first, "put", "k")
    group.commit(first)
    y = group.send(group.start("i", "client"), "tell", "j")
    group.deliver(y, "j")
    m = group.send(group.start("j", "tell", y), "get", "k")
    assert (y.after, m.after) == ((), (y.id,))
    assert x.id not in group.significant[m.id], "so k executes the two in the one order of their delivery"


@pytest.mark.parametrize("is_done", [False, True])
def test_close_after_more_deposits_than_a_record_may_name_follows_all_of_them(is_done: bool) -> None:
    """What is in flight may arrive in any order, so `close` follows each deposit: by a message that names some."""
    group = Group("teller", "account", conflicts=[("deposit", "close")])
    deposits = []
    for _ in range(5 * AFTER_MAX + 5):
        instance = group.start("teller", "deposit")
        deposits.append(group.send(instance, "deposit", "account"))
        if is_done:
            group.commit(instance)
    assert {one.after for one in deposits} == {()}
    close = group.send(group.start("teller", "close"), "close", "account")
    assert max(len(one.after) for one in group.said.values()) <= AFTER_MAX
    kernel = Holdback(order="object")
    for offset, one in enumerate(reversed(group.said.values())):
        kernel.receive(encode_message("g", *one.id, after=list(one.after)), b"g", offset=offset)
    delivered = [json.loads(record)["seq"] for record in kernel.ordered]
    assert sorted(delivered) == sorted(id_[2] for id_ in group.said)
    assert delivered[-1] == close.id[2]
    group.deliver(close)
    again = group.send(group.start("teller", "close"), "close", "account")
    assert len(again.after) <= AFTER_MAX


def test_what_an_instance_received_is_named_although_it_is_more_than_a_record_may_name() -> None:
    """Without a log nobody else can be trusted to have what was delivered here."""
    group = Group("i", "k")
    received = [group.send(group.start("k", "other"), "tell", "i") for _ in range(AFTER_MAX + 1)]
    instance = group.start("i", "client")
    for one in received:
        group.deliver(one)
        group.receive(instance, one)
    last = group.send(instance, "ask", "k")
    named: set[Id] = set()
    for id_ in last.after:
        named |= {id_, *group.said[id_].after}
    assert {one.id for one in received} <= named


def _run(random: Random) -> tuple[Group, list[ObjectMessage]]:
    """Objects invoke each other at random; messages are delivered to all in one order, as early as possible."""
    ops = "abc"
    group = Group("i", "j", "k", "l", conflicts=[("a", "b"), ("b", "b"), ("c", "a")])
    names = sorted(group.objects)
    flying: list[ObjectMessage] = []
    there: set[Id] = set()
    for _ in range(25):
        ready = [one for one in flying if there >= set(one.after)]
        if ready and random.random() < 0.6:
            message = random.choice(ready)
            flying.remove(message)
            there.add(message.id)
            group.deliver(message)
            for name in message.to:
                if random.random() < 0.6:
                    instance = group.start(name, message.op, message)
                    to = random.sample(names, random.randint(1, 2))
                    flying.append(group.send(instance, random.choice(ops), *to))
                    group.commit(instance)
        else:
            name = random.choice(names)
            instance = group.start(name, "client" if random.random() < 0.5 else random.choice(ops))
            flying.append(group.send(instance, random.choice(ops), *random.sample(names, 2)))
            flying.append(group.send(instance, random.choice(ops), random.choice(names)))
            if random.random() < 0.8:
                group.commit(instance)
    return group, list(group.said.values())


def test_every_message_comes_after_all_that_significantly_precedes_it_whatever_the_arrival() -> None:
    for seed in range(150):
        random = Random(seed)
        group, said = _run(random)
        arrival = random.sample(said, len(said))
        kernel = Holdback(order="object")
        for offset, one in enumerate(arrival):
            name, epoch, seq = one.id
            kernel.receive(encode_message("g", name, epoch, seq, after=list(one.after)), b"g", offset=offset)
        assert len(kernel.ordered) == len(said)
        delivered = [json.loads(record) for record in kernel.ordered]
        place = {(one["sender"], one["epoch"], one["seq"]): one["position"] for one in delivered}
        for one, other in permutations(said, 2):
            if one.id in group.significant[other.id]:
                assert place[one.id] < place[other.id], f"seed {seed}: {one} not before {other}"
