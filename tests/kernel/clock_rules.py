"""The rules of the orders by clocks, implemented literally over plain lists."""

from __future__ import annotations

from typing import Any

NEVER = -(10**9)


class ClockRule:
    """Takes messages and heartbeats of known members, returns the messages that each releases, and keeps everything."""

    def __init__(self, names: str, margin: int | None = None) -> None:
        self.margin = margin
        self.came: dict[tuple[str, int], tuple[int, int]] = {}
        self.promised: list[tuple[str, int, int, int]] = []
        self.floors = dict.fromkeys(names, (1, 1, NEVER))  # next seq, least time, least clock
        self.queue: list[tuple[int, str, int, int]] = []

    def take(self, record: dict[str, Any]) -> list[tuple[str, int]]:
        name, stamp = record["sender"], (record["time"], record.get("clock_ms", NEVER))
        if record.get("kind") == "heartbeat":
            self.promised.append((name, record["seq"], *stamp))
        else:
            self.came.setdefault((name, record["seq"]), stamp)
        self._enter(name)
        out = []
        while free := sorted(one for one in self.queue if self.is_free(one)):
            self.queue.remove(free[0])
            out.append(free[0][1:3])
        return out

    def _enter(self, name: str) -> None:
        following, least, clock = self.floors[name]
        while (name, following) in self.came:
            least, shown = self.came[name, following]
            clock = max(clock, shown)
            self.queue.append((least, name, following, clock))
            following, least = following + 1, least + 1
        for who, covers, time, shown in self.promised:
            if who == name and covers <= following:
                least, clock = max(least, time), max(clock, shown)
        self.floors[name] = following, least, clock

    def is_free(self, one: tuple[int, str, int, int]) -> bool:
        raise NotImplementedError


class LamportRule(ClockRule):
    def is_free(self, one: tuple[int, str, int, int]) -> bool:
        head = min(self.queue)
        return one == head and all((least, other) > head[:2] for other, (_, least, _) in self.floors.items())


class TwoClockRule(ClockRule):
    def is_free(self, one: tuple[int, str, int, int]) -> bool:
        time, name, seq, clock = one
        for other_time, other, other_seq, other_clock in self.queue:
            if other == name and other_seq < seq:
                return False
            if other != name and other_time < time and self._allows(other_clock, clock):
                return False
        return all(
            other == name or least >= time or not self._allows(shown, clock)
            for other, (_, least, shown) in self.floors.items()
        )

    def _allows(self, clock: int, later: int) -> bool:
        """Whether the physical clocks allow the one to precede the other."""
        return self.margin is None or clock <= later + self.margin
