"""Random logs: honest and hostile records, with so few names and numbers that they collide."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from precede.udfs.limits import Limits
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import LogRecord
from tests.kernel.oracle_clocks import BY_CLOCKS


@dataclass(frozen=True)
class Log:
    """A log, and the kernel settings for it."""

    order: str
    limits: Limits
    records: list[LogRecord]

    def __repr__(self) -> str:
        lines = "\n".join(f"    {record}" for record in self.records)
        return f"Log({self.order!r}, {self.limits!r}, [\n{lines}\n])"


def smallest(log: Log, fails: Callable[[Log], object]) -> Log:
    """The log without every record that the same failure does not need."""
    at = 0
    while at < len(log.records):
        fewer = replace(log, records=log.records[:at] + log.records[at + 1 :])
        if fails(fewer):
            log, at = fewer, 0
        else:
            at += 1
    return log


OTHER_ORDERS = ("s_b", "fifo", "total")
SENDERS = ("a", "b", "c")


def log(random: Random, order: str, *, length: int = 30) -> Log:
    """One log of hostile and honest traffic for a kernel with this default order."""
    limits = random.choice(
        [
            Limits(),
            Limits(window=random.randint(2, 6), digests=random.randint(0, 2)),
            Limits(held_max=random.randint(1, 3)),
            Limits(held_bytes_max=random.randint(60, 250)),
            Limits(runs_max=random.randint(2, 3)),
            Limits(record_bytes_max=90, after_max=1),
        ]
    )
    writer = _Writer(random, order, seqs_max=random.choice([3, 6, 12]), hostile=random.choice([0.0, 0.1, 0.5]))
    records = [writer.record(offset) for offset in range(random.randint(1, length))]
    return Log(order, limits, records)


class _Writer:
    """Draws one record after the other; earlier records may be repeated."""

    def __init__(self, random: Random, order: str, *, seqs_max: int, hostile: float) -> None:
        self.random = random
        self.order = order
        self.seqs_max = seqs_max
        self.hostile = hostile
        self.epochs = random.choice([(0,), (0, 0, 0, 1), (0, 1, 2)])
        self.written: list[tuple[bytes | None, bytes | None]] = []
        self.kinds = random.choice(
            [
                ("message",),
                ("message",) * 9 + ("abandon",),
                ("message",) * 6 + ("abandon", "join", "leave", "evict", "create", "heartbeat"),
            ]
        )
        self.begin_with = random.choice(["message", "create", "closed"])

    def record(self, offset: int) -> LogRecord:
        random = self.random
        partition = 0 if random.random() > self.hostile / 4 else 1
        value, key = self._value(offset)
        self.written.append((value, key))
        return LogRecord(value, key, partition, offset, 1_000 + 10 * offset)

    def _value(self, offset: int) -> tuple[bytes | None, bytes | None]:
        random = self.random
        if self.written and random.random() < 0.1:
            return random.choice(self.written)
        group = random.choice("ggh")
        key = group.encode()
        fields: dict[str, Any] = {"group": group}
        if offset == 0 and self.begin_with != "message":
            fields |= self._create(closed=self.begin_with == "closed")
        else:
            kind = random.choice(self.kinds)
            fields |= getattr(self, f"_{kind}")()
        value = json.dumps(fields, separators=random.choice([(",", ":"), (", ", ": ")])).encode()
        if random.random() < self.hostile:
            return self._spoil(fields, value, key)
        return value, key

    def _who(self) -> str:
        return self.random.choice(SENDERS)

    def _id(self) -> list[Any]:
        return [self._who(), self.random.choice(self.epochs), self.random.randint(1, self.seqs_max)]

    def _message(self) -> dict[str, Any]:
        random = self.random
        sender, epoch, seq = self._id()
        fields: dict[str, Any] = {"sender": sender, "seq": seq}
        if epoch or random.random() < 0.2:
            fields["epoch"] = epoch
        fields["after"] = [self._id()] if random.random() < 0.7 else []
        fields |= self._stamp(sender, epoch, seq)
        if random.random() < 0.3:
            fields["data"] = random.randint(0, 1)
        if random.random() < 0.1:
            fields["meta"] = {"trace": random.randint(0, 1)} if random.random() > self.hostile else "no object"
        return fields

    def _stamp(self, sender: str, epoch: int, seq: int) -> dict[str, Any]:
        """The stamp that the log's default order needs, mostly honest."""
        random = self.random
        if self.order == "object":
            return {"after": [self._id() for _ in range(random.choice([0, 1, 1, 2]))]}
        if self.order in ("causal", "causal_p2p"):
            others = [self._id() for _ in range(random.choice([0, 0, 1, 2]))]
            own = [sender, epoch, seq if random.random() > self.hostile / 4 else seq + 1]
            entries = [one for one in others if one[:2] != [sender, epoch] or random.random() < self.hostile / 4]
            entries.insert(random.randint(0, len(entries)), own)
            return {"seen": entries, **({} if self.order == "causal" else self._sent_to(entries, own))}
        if self.order in BY_CLOCKS:
            return self._clocks(seq)
        return {}

    def _sent_to(self, entries: list[list[Any]], own: list[Any]) -> dict[str, Any]:
        """The destinations, and what was sent to each before: mostly some of what the sender has seen."""
        random = self.random
        known = [entry if entry is not own else [*own[:2], max(1, own[2] - 1)] for entry in entries]
        to = [self._who() for _ in range(random.choice([0, 1, 1, 2, 2, 3]))]
        sent = {
            name: [
                random.choice(known) if random.random() < 0.7 else self._id() for _ in range(random.choice([1, 1, 2]))
            ]
            for name in SENDERS
            if random.random() < 0.4
        }
        return {"to": to, "sent": sent}

    def _clocks(self, seq: int) -> dict[str, Any]:
        time = max(0, 2 * seq + self.random.randint(-2, 2))
        return {
            "time": time,
            **({"clock_ms": 10 * time + self.random.randint(-30, 30)} if self.order == "two_clock" else {}),
        }

    def _abandon(self) -> dict[str, Any]:
        ranges = []
        for _ in range(self.random.randint(1, 2)):
            sender, epoch, first = self._id()
            ranges.append([sender, epoch, first, first + self.random.randint(0, 2)])
        return {"kind": "abandon", "ids": ranges}

    def _create(self, *, closed: bool = False) -> dict[str, Any]:
        random = self.random
        options: dict[str, Any] = {"closed": closed}
        if random.random() < 0.3:
            options["order"] = random.choice([*OTHER_ORDERS, self.order, "unheard_of"])
        if self.order == "two_clock" and random.random() < 0.8:
            options |= {"accuracy_ms": random.randint(0, 20), "delay_min_ms": random.choice([0, 10, 60])}
            if random.random() < 0.5:
                options["delay_max_ms"] = random.randint(0, 60)
        if random.random() < 0.3:
            options["window"] = random.randint(1, 6)
        if random.random() < 0.3:
            options["digests"] = random.randint(0, 2)
        if random.random() < 0.2:
            options["description"] = "Trips and teas."
        return {"kind": "create", "options": options, "members": random.sample(SENDERS, random.randint(0, 2))}

    def _join(self) -> dict[str, Any]:
        time = {"time": self.random.randint(-1, 8)} if self.order in BY_CLOCKS and self.random.random() < 0.5 else {}
        return {"kind": "join", "sender": self._who(), "epoch": self.random.choice(self.epochs), **time}

    def _leave(self) -> dict[str, Any]:
        sender, epoch, seq = self._id()
        return {"kind": "leave", "sender": sender, "epoch": epoch, "last": seq - 1}

    def _evict(self) -> dict[str, Any]:
        sender, epoch, seq = self._id()
        return {"kind": "evict", "member": [sender, epoch], "cut": seq - 1}

    def _heartbeat(self) -> dict[str, Any]:
        sender, epoch, seq = self._id()
        clocks = self._clocks(seq) if self.order in BY_CLOCKS else {}
        return {"kind": "heartbeat", "sender": sender, "epoch": epoch, "seq": seq, **clocks}

    def _spoil(self, fields: dict[str, Any], value: bytes, key: bytes) -> tuple[bytes | None, bytes | None]:
        """One way in which a record can be bad."""
        random = self.random
        changes: list[dict[str, Any]] = [
            {"position": 7},
            {"unheard_of": 1},
            {"seq": 1.0},
            {"epoch": -1},
            {"sender": ""},
            {"kind": "unheard_of"},
            {"v": 2},
            {"after": [self._id(), self._id()]},
            {"after": None},
            {"data": "x" * 100},
        ]
        way = random.randint(0, len(changes) + 6)
        if way < len(changes):
            return json.dumps(fields | changes[way]).encode(), key
        fields.pop("after", None)
        rest: list[tuple[bytes | None, bytes | None]] = [
            (json.dumps(fields).encode(), key),
            (value[: random.randint(0, len(value))], key),
            (None, key),
            (value, None),
            (value, b"other"),
            (b" " + value + b"\n", key),
            (b'{"kind":"tick"}', random.choice([None, key])),
        ]
        return rest[way - len(changes)]


TICK = b'{"kind":"tick"}'


def of_groups(random: Random, order: str, *, groups: int, partitions: int) -> tuple[list[LogRecord], Limits]:
    """Traffic of several groups in their partitions, with ticks, and with some records in the wrong partition."""
    drawn = log(random, order, length=70)
    following = [0] * partitions
    records: list[LogRecord] = []
    for at, record in enumerate(drawn.records):
        name = str(random.randrange(groups)).encode()
        key, value = record.key, record.value
        if value is not None:
            value = value.replace(b'"g"', b'"g' + name + b'"')
        if key == b"g":
            key += name
        partition = record.partition if key is None else (partition_of(key, partitions) + record.partition) % partitions
        added: list[tuple[int, bytes | None, bytes | None]] = [(partition, key, value)]
        if random.random() < 0.3:
            added += [(number, None, TICK) for number in range(partitions)]
        for where, one_key, one_value in added:
            records.append(LogRecord(one_value, one_key, where, following[where], 1_000 + 10 * at))
            following[where] += random.choice([1, 1, 1, 2])  # the mark of a transaction has an offset too
    return records, drawn.limits
