"""Processes on a simulated segment, what each of them was told, and whether they agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from precede.udfs.peers.events import Delivered, Event, Joined, Offered, RecordRefused, Synced
from precede.udfs.peers.frames import Codec, make_origin
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.records.messages import Id, Message
from tests.kernel.medium import Medium, Weather

KEY = b"the segment's key"
GROUP = "G"


class Segments:
    """Processes by name; each event that one of them tells is kept in `told`."""

    def __init__(self, *names: str, seed: int = 1, weather: Weather | None = None) -> None:
        self.medium = Medium(seed, Weather() if weather is None else weather)
        self.told: dict[str, list[Event]] = {}
        self._starts = 0
        for name in names:
            self.start(name)

    def start(
        self, name: str, *, state: dict[str, Any] | None = None, is_clean: bool = True, **more: Any
    ) -> SegmentProtocol:
        """A process begins, or begins again with its state."""
        self._starts += 1
        now_ms = self.medium.now_ms
        origin = make_origin(name.encode().ljust(8, b".")[:8], self._starts)
        chance = Random(self.medium.seed * 1_000 + self._starts)
        more.setdefault("epoch", self._starts)
        process = SegmentProtocol(name, origin, Codec(7, KEY), chance, now_ms=now_ms, **more)
        if state is not None:
            process.restore(state, now_ms, is_clean=is_clean)
        self.told.setdefault(name, [])
        self.medium.add(name, process)
        return process

    def __getitem__(self, name: str) -> SegmentProtocol:
        endpoint = self.medium.nodes[name].endpoint
        assert isinstance(endpoint, SegmentProtocol)
        return endpoint

    def run(self, for_ms: float) -> None:
        """Play on."""
        self.medium.run(self.medium.now_ms + for_ms)
        self.listen()

    def listen(self) -> None:
        for name in self.medium.nodes:
            self.told[name] += self[name].take_events()

    def create(self, name: str, **options: Any) -> None:
        self[name].create(GROUP, options, self.medium.now_ms)
        self.medium.poke(name)

    def join(self, name: str) -> None:
        self[name].join(GROUP, self.medium.now_ms)
        self.medium.poke(name)

    def leave(self, name: str) -> None:
        self[name].leave(GROUP, self.medium.now_ms)
        self.medium.poke(name)

    def until(self, met: Callable[[], bool], limit_ms: float = 10_000) -> float:
        """Play until something is met; fails at the limit."""
        return self.medium.run_until(met, limit_ms, step_ms=20)

    def together(self, *names: str, **options: Any) -> None:
        """The first one creates the group, and the others join it."""
        self.create(names[0], **options)
        for name in names[1:]:
            self.until(partial(self.is_offered, name))
            self.join(name)
        self.until(lambda: all(self.joined(name) for name in names))

    def say(self, name: str, data: Any = None, **more: Any) -> Id:
        """A member says something."""
        id_ = self[name].send(GROUP, json.dumps(data).encode(), now_ms=self.medium.now_ms, **more)
        self.medium.poke(name)
        return id_

    def delivered(self, name: str) -> list[Id]:
        """The messages that were delivered to a process, in their order."""
        self.listen()
        found = [one.record for one in self.told[name] if isinstance(one, Delivered) and not one.is_abandoned]
        return [(one.sender, one.epoch, one.seq) for one in found if isinstance(one, Message)]  # type: ignore[misc]

    def of(self, name: str, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        self.listen()
        return [event for event in self.told[name] if isinstance(event, kind)]

    def joined(self, name: str) -> bool:
        return bool(self.of(name, Joined))

    def is_offered(self, name: str) -> bool:
        return GROUP in self.offers(name)

    def offers(self, name: str) -> list[str]:
        return [event.info.group for event in self.of(name, Offered)]

    def refused(self, name: str) -> list[str]:
        return [event.code for event in self.of(name, RecordRefused)]

    def synced(self, name: str) -> bool:
        return bool(self.of(name, Synced))
