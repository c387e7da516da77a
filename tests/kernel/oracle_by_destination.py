"""The naive loop where every destination has its own sequence (`causal_p2p`): it checks each place again."""

from __future__ import annotations

import json
from typing import Any

from tests.kernel.judge import Fields
from tests.kernel.oracle import Oracle
from tests.kernel.oracle_orders import id_of
from tests.kernel.oracle_state import Group, Id, Waiting, Who

P2P = "causal_p2p"


class OracleOfAll(Oracle):
    """The naive loop for every order of the registry."""

    # ── what is ready ─────────────────────────────────────────────────────────────────────────────────────────────

    def _destinations(self, group: Group, one: Waiting) -> list[str]:
        """The destinations that have not received it."""
        assert one.fields is not None
        return sorted(set(one.fields["to"]) - group.got.get(one.id, set()))

    def _unmet(self, group: Group, one: Waiting, at: str) -> list[Id]:
        """The unmet part of the entry for one destination."""
        if one.fields is None:
            name, epoch, seq = one.id
            return [(name, epoch, seq - 1)]
        entries = [id_of(entry) for entry in dict(one.fields["sent"]).get(at, [])]
        clock = group.merged.get(at, {})
        return [entry for entry in entries if entry[2] > clock.get(entry[:2], 0) and not self._past(group, entry)]

    def _past(self, group: Group, entry: Id) -> bool:
        """After an abandon: whether all of a sender up to there is settled everywhere."""
        return group.gave_up and self._all_settled(group, entry[:2], entry[2])

    def _all_settled(self, group: Group, who: Who, last: int) -> bool:
        return all((*who, seq) in group.delivered for seq in range(1, last + 1))

    def _ready(self, group: Group, one: Waiting) -> bool:
        if group.order != P2P:
            return super()._ready(group, one)
        places = self._destinations(group, one)
        return self._is_in(group, one) and not any(self._unmet(group, one, at) for at in places)

    def _no_room(self, group: Group, value: bytes) -> bool:
        if group.order != P2P:
            return super()._no_room(group, value)
        *others, one = group.held
        places = self._destinations(group, one)
        more = len([at for at in places if self._unmet(group, one, at)]) if self._is_in(group, one) else len(places)
        count = self._places(group, others)
        size = sum(len(other.value) for other in others if other.value is not None)
        return count + max(1, more) > self.limits.held_max or size + len(value) > self.limits.held_bytes_max

    def _held_count(self, group: Group) -> int:
        return self._places(group, group.held) if group.order == P2P else super()._held_count(group)

    def _places(self, group: Group, held: list[Waiting]) -> int:
        return sum(1 if one.fields is None else max(1, len(self._destinations(group, one))) for one in held)

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, group: Group) -> None:
        if group.order != P2P:
            super()._settle(group)
            return
        for one in group.held:
            if one.fields is None:
                group.gave_up = True
            elif self._is_in(group, one):  # what a stranger names counts from its join on
                group.named |= set(one.fields["to"])
        for at in group.named:
            group.positions.setdefault(at, 0)
        while self._step(group):
            pass

    def _step(self, group: Group) -> bool:
        """Deliver the first ready message, at one destination."""
        ready: list[tuple[int, int, str, Waiting]] = []
        for one in group.held:
            if one.fields is None:
                if self._all_settled(group, one.id[:2], one.id[2] - 1):
                    ready.append((one.offset, one.rank, "", one))
            elif self._is_in(group, one):
                places = self._destinations(group, one)
                if not places:  # it had no recipients, or all have received it
                    self._end(group, one)
                    return True
                ready += [(one.offset, 0, at, one) for at in places if not self._unmet(group, one, at)]
        if not ready:
            return False
        _, _, at, one = min(ready, key=lambda place: place[:3])
        if one.fields is None:
            self._stand_in(group, one)
        else:
            assert one.value is not None
            for entry in one.fields["seen"]:
                self._merge(group, at, id_of(entry))
            self._emit_at(group, at, one.value[:-1], "delivered", one.offset, one.arrived_ms)
            group.got.setdefault(one.id, set()).add(at)
            if not self._destinations(group, one):
                self._end(group, one)
        return True

    def _merge(self, group: Group, at: str, entry: Id) -> None:
        clock = group.merged.setdefault(at, {})
        clock[entry[:2]] = max(clock.get(entry[:2], 0), entry[2])

    def _end(self, group: Group, one: Waiting) -> None:
        group.held.remove(one)
        group.delivered[one.id] = one.value
        group.recent.setdefault(one.id[:2], []).append(one.id[2])

    def _stand_in(self, group: Group, one: Waiting) -> None:
        name, epoch, seq = one.id
        head = {"group": group.name, "sender": name, "epoch": epoch, "seq": seq}
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))
        for at in sorted(group.named - group.got.get(one.id, set())):
            self._merge(group, at, one.id)
            self._emit_at(group, at, text[:-1].encode(), "abandoned", one.offset, one.arrived_ms)
        group.held.remove(one)
        group.delivered[one.id] = None

    def _emit_at(self, group: Group, at: str, head: bytes, status: str, offset: int, arrived_ms: int) -> None:
        group.positions[at] += 1
        group.position = group.positions[at] - 1
        super()._emit(group, head, status, offset, arrived_ms)
        tail = f'"status":"{status}",'
        where, _, rest = self.ordered[-1].decode().rpartition(tail)
        name = json.dumps(at, ensure_ascii=False)
        self.ordered[-1] = f'{where}{tail}"destination":{name},{rest}'.encode()

    def _emit(self, group: Group, head: bytes, status: str, offset: int, arrived_ms: int) -> None:
        if group.order != P2P:
            super()._emit(group, head, status, offset, arrived_ms)
            return
        for at in sorted(group.positions):
            self._emit_at(group, at, head, status, offset, arrived_ms)

    # ── control records ───────────────────────────────────────────────────────────────────────────────────────────

    def _create(self, group: Group, fields: Fields) -> str | None:
        code = super()._create(group, fields)
        if code is None:
            group.positions |= dict.fromkeys(group.members, 0)
        return code

    def _join(self, group: Group, fields: Fields) -> str | None:
        code = super()._join(group, fields)
        if code is None:
            group.positions.setdefault(fields["sender"], 0)
        return code

    def _bury_held(self, group: Group, code: str, one: Waiting) -> None:
        if group.order != P2P:
            super()._bury_held(group, code, one)
            return
        assert one.fields is not None
        places: list[str | None] = [*self._destinations(group, one)] or [None]
        for at in places:
            super()._bury_held(group, code, one)
            if at is not None:
                self.dead[-1]["destination"] = at
        if code == "fenced" and group.got.get(one.id):  # destinations that have received it used up its id
            group.delivered[one.id] = one.value
            group.recent.setdefault(one.id[:2], []).append(one.id[2])
            group.gave_up = True

    # ── inspecting ────────────────────────────────────────────────────────────────────────────────────────────────

    def held(self) -> list[dict[str, Any]]:
        lines = super().held()
        found: list[dict[str, Any]] = []
        for line in lines:
            group = self.groups[line["group"]]
            if group.order != P2P:
                found.append(line)
                continue
            one = next(one for one in group.held if one.id == (line["sender"], line["epoch"], line["seq"]))
            places: list[str | None] = [*self._destinations(group, one)] or [None]
            found += [{**line, "destination": at, **self._waits_for(group, one, at)} for at in places]
        return found

    def _waits_for(self, group: Group, one: Waiting, at: str | None) -> dict[str, Any]:
        """The missing ids among the unmet ones; if none is missing, what those wait for."""
        held = {other.id: other for other in group.held}
        level: list[tuple[Waiting, list[str]]] = [(one, [] if at is None else [at])]
        known = {one.id}
        missing: set[Id] = set()
        silent: list[str] = []
        while level and not (missing or silent):
            below: list[tuple[Waiting, list[str]]] = []
            for each, places in level:
                if not self._is_in(group, each):
                    silent.append(each.id[0])
                    continue
                unmet = [
                    entry
                    for place in places or [""] * (each.fields is None)
                    for entry in self._unmet(group, each, place)
                ]
                for name, epoch, last in unmet:
                    for id_ in [(name, epoch, seq) for seq in range(1, last + 1)]:
                        if id_ in held and id_ not in known:
                            known.add(id_)
                            under = held[id_]
                            left = [] if under.fields is None else self._destinations(group, under)
                            below.append(
                                (under, left if group.gave_up else [place for place in left if place in places])
                            )
                        elif id_ not in held and id_ not in group.delivered:
                            missing.add(id_)
            level = below
        joins = {"joins": sorted(silent)} if silent else {}
        return {"missing": sorted(missing)[:20], "silent": sorted(silent), **joins}
