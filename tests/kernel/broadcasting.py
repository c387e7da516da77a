"""Peers that broadcast over the simulated medium, and what each of them got."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from precede.udfs.peers.broadcast import Broadcast
from precede.udfs.peers.frames import DATA, Codec, make_origin
from precede.udfs.peers.origin_order import Arrival, none_keeps_turn
from precede.udfs.peers.repairing import STORE_BYTES_MAX
from tests.kernel.medium import Medium, Weather

KEY = b"the segment's key"
SEGMENT = 7


class Broadcasters:
    """So many peers, named p0, p1, ..., each with the list of the payloads that it got, its own included."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 1,
        weather: Weather | None = None,
        key: bytes | None = KEY,
        store_bytes_max: int = STORE_BYTES_MAX,
        keeps_turn: Callable[[int, bytes], bool] = none_keeps_turn,
    ) -> None:
        self.medium = Medium(seed, Weather() if weather is None else weather)
        self.store_bytes_max = store_bytes_max
        self.keeps_turn = keeps_turn
        self.codec = Codec(SEGMENT, key)
        self.got: dict[str, list[bytes]] = {}
        self.sent: list[bytes] = []
        self._starts = 0
        for number in range(count):
            self.start(f"p{number}")

    def start(self, name: str) -> Broadcast:
        """A process begins, or begins again."""
        self._starts += 1
        origin = make_origin(name.encode().ljust(8, b"."), self._starts)
        chance = Random(self.medium.seed * 1_000 + self._starts)
        peer = Broadcast(
            origin,
            self.codec,
            chance,
            now_ms=self.medium.now_ms,
            store_bytes_max=self.store_bytes_max,
            keeps_turn=self.keeps_turn,
        )
        self.got[name] = []

        def arrived(arrivals: list[Arrival], now_ms: float) -> None:
            self.got[name] += [payload for _, _, payload in arrivals]

        self.medium.add(name, peer, arrived)
        return peer

    def peer(self, name: str) -> Broadcast:
        """The process of this name."""
        endpoint = self.medium.nodes[name].endpoint
        assert isinstance(endpoint, Broadcast)
        return endpoint

    @property
    def peers(self) -> list[Broadcast]:
        return [self.peer(name) for name in self.medium.nodes]

    def say(self, name: str, payload: bytes) -> None:
        """A peer sends a payload, and has it itself."""
        self.peer(name).send(DATA, payload, self.medium.now_ms)
        self.got[name].append(payload)
        self.sent.append(payload)
        self.medium.poke(name)

    def talk(self, names: list[str], *, per_second: float, seconds: float, size: int = 125) -> None:
        """All of these say something, again and again, from now on."""
        for place, name in enumerate(names):
            for number in range(int(per_second * seconds)):
                text = f"{name} {len(self.sent)} {number} ".encode()
                after_ms = (number + place / len(names)) * 1_000 / per_second
                payload = text.ljust(size, b".")
                self.medium.at(self.medium.now_ms + after_ms, self.say, name, payload)

    def all_have_all(self) -> bool:
        """Whether every process that runs got all that was sent."""
        return all(set(self.got[name]) >= set(self.sent) for name in self.medium.nodes)

    def total(self, code: str) -> int:
        """How often something was refused or dropped, over all peers."""
        return sum(peer.counts.get(code, 0) for peer in self.peers)
