"""A simulated broadcast medium: loses, delays, reorders and repeats datagrams, is cut and heals; a seed decides.

It plays hours in seconds, because only events take time: a datagram arrives, or a peer's deadline comes. What is put on
it is anything with `receive`, `due` and `deadline_ms`, as the peers' protocols have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Protocol


class Endpoint(Protocol):
    """A process on the medium."""

    def receive(self, datagram: bytes, now_ms: float) -> Any: ...

    def due(self, now_ms: float) -> list[bytes]: ...

    def deadline_ms(self) -> float: ...


@dataclass
class Weather:
    """How bad the medium is. Each receiver draws its own fate for each datagram."""

    loss: float = 0.0
    delay_ms: tuple[float, float] = (0.1, 0.6)
    repeat: float = 0.0


@dataclass
class Node:
    """A place on the medium."""

    name: str
    endpoint: Endpoint
    on_arrival: Callable[[Any, float], None]
    side: int = 0
    """Only nodes of the same side hear each other."""
    is_up: bool = True
    wake_ms: float = -1.0
    sent: int = 0
    sent_bytes: int = 0
    heard_bytes: int = 0


@dataclass
class Medium:
    """All nodes, and what is under way between them."""

    seed: int
    weather: Weather = field(default_factory=Weather)
    nodes: dict[str, Node] = field(default_factory=dict)
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._events: list[tuple[float, int, Node | None, bytes | Callable[[], object] | None]] = []
        self._ties = count()
        self.dropped: Callable[[bytes], bool] = lambda datagram: False
        """Says which datagrams reach no one, for tests of a single loss."""
        self.overheard: list[bytes] | None = None
        """All that is sent, where somebody listens."""

    def add(self, name: str, endpoint: Endpoint, on_arrival: Callable[[Any, float], None] | None = None) -> Node:
        """Put a process on the medium; one of the same name is gone."""
        self.crash(name)
        node = self.nodes[name] = Node(name, endpoint, on_arrival or (lambda arrived, now_ms: None))
        self.poke(name)
        return node

    def crash(self, name: str) -> None:
        """This process is gone at once, with all it had to send."""
        if name in self.nodes:
            self.nodes.pop(name).is_up = False

    def cut(self, *sides: list[str]) -> None:
        """Only those of one side hear each other from now on."""
        for number, names in enumerate(sides):
            for name in names:
                self.nodes[name].side = number

    def heal(self) -> None:
        """All hear each other again."""
        for node in self.nodes.values():
            node.side = 0

    def at(self, time_ms: float, call: Callable[..., object], *arguments: object) -> None:
        """Call something at this time."""
        heappush(self._events, (time_ms, next(self._ties), None, partial(call, *arguments)))

    def poke(self, name: str) -> None:
        """A process was given something to do."""
        self._plan(self.nodes[name])

    def inject(self, datagram: bytes, *, to: list[str] | None = None) -> None:
        """Put a datagram on the medium that comes from none of the nodes."""
        for node in self.nodes.values():
            if to is None or node.name in to:
                self._carry(node, datagram)

    def run(self, until_ms: float) -> None:
        """Play up to this time."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, node, what = heappop(events)
            if node is None:
                assert callable(what)
                what()
            elif not node.is_up:
                continue
            elif isinstance(what, bytes):
                node.heard_bytes += len(what)
                arrived = node.endpoint.receive(what, self.now_ms)
                if arrived:
                    node.on_arrival(arrived, self.now_ms)
                self._plan(node)
            elif node.wake_ms == self.now_ms:
                node.wake_ms = -1.0
                self._wake(node)
        self.now_ms = until_ms

    def run_until(self, met: Callable[[], bool], limit_ms: float, step_ms: float = 5.0) -> float:
        """Play until something is met, and return how long that took; fails at the limit."""
        begun_ms = self.now_ms
        while not met():
            assert self.now_ms - begun_ms < limit_ms, f"not met within {limit_ms} ms"
            self.run(self.now_ms + step_ms)
        return self.now_ms - begun_ms

    def _plan(self, node: Node) -> None:
        wake_ms = max(node.endpoint.deadline_ms(), self.now_ms + 0.05)
        if node.wake_ms < 0 or wake_ms < node.wake_ms:
            node.wake_ms = wake_ms
            heappush(self._events, (wake_ms, next(self._ties), node, None))

    def _wake(self, node: Node) -> None:
        for datagram in node.endpoint.due(self.now_ms):
            node.sent += 1
            node.sent_bytes += len(datagram)
            if self.overheard is not None:
                self.overheard.append(datagram)
            if self.dropped(datagram):
                continue
            for other in self.nodes.values():
                if other is not node and other.side == node.side:
                    self._carry(other, datagram)
        self._plan(node)

    def _carry(self, node: Node, datagram: bytes) -> None:
        draw, weather = self.random, self.weather
        for _ in range(2 if weather.repeat and draw.random() < weather.repeat else 1):
            if weather.loss and draw.random() < weather.loss:
                continue
            low, high = weather.delay_ms
            arrives_ms = self.now_ms + low + (high - low) * draw.random()
            heappush(self._events, (arrives_ms, next(self._ties), node, datagram))
