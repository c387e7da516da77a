"""Feeds logs to the kernel and collects its output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from precede.udfs.engine.held import Held
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits, Patience
from precede.udfs.records.signatures import sign
from tests.signing import private

Id: TypeAlias = tuple[str, int, int]
Taken: TypeAlias = tuple[bytes | None, bytes | None, int, int, int]
"""The arguments of `Holdback.receive`."""


@dataclass
class Outcome:
    """The whole output for a log."""

    ordered: list[bytes] = field(default_factory=list)
    ordered_keys: list[bytes] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)
    dead_keys: list[bytes | None] = field(default_factory=list)
    own: list[tuple[Any, ...]] = field(default_factory=list)
    """The job's own records: (topic, key, value, offset)."""
    duplicates: int = 0
    held: list[Held] = field(default_factory=list)
    blobs: dict[bytes, bytes] = field(default_factory=dict)


def feed(
    records: Sequence[Taken],
    *,
    order: str = "s_b",
    limits: Limits | None = None,
    patience: Patience | None = None,
    partitions: int | None = None,
    partitioner: str = "murmur2",
    cuts: Iterable[int] = (),
) -> Outcome:
    """Run a log through the kernel; before the records at `cuts`, a new kernel takes over its state from blobs."""
    outcome = Outcome()
    new = partial(
        Holdback, order=order, limits=limits, patience=patience, partitions=partitions, partitioner=partitioner
    )
    kernel = new()
    restart_at = set(cuts)
    for at, record in enumerate(records):
        if at in restart_at:
            _take(kernel, outcome)
            blobs = dict(kernel.dump())
            kernel = new()
            kernel.load(blobs)
        kernel.receive(*record)
    _take(kernel, outcome)
    outcome.held = list(kernel.held())
    outcome.blobs = dict(kernel.dump())
    return outcome


def _take(kernel: Holdback, outcome: Outcome) -> None:
    outcome.ordered += kernel.ordered
    outcome.ordered_keys += kernel.ordered_keys
    outcome.dead += kernel.dead
    outcome.dead_keys += kernel.dead_keys
    outcome.own += [(one.topic, one.key, one.value, one.offset) for one in kernel.own]
    outcome.duplicates += kernel.duplicates
    kernel.clear()


def id_of(record: dict[str, Any]) -> Id:
    """The id in a parsed record or dead letter."""
    return record["sender"], record.get("epoch", 0), record["seq"]


def parsed(values: Iterable[bytes]) -> list[dict[str, Any]]:
    """The records, decoded."""
    return [json.loads(value) for value in values]


class Tale:
    """A kernel that takes one record at a time in short notation; each call returns the record's effects."""

    def __init__(
        self,
        order: str = "s_b",
        limits: Limits | None = None,
        group: str = "g",
        patience: Patience | None = None,
        partitions: int | None = None,
    ) -> None:
        self.kernel = Holdback(order=order, limits=limits, patience=patience, partitions=partitions)
        self.group = group
        self.offset = 0
        self.waited_ms = 0

    def wait(self, seconds: float) -> Tale:
        """Let the log's time pass, in addition to 10 ms per record."""
        self.waited_ms += round(seconds * 1000)
        return self

    def tick(self, seconds: float = 0, *, partition: int = 0) -> Tale:
        """Let the log's time pass, and show it by a tick."""
        return self.wait(seconds).raw(b'{"kind":"tick"}', key=None, partition=partition)

    def restart(self) -> Tale:
        """Continue in a new kernel with the state of this one."""
        known = self.kernel
        self.kernel = Holdback(
            order=known.order, limits=known.limits, patience=known.patience, partitions=known.partitions
        )
        self.kernel.load(dict(known.dump()))
        return self

    def raw(self, value: bytes | None, *, key: bytes | None = b"", partition: int = 0) -> Tale:
        """Feed one record as it is; its key is the group's by default."""
        self.kernel.clear()
        self.kernel.receive(value, self.group.encode() if key == b"" else key, partition, self.offset, self.now_ms)
        self.offset += 1
        return self

    @property
    def now_ms(self) -> int:
        """The log's time at the next record."""
        return self.offset * 10 + self.waited_ms

    def take(self, *, partition: int = 0, by: str | None = None, **fields: Any) -> Tale:
        """Feed one record with these fields, signed with the key derived from `by`."""
        record = json.dumps({"group": self.group, **fields}).encode()
        return self.raw(record if by is None else sign(record, private(by)), partition=partition)

    def say(self, name: str, after: str | None = None, **more: Any) -> Tale:
        """Feed a message by its short name: in `say("B3", "B2")` B is the sender, 3 the seq, B2 what it answers."""
        sender, seq = split(name)
        parents = [] if after is None else [[split(after)[0], 0, split(after)[1]]]
        return self.take(**{"sender": sender, "seq": seq, "after": parents, **more})

    @property
    def out(self) -> list[str]:
        """The short names of what the last record delivered, in brackets for the stand-in of an abandoned message."""
        names = []
        for one in parsed(self.kernel.ordered):
            name = one["kind"] if one.get("kind", "message") != "message" else short(id_of(one))
            names.append(at(one.get("destination"), f"({name})" if one["status"] == "abandoned" else name))
        return names

    @property
    def dead(self) -> list[str]:
        """The codes of the last record's dead letters, with the short names of their messages."""
        return [
            one["code"] if one["seq"] is None else f"{one['code']} {at(one.get('destination'), short(id_of(one)))}"
            for one in parsed(self.kernel.dead)
        ]

    @property
    def own(self) -> list[str]:
        """The job's own records for the last record, in short notation."""
        return [_own_text(one.topic, json.loads(one.value)) for one in self.kernel.own]

    @property
    def held(self) -> dict[str, list[str]]:
        """What is held now, and what each waits for; a plain name is a member that must join."""
        return {
            at(one.destination, short((one.sender, one.epoch, one.seq))): [short(id_) for id_ in one.missing]
            + one.silent
            for one in self.kernel.held(self.group)
        }


def _own_text(topic: str, one: Any) -> str:
    if topic == "raw":
        if one["kind"] == "evict":
            name, epoch = one["member"]
            return f"writes evict {name}{f'@{epoch}' if epoch else ''} cut {one['cut']}"
        return f"writes abandon {', '.join(_run_text(*run) for run in one['ids'])}"
    if topic == "person":
        return str(one)
    run = _run_text(one["sender"], one["epoch"], one["first"], one["last"])
    return f"asks {one['to'] or 'everybody'} for {run}" if one["kind"] == "ask" else f"{one['kind']} {run}"


def _run_text(name: str, epoch: int, first: int, last: int) -> str:
    run = short((name, epoch, first))
    return run if first == last else f"{run} to {short((name, epoch, last))}"


def at(destination: str | None, name: str) -> str:
    """A name at one destination: C:A1 is A1 at C."""
    return name if destination is None else f"{destination}:{name}"


def split(name: str) -> tuple[str, int]:
    """The sender and the seq of a short name."""
    sender = name.rstrip("0123456789")
    return sender, int(name[len(sender) :])


def short(id_: Id) -> str:
    """The short name of an id; an epoch other than 0 follows after @."""
    sender, epoch, seq = id_
    return f"{sender}{seq}" if epoch == 0 else f"{sender}{seq}@{epoch}"
