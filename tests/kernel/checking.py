"""Runs logs through the kernel and gives what came out to the checker; and breaks it, one thing at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from precede.check.judge import Check, Report
from precede.check.records import OrderedRead, read_letter, read_ordered, read_raw
from precede.udfs.limits import Limits
from precede.udfs.records.messages import Id
from precede.udfs.records.wire import encode_message
from tests.kernel.feeding import Outcome, Taken, feed
from tests.kernel.object_clients import Group

Records = list[bytes]
"""Ordered records."""


def checked(
    log: Sequence[Taken],
    outcome: Outcome,
    order: str,
    *,
    limits: Limits | None = None,
    has_letters: bool = True,
    has_raw: bool = True,
) -> Report:
    """The verdict on what came out, read in step with the log as the sources do."""
    known = limits or Limits()
    check = Check(order=order, limits=known, has_raw=has_raw, has_letters=has_letters)
    letters = [read_letter(value) for value in outcome.dead] if has_letters and has_raw else []
    ordered = [read_ordered(value) for value in outcome.ordered]
    reached: dict[int, int] = {}
    taken = 0
    for value, key, partition, offset, timestamp_ms in log if has_raw else ():
        while letters and letters[0].offset <= (
            offset if letters[0].partition == partition else reached.get(letters[0].partition, -1)
        ):
            check.take_letter(letters.pop(0))
        check.take_raw(read_raw(value, key, partition, offset, timestamp_ms, known))
        reached[partition] = offset
        while taken < len(ordered) and ordered[taken].released_offset <= reached.get(ordered[taken].partition, -1):
            check.take(ordered[taken])
            taken += 1
    for letter in letters:
        check.take_letter(letter)
    for one in ordered[taken:]:
        check.take(one)
    check.settle()
    return check.report()


# ── objects ───────────────────────────────────────────────────────────────────────────────────────────────────────────

CONFLICTS = [("op1", "op2")]
OBJECTS = ("i", "j", "k")


def object_history(random: Random, count: int) -> list[Taken]:
    """Instances at three objects say messages to each other; the log has them in disorder, and not all of them."""
    group = Group(*OBJECTS, conflicts=CONFLICTS)
    running = [group.start(name, random.choice(["op1", "op2", "op3"])) for name in OBJECTS]
    said: list[Id] = []
    reached: list[Id] = []
    for _ in range(count):
        at = random.randrange(len(running))
        if random.random() < 0.3:
            group.commit(running[at])
            running[at] = group.start(OBJECTS[at], random.choice(["op1", "op2", "op3"]))
        to = random.sample(OBJECTS, random.randint(0, 2))
        group.send(running[at], random.choice(["op1", "op2", "op3"]), *to)
        said += [id_ for id_ in group.said if id_ not in said and id_ not in reached]
        while said and random.random() < 0.5:  # what comes late, and what its members see
            reached.append(said.pop(random.randrange(len(said))))
            if all(before in reached for before in group.significant[reached[-1]]):
                group.deliver(group.said[reached[-1]])
    random.shuffle(said)
    lost = {id_ for id_ in said if random.random() < 0.2}
    options = {"order": "object", "conflicts": CONFLICTS}
    create = {"kind": "create", "group": "g", "members": list(OBJECTS), "options": options}
    values = [json.dumps(create).encode()]
    for id_ in [*reached, *(id_ for id_ in said if id_ not in lost)]:
        one = group.said[id_]
        stamp = {"instance": one.instance, "op": one.op, "sender_op": one.sender_op, "type": one.type}
        data = f"message {id_[2]}"
        values.append(encode_message("g", *id_, after=list(one.after), to=list(one.to), object=stamp, data=data))
    for sender, epoch, seq in sorted(lost):
        value = {"kind": "abandon", "group": "g", "sender": "k", "ids": [[sender, epoch, seq, seq]]}
        values.insert(random.randint(1, len(values)), json.dumps(value).encode())
    return [(value, b"g", 0, offset, offset) for offset, value in enumerate(values)]


def _before_what_it_conflicts_with(random: Random, log: Sequence[Taken], *, in_a_circle: bool) -> Broken | None:
    """A later message of a sender names nothing any more, and reaches the log before one that must precede it."""
    known: dict[int, dict[str, Any]] = {at: parts(taken[0] or b"") for at, taken in enumerate(log)}
    pairs = [
        (early, late)
        for early, one in known.items()
        for late, other in known.items()
        if "object" in one and "object" in other and _precedes(one, other)
    ]
    random.shuffle(pairs)
    for early, late in pairs:
        values = {at: taken[0] for at, taken in enumerate(log)}
        one, other = dict(known[early]), dict(known[late])
        other["after"] = []
        if in_a_circle:
            one["after"] = [[other["sender"], other["epoch"], other["seq"]]]
        first, last = min(early, late), max(early, late)
        values[first], values[last] = (json.dumps(each).encode() for each in (other, one))
        changed = [(values[at], *taken[1:]) for at, taken in enumerate(log)]
        outcome = feed(changed, order="object")
        delivered = [each for each in map(parts, outcome.ordered) if "object" in each]
        misplaced = (each for at, each in enumerate(delivered) if any(_precedes(each, two) for two in delivered[:at]))
        first_wrong = next(misplaced, None)
        if first_wrong is not None and (one["sender"], one["seq"]) == (first_wrong["sender"], first_wrong["seq"]):
            return Broken(outcome.ordered, outcome.dead, {"object"}, changed)
    return None


def _precedes(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether Table 1 puts one message of a sender before another, as the stamps say."""
    if one["sender"] != other["sender"] or one["seq"] >= other["seq"] or not set(one["to"]) & set(other["to"]):
        return False
    if one["object"]["instance"] == other["object"]["instance"]:
        return True
    ops = one["object"]["sender_op"], other["object"]["sender_op"]
    return one["object"]["instance"] < other["object"]["instance"] and (ops in CONFLICTS or ops[::-1] in CONFLICTS)


