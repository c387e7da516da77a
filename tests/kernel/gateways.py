"""Gateways between simulated segments and a simulated log: all of it on one clock, with chance from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from precede.gateway.bridge import Bridge
from precede.gateway.history import LogHistory
from precede.gateway.log_kernel import LogKernel
from precede.gateway.publish_queue import HeardRecord
from precede.ingest.live.kernel import KernelState, RawRow, StreamIdentity
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.records.messages import Id
from tests.kernel.medium import Weather
from tests.kernel.segments import Segments

STEP_MS = 5.0


class SimulatedLog:
    """One partition; what is published arrives a little later, unless the log is away."""

    def __init__(
        self, seed: int, way_ms: tuple[float, float] = (2.0, 8.0), *, order: str = "s_b", limits: Limits | None = None
    ) -> None:
        self.stream = StreamIdentity("ordered", "raw", "raw", 1, order, limits or Limits(), "murmur2", 1)
        self.rows: list[RawRow] = []
        self.is_away = False
        self._random = Random(seed)
        self.way_ms = way_ms
        self.cut_off: set[str] = set()
        """The gateways that cannot reach it."""
        self._coming: list[tuple[float, str, bytes]] = []
        self._last_ms: dict[str, float] = {}

    def publish(self, producer: str, value: bytes, now_ms: float) -> None:
        """One producer's records keep their order."""
        arrives_ms = max(now_ms + self._random.uniform(*self.way_ms), self._last_ms.get(producer, 0.0))
        self._last_ms[producer] = arrives_ms
        self._coming.append((arrives_ms, producer, value))

    def write(self, value: bytes) -> None:
        """A client of the log writes a record, now."""
        self.rows.append((value, json.loads(value)["group"].encode(), 0, len(self.rows), len(self.rows)))

    def run(self, now_ms: float) -> None:
        """What is due arrives."""
        arrived = [one for one in self._coming if one[0] <= now_ms and self.is_reached_by(one[1])]
        for one in sorted(arrived, key=lambda one: one[0]):
            self._coming.remove(one)
            self.write(one[2])

    def is_reached_by(self, gateway: str) -> bool:
        return not self.is_away and gateway not in self.cut_off

    def ordered(self) -> Holdback:
        """The kernel of the job over all of it."""
        kernel = Holdback(order=self.stream.order, partitions=1, limits=self.stream.limits)
        for row in self.rows:
            kernel.receive(*row)
        return kernel

    def delivered(self, group: str) -> list[Id]:
        """The messages that the job delivers, in order."""
        return [id_ for id_, _ in self.places(group)]

    def places(self, group: str) -> list[tuple[Id, str | None]]:
        """The same, each with its destination where the order has them."""
        found = [json.loads(value) for value in self.ordered().ordered]
        return [
            ((one["sender"], one.get("epoch", 0), one["seq"]), one.get("destination"))
            for one in found
            if one["group"] == group and one.get("kind", "message") == "message" and one["status"] == "delivered"
        ]

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind in the log."""
        found = [json.loads(value or b"{}") for value, *_ in self.rows]
        return [one for one in found if one.get("kind", "message") == kind]

    def dead(self) -> list[str]:
        """The codes of what was refused."""
        return list(self.ordered().dead_codes)


@dataclass
class KeptOnDisk:
    """The spool of a simulated gateway; it outlives a crash."""

    rows: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    number: int = 0

    def add(self, entries: Sequence[HeardRecord]) -> None:
        for entry in entries:
            self.number += 1
            entry.row = self.number
            self.rows[self.number] = entry.key[0], entry.value

    def remove(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.rows.pop(row, None)


class SimulatedGateway:
    """One gateway of one or more segments."""

    def __init__(self, name: str, log: SimulatedLog, segments: list[Segments], disk: KeptOnDisk, **more: Any) -> None:
        self.name = name
        self.log = log
        self.segments = segments
        self.said: list[str] = []
        self.kernel = LogKernel(log.stream, KernelState({0: 0}, {}, {}))
        self.bridge = Bridge(self.kernel, LogHistory(), disk, say=self.said.append, **more)
        self.at = 0
        now_ms = segments[0].medium.now_ms
        while self.at < len(log.rows):
            self.read(now_ms)
        for row, (group, value) in list(disk.rows.items()):
            self.bridge.take_spooled(group, value, row, now_ms)
        for of in segments:
            self.bridge.add("segment", of.start(name, is_gateway=True))

    def read(self, now_ms: float) -> None:
        rows = self.log.rows[self.at : self.at + 500]
        self.at += len(rows)
        self.bridge.take_log(rows, now_ms)

    def turn(self) -> None:
        """Read, carry, publish."""
        now_ms = self.segments[0].medium.now_ms
        for side, of in zip(self.bridge.sides, self.segments, strict=True):
            self.bridge.take_events(side, side.segment.take_events(), now_ms)
            assert of[self.name] is side.segment
        if self.log.is_reached_by(self.name):
            self.read(now_ms)
            self.bridge.reads_to_end = self.at == len(self.log.rows)
        self.bridge.step(now_ms)
        for entry in self.bridge.take_upward(now_ms):
            self.log.publish(self.name, entry.value, now_ms)
        for of in self.segments:
            of.medium.poke(self.name)


class World:
    """Segments, gateways, a log."""

    def __init__(
        self,
        *,
        seed: int = 1,
        segments: int = 1,
        weather: Weather | None = None,
        order: str = "s_b",
        limits: Limits | None = None,
    ) -> None:
        """`order` is the default of the log, and `limits` are what its records may have."""
        self.log = SimulatedLog(seed, order=order, limits=limits)
        self.segments = [Segments(seed=seed + at, weather=weather) for at in range(segments)]
        self.gateways: dict[str, SimulatedGateway] = {}
        self.disks: dict[str, KeptOnDisk] = {}

    def gateway(self, name: str, *, at: Sequence[int] = (0,), **more: Any) -> SimulatedGateway:
        """A gateway starts, or starts again with what its disk has."""
        of = [self.segments[number] for number in at]
        disk = self.disks.setdefault(name, KeptOnDisk())
        self.gateways[name] = SimulatedGateway(name, self.log, of, disk, **more)
        return self.gateways[name]

    def kill(self, name: str) -> None:
        """A gateway is gone at once."""
        for of in self.gateways.pop(name).segments:
            of.medium.crash(name)

    def run(self, for_ms: float) -> None:
        """Play on."""
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            until_ms = self.now_ms + STEP_MS
            for of in self.segments:
                of.medium.run(until_ms)
            self.log.run(until_ms)
            for gateway in self.gateways.values():
                gateway.turn()
            for of in self.segments:
                for name in of.medium.nodes:
                    if name not in self.gateways:
                        of.told[name] += of[name].take_events()

    def until(self, met: Callable[[], bool], limit_ms: float = 20_000) -> None:
        """Play until something is met; fails at the limit."""
        end_ms = self.now_ms + limit_ms
        while not met():
            assert self.now_ms < end_ms, "not met in time"
            self.run(50)

    @property
    def now_ms(self) -> float:
        return self.segments[0].medium.now_ms

    def peer(self, name: str) -> SegmentProtocol:
        return next(of for of in self.segments if name in of.medium.nodes)[name]

    def place(self, name: str) -> Segments:
        return next(of for of in self.segments if name in of.medium.nodes)

    def say(self, name: str, data: Any = None, **more: Any) -> Id:
        return self.place(name).say(name, data, **more)

    def delivered(self, name: str) -> list[Id]:
        return self.place(name).delivered(name)

    def together(self, *names: str, limit_ms: float = 20_000, **options: Any) -> None:
        """The first one creates the group, and the others join it, wherever they are."""
        self.place(names[0]).create(names[0], **options)
        for name in names[1:]:
            self.until(lambda name=name: self.place(name).is_offered(name), limit_ms)  # type: ignore[misc]
            self.place(name).join(name)
        self.until(lambda: all(self.place(name).joined(name) for name in names), limit_ms)


def with_full_gateway(order: str) -> tuple[World, SimulatedGateway, list[Id]]:
    """The log is away, and ann has said more than her gateway keeps: the world, the gateway, and what was said."""
    one = World()
    gate = one.gateway("gate", kept_bytes_max=20_000)
    one.segments[0].start("ann")
    one.run(3_000)
    one.together("ann", order=order)
    one.run(1_000)
    one.log.is_away = True
    said = []
    for number in range(200):
        said.append(one.say("ann", number))
        one.run(10)
    assert gate.bridge.is_full
    return one, gate, said