# ── what can be wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Broken:
    """What came out, with one thing wrong."""

    ordered: Records
    dead: list[bytes]
    names: set[str]
    """The promises that this breaks, each of which names it rightly."""
    log: Sequence[Taken] | None = None
    """The raw log, where that says so, too."""


def parts(value: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value)
    return found


def with_field(value: bytes, name: str, new: object) -> bytes:
    """The record with another value in one of the appended fields."""
    at = value.rindex(b',"position":')
    text = re.sub(
        rb'("%b":)("(?:[^"\\]|\\.)*"|-?\d+)' % name.encode(),
        lambda found: found[1] + json.dumps(new, ensure_ascii=False).encode(),
        value[at:],
        count=1,
    )
    return value[:at] + text


def renumbered(records: Records) -> Records:
    """With positions as if nothing had happened: 1, 2, 3 at each destination."""
    last: dict[tuple[str, str | None], int] = {}
    result = []
    for value in records:
        one = read_ordered(value)
        last[one.group, one.destination] = position = last.get((one.group, one.destination), 0) + 1
        result.append(with_field(value, "position", position))
    return result


def messages(outcome: Outcome) -> list[int]:
    """Where the delivered messages stand."""
    return [
        at
        for at, value in enumerate(outcome.ordered)
        if parts(value)["status"] == "delivered" and parts(value).get("kind", "message") == "message"
    ]


Seed = Callable[[Random, Outcome, Sequence[Taken], str], Broken | None]
"""Breaks one thing; None where there is nothing to break."""

ORDERS_BY_STAMPS = {"s_b", "fifo", "causal", "causal_p2p", "lamport", "two_clock", "object", "total"}
ANY_TIME = {"early", "late", "sequence", "account", "released", "once", *ORDERS_BY_STAMPS}
"""A record at another place breaks one of these, depending on what stands between."""


def swapped(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """Two records of one sequence change places, and positions are made good."""
    at = _pair(random, outcome)
    if at is None:
        return None
    records = list(outcome.ordered)
    records[at[0]], records[at[1]] = records[at[1]], records[at[0]]
    return Broken(renumbered(records), outcome.dead, ANY_TIME)


def swapped_with_positions(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """Two records change places and keep their positions."""
    at = _pair(random, outcome)
    if at is None:
        return None
    records = list(outcome.ordered)
    records[at[0]], records[at[1]] = records[at[1]], records[at[0]]
    return Broken(records, outcome.dead, {"position", *ANY_TIME})


def _pair(random: Random, outcome: Outcome) -> tuple[int, int] | None:
    chosen = messages(outcome)
    random.shuffle(chosen)
    for at in chosen:
        one = read_ordered(outcome.ordered[at])
        for other in messages(outcome):
            two = read_ordered(outcome.ordered[other])
            if other > at and (one.group, one.destination) == (two.group, two.destination):
                return at, other
    return None


def dropped(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A record is missing, and its position with it."""
    at = _any(random, messages(outcome))
    if at is None:
        return None
    records = outcome.ordered[:at] + outcome.ordered[at + 1 :]
    return Broken(renumbered(records), outcome.dead, {"late", "account", *ANY_TIME})


def a_hole(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A record is missing, and a hole is left."""
    chosen = [at for at in messages(outcome) if _has_next(outcome, at)]
    at = _any(random, chosen)
    if at is None:
        return None
    return Broken(outcome.ordered[:at] + outcome.ordered[at + 1 :], outcome.dead, {"position", *ANY_TIME})


def _has_next(outcome: Outcome, at: int) -> bool:
    one = read_ordered(outcome.ordered[at])
    later = map(read_ordered, outcome.ordered[at + 1 :])
    return any((one.group, one.destination) == (two.group, two.destination) for two in later)


def doubled(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A record stands twice, under two positions."""
    at = _any(random, messages(outcome))
    if at is None:
        return None
    records = outcome.ordered[: at + 1] + outcome.ordered[at:]
    return Broken(renumbered(records), outcome.dead, {"once"})


def repeated_position(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A record stands twice, under one position."""
    at = _any(random, messages(outcome))
    if at is None:
        return None
    return Broken(outcome.ordered[: at + 1] + outcome.ordered[at:], outcome.dead, {"position", "once"})


def another_byte(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A letter of the text is another one."""
    at = _any(random, messages(outcome))
    if at is None or b'"message ' not in outcome.ordered[at]:
        return None
    records = list(outcome.ordered)
    records[at] = records[at].replace(b'"message ', b'"nessage ')
    return Broken(records, outcome.dead, {"bytes"})


def another_id(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A record speaks under an id that nobody used."""
    at = _any(random, messages(outcome))
    if at is None:
        return None
    records = list(outcome.ordered)
    seq = parts(records[at])["seq"]
    records[at] = records[at].replace(b'"seq":%d' % seq, b'"seq":%d' % (seq + 1_000), 1)
    return Broken(records, outcome.dead, {"bytes", "invented"})


def invented(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A message that is not in the log is delivered."""
    at = _any(random, messages(outcome))
    if at is None:
        return None
    value = outcome.ordered[at]
    seq = parts(value)["seq"]
    strange = value.replace(b'"seq":%d' % seq, b'"seq":%d' % (seq + 1_000), 1).replace(
        b'"%b",%d,%d]' % (parts(value)["sender"].encode(), 0, seq),
        b'"%b",%d,%d]' % (parts(value)["sender"].encode(), 0, seq + 1_000),
    )
    last = max(one.offset for one in map(read_ordered, outcome.ordered))
    strange = with_field(strange, "offset", last + 5_000)
    records = renumbered([*outcome.ordered[: at + 1], strange, *outcome.ordered[at + 1 :]])
    return Broken(records, outcome.dead, {"invented", "bytes", "account", "released"})


def wrong_position(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    return _field(random, outcome, "position", lambda one: one.position + random.choice([-1, 1, 7]), {"position"})


def released_earlier(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """What was held says that an earlier record released it."""
    held = [
        at
        for at in messages(outcome)
        if read_ordered(outcome.ordered[at]).released_offset > read_ordered(outcome.ordered[at]).offset
    ]
    names = {"released", "early", "late", "fields", "account", "once", "sequence", order}
    return _field(random, outcome, "released_offset", lambda one: one.released_offset - 1, names, held)


def released_later(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    names = {"released", "late", "fields", "account", "early", "sequence"}
    return _field(random, outcome, "released_offset", lambda one: one.released_offset + 1, names)


def released_before_it_came(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    names = {"released", "account", "once", "early"}
    return _field(random, outcome, "released_offset", lambda one: max(0, one.offset - 1), names, only_new=True)


def wrong_order(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    return _field(
        random, outcome, "order", lambda one: "total" if one.order != "total" else "fifo", {"fields"}, later=True
    )


def wrong_partition(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    return _field(
        random, outcome, "partition", lambda one: one.partition + 1, {"fields", "late", "account"}, later=True
    )


def wrong_offset(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    names = {"fields", "released", "account", "bytes", "once"}
    return _field(random, outcome, "offset", lambda one: one.offset + random.choice([-1, 1]), names)


def wrong_time(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    name = random.choice(["arrived_ms", "released_ms"])
    return _field(random, outcome, name, lambda one: getattr(one, name) + 1, {"fields"})


def wrong_destination(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    if order != "causal_p2p":
        return None
    return _field(random, outcome, "destination", lambda _: "nobody", {"destination", "position"}, later=True)


def wrongly_abandoned(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    return _field(random, outcome, "status", lambda _: "abandoned", {"account", "bytes", "destination", "late", order})


def unnamed_conflict(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A message is delivered before an earlier one that conflicts with it and has a destination in common."""
    return _before_what_it_conflicts_with(random, log, in_a_circle=False) if order == "object" else None


def circle_of_conflicts(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """What must come first because of a conflict depends on what must come after it."""
    return _before_what_it_conflicts_with(random, log, in_a_circle=True) if order == "object" else None


def refused_and_delivered(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A delivered message has a dead letter, too."""
    at = _any(random, messages(outcome))
    if at is None:
        return None
    one = read_ordered(outcome.ordered[at])
    letter = {"code": "malformed", "partition": one.partition, "offset": one.offset, "group": one.group}
    dead = [*outcome.dead, json.dumps(letter).encode()]
    dead.sort(key=lambda value: parts(value)["offset"])
    return Broken(outcome.ordered, dead, {"refused", "account", "invented", "fields", "early", "late"})


def wrongly_refused(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A good message has a dead letter and is not delivered."""
    first = {read_ordered(value).group: at for at, value in reversed(list(enumerate(outcome.ordered)))}
    at = _any(random, [at for at in messages(outcome) if at not in first.values()])
    if at is None:
        return None
    one = read_ordered(outcome.ordered[at])
    codes = ["missing_stamp", "bad_stamp", "self_parent", "equivocation", "fenced", "forged", "malformed", "wrong_key"]
    codes += ["abandoned", "not_member"] if order != "causal_p2p" else []
    codes += ["late"] if order not in ("lamport", "two_clock") else []
    letter = {"code": random.choice(codes), "partition": one.partition, "offset": one.offset, "group": one.group}
    dead = sorted([*outcome.dead, json.dumps(letter).encode()], key=lambda value: parts(value)["offset"])
    left = [each for each in outcome.ordered if read_ordered(each).offset != one.offset]
    return Broken(renumbered(left), dead, {"refused"})


def refused_twice(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    at = _any(random, list(range(len(outcome.dead))))
    if at is None:
        return None
    return Broken(outcome.ordered, outcome.dead[: at + 1] + outcome.dead[at:], {"account"})


def unrefused(random: Random, outcome: Outcome, log: Sequence[Taken], order: str) -> Broken | None:
    """A dead letter is missing."""
    at = _any(random, list(range(len(outcome.dead))))
    if at is None:
        return None
    names = {"account", "late", "fence", "early"}
    return Broken(outcome.ordered, outcome.dead[:at] + outcome.dead[at + 1 :], names)


def _field(
    random: Random,
    outcome: Outcome,
    name: str,
    new: Callable[[OrderedRead], object],
    names: set[str],
    chosen: list[int] | None = None,
    *,
    later: bool = False,
    only_new: bool = False,
) -> Broken | None:
    """One appended field of one record is another one."""
    chosen = messages(outcome) if chosen is None else chosen
    if later:  # the first record of a group tells what the others are compared with
        firsts: dict[str, int] = {}
        for number, value in enumerate(outcome.ordered):
            firsts.setdefault(read_ordered(value).group, number)
        chosen = [number for number in chosen if number not in firsts.values()]
    if only_new:
        chosen = [number for number in chosen if read_ordered(outcome.ordered[number]).offset > 0]
    at = _any(random, chosen)
    if at is None:
        return None
    one = read_ordered(outcome.ordered[at])
    value = with_field(outcome.ordered[at], name, new(one))
    records = list(outcome.ordered)
    records[at] = value
    return Broken(records, outcome.dead, names)


def _any(random: Random, chosen: list[int]) -> int | None:
    return random.choice(chosen) if chosen else None


CATALOGUE: dict[str, Seed] = {
    each.__name__: each
    for each in (
        swapped,
        swapped_with_positions,
        dropped,
        a_hole,
        doubled,
        repeated_position,
        another_byte,
        another_id,
        invented,
        wrong_position,
        released_earlier,
        released_later,
        released_before_it_came,
        wrong_order,
        wrong_partition,
        wrong_offset,
        wrong_time,
        wrong_destination,
        wrongly_abandoned,
        unnamed_conflict,
        circle_of_conflicts,
        refused_and_delivered,
        wrongly_refused,
        refused_twice,
        unrefused,
    )
}
"""What can be wrong with a stream."""
