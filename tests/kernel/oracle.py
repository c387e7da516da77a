"""A deliberately naive hold-back loop, written from the contract's section 3 and from nothing else.

It keeps every delivered value for ever, checks every held message again after each delivery, and walks every chain of
parents step by step. It shares no line with the kernel, not even the reader, so a mistake that two clever
implementations would share shows here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from zlib import crc32

from kafka.partitioner.default import murmur2

from precede.udfs.limits import Limits
from tests.kernel import judge, oracle_by_clocks, oracle_clocks, oracle_giving_up, oracle_orders
from tests.kernel.judge import SEQ_MAX, Fields
from tests.kernel.oracle_by_clocks import who_of
from tests.kernel.oracle_clocks import BY_CLOCKS
from tests.kernel.oracle_orders import IN_TURN, KNOWN, id_of, named, waits_for
from tests.kernel.oracle_state import Group, Id, Waiting, Who, about_of, buried, end_of, runs_of


class Oracle:
    """Takes log records like `precede.udfs.holdback.Holdback` and gives the same results, slowly."""

    def __init__(
        self, *, order: str, limits: Limits, partitions: int | None = None, partitioner: str = "murmur2"
    ) -> None:
        self.order = order
        self.limits = limits
        self.partitions = partitions
        self.hash: Callable[[bytes], int] = {"murmur2": lambda key: murmur2(key) & 0x7FFFFFFF, "crc32": crc32}[
            partitioner
        ]
        self.groups: dict[str, Group] = {}
        self.ordered: list[bytes] = []
        self.ordered_keys: list[bytes] = []
        self.dead: list[dict[str, Any]] = []
        self.dead_keys: list[bytes | None] = []
        self.duplicates = 0

    # ── one record ────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, value: bytes | None, key: bytes | None, partition: int, offset: int, timestamp_ms: int) -> None:
        self.now = (offset, timestamp_ms)
        self.where = (partition, offset, timestamp_ms)
        limits = self.limits
        fields = None
        code = None
        if value is None:
            code = "malformed"
        elif len(value) > limits.record_bytes_max:
            code = "oversize"
        else:
            fields = judge.read(value, after_max=limits.after_max, to_max=limits.to_max, seen_max=limits.seen_max)
            if fields is None:
                code = "malformed"
            elif fields["kind"] == "tick":
                if key is None:
                    oracle_by_clocks.tick(self, partition)
                    return
                code = "wrong_key"
            elif key is None or fields["group"].encode() != key:
                code = "wrong_key"
            elif self._lives_elsewhere(fields["group"], partition):
                code = "wrong_partition"
        if code is not None or value is None or fields is None:
            self._bury(code, None, value, fields, key, self.where)
            return
        name = fields["group"]
        group = self.groups.get(name)
        if group is None or not group.accepted:
            group = Group(name, partition, self.order, limits.window, limits.digests)
            self.groups[name] = group
        group.placed_now = {}
        value = value.strip(b" \t\n\r")
        code = self._act(group, fields, value)
        if code is not None:
            self._bury(code, group, value, fields, key, self.where)

    def _lives_elsewhere(self, name: str, partition: int) -> bool:
        if self.partitions is not None:
            return partition != self.hash(name.encode()) % self.partitions
        group = self.groups.get(name)
        return group is not None and group.accepted and group.partition != partition

    def _act(self, group: Group, fields: Fields, value: bytes) -> str | None:
        """Apply one record; returns a code if it is refused."""
        kind = fields["kind"]
        if kind == "message":
            return self._message(group, fields, value)
        if kind == "abandon":
            return oracle_giving_up.abandon(self, group, fields["ids"])
        if kind == "heartbeat":
            return oracle_by_clocks.heartbeat(self, group, fields)
        if group.took_effect.get(about_of(fields)) == value:
            self.duplicates += 1
            return None
        code: str | None = getattr(self, f"_{kind}")(group, fields)
        if code is not None:
            return code
        group.took_effect[about_of(fields)] = value
        group.accepted = True
        self._emit(group, value[:-1], "delivered", *self.now)
        if kind == "join":
            self._fence_older(group, fields["sender"], fields["epoch"])
            if group.order in BY_CLOCKS:
                waited = [one for one in group.held if one.fields is not None and one.id[:2] == who_of(fields)]
                group.clocks.time_max = max([group.clocks.time_max, *(oracle_clocks.key_of(one)[0] for one in waited)])
        elif kind in ("leave", "evict"):
            name, epoch, cut = end_of(fields)
            self._fence_older(group, name, epoch)
            self._fence(group, name, epoch, cut)
        self._settle(group)
        return None

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _message(self, group: Group, fields: Fields, value: bytes) -> str | None:
        """The checks in the contract's order, then the order's own."""
        id_ = (fields["sender"], fields["epoch"], fields["seq"])
        who, seq = id_[:2], id_[2]
        held = next((one for one in group.held if one.id == id_), None)
        kept = group.delivered.get(id_)
        if held is not None and held.value == value:
            self.duplicates += 1
            return None
        if kept is not None:
            known = seq in group.recent[who][-group.digests :] if group.digests else False
            if not known or kept == value:
                self.duplicates += 1
                return None
        if id_ in group.forgotten:
            self.duplicates += 1
            return None
        if seq > group.fence_of(who):
            return "fenced"
        if (id_ in group.delivered and kept is None) or (held is not None and held.value is None):
            return "late"
        code = oracle_orders.stamp_fault(group, fields)
        if code is not None:
            return code
        if held is not None or kept is not None:
            return "equivocation"
        if id_ in group.condemned:  # its content is not kept: refused again, for its content or for its id
            return self._refusal(group, Waiting(id_, fields, value, *self._arrival())) or "equivocation"
        if seq > group.highest.get(who, 0) + group.window:
            return "seq_jump"
        code = oracle_orders.poison(group, fields)
        if code is not None:
            return code
        one = Waiting(id_, fields, value, *self._arrival())
        if group.order in BY_CLOCKS:
            return oracle_by_clocks.message(self, group, one)
        if self._names_itself(group, one):
            return "self_parent"
        group.held.append(one)
        if self._refusal(group, one) is None and not self._in_circle(group, one):
            if not self._ready(group, one) and (self._no_room(group, value) or self._refuses_too_many(group, id_)):
                group.held.remove(one)
                return "backpressure"
            if self._too_many_runs(group, id_):
                group.held.remove(one)
                return "backpressure"
        elif self._refuses_too_many(group, id_):
            group.held.remove(one)
            return "backpressure"
        group.accepted = True
        group.highest[who] = max(group.highest.get(who, 0), seq)
        self._settle(group)
        return None

    def _arrival(self) -> tuple[int, int, int]:
        return self.now[0], 0, self.now[1]

    def _held_count(self, group: Group) -> int:
        return len(group.held)

    def _no_room(self, group: Group, value: bytes) -> bool:
        """Without the message itself, which is already last in the list."""
        others = [one for one in group.held if one.value is not value]
        size = sum(len(one.value) for one in others if one.value is not None)
        return len(others) >= self.limits.held_max or size + len(value) > self.limits.held_bytes_max

    def _too_many_runs(self, group: Group, id_: Id) -> bool:
        """Whether this id would start one run more than allowed."""
        runs, with_it = self._runs(group, id_[:2], []), self._runs(group, id_[:2], [id_])
        return with_it > max(runs, self.limits.runs_max)

    def _runs(self, group: Group, who: Who, more: list[Id]) -> int:
        """The number of runs of a sender's delivered or abandoned seqs, including these ids."""
        return runs_of(who, [*group.delivered, *more])

    def _refuses_too_many(self, group: Group, id_: Id) -> bool:
        """The same for the ids used up by refusals."""
        runs, with_it = runs_of(id_[:2], group.condemned), runs_of(id_[:2], {*group.condemned, id_})
        return with_it > max(runs, self.limits.runs_max)

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, group: Group) -> None:
        """Check all that is held, again and again, until nothing changes."""
        if group.order in BY_CLOCKS:
            group.clocks.log_ms = max(group.clocks.log_ms, self.now[1])
            oracle_by_clocks.settle(self, group, group.clocks.log_ms)
            return
        while self._condemn_one(group) or self._deliver_one(group):
            pass

    def _deliver_one(self, group: Group) -> bool:
        ready = [one for one in group.held if self._ready(group, one)]
        if not ready:
            return False
        one = min(ready, key=lambda one: self._rank(group, one))
        group.held.remove(one)
        self._deliver(group, one)
        return True

    def _rank(self, group: Group, one: Waiting) -> tuple[int, int, int]:
        """Lowest offset first; in s_b depth first: children of the last delivered message come before all others."""
        depth = 0
        if group.order == "s_b" and one.fields is not None and one.fields["after"]:
            depth = group.placed_now.get(id_of(one.fields["after"][0]), 0)
        return -depth, one.offset, one.rank

    def _is_in(self, group: Group, one: Waiting) -> bool:
        """Whether the sender may send: in a closed group only after a join, and never beyond a fence."""
        return not group.closed or one.value is None or one.id[:2] in group.joined

    def _ready(self, group: Group, one: Waiting) -> bool:
        name, epoch, seq = one.id
        if not self._is_in(group, one):
            return False
        if one.fields is not None:
            return all(id_ in group.delivered for id_ in named(group, one))
        # A stand-in waits only for its turn.
        return group.order not in IN_TURN or seq == 1 or (name, epoch, seq - 1) in group.delivered

    def _names_itself(self, group: Group, one: Waiting) -> bool:
        """In `object` this is refused and leaves no trace."""
        if group.order != "object" or one.fields is None or not self._is_in(group, one):
            return False
        return one.id in named(group, one)

    def _refusal(self, group: Group, one: Waiting) -> str | None:
        """Why a message of an allowed sender is refused, except for cycles of several messages."""
        if group.order != "s_b" or one.fields is None or not self._is_in(group, one):
            return None
        parents = [id_of(parent) for parent in one.fields["after"]]
        if one.id in parents:
            return "self_parent"
        if any(parent in group.condemned for parent in parents):
            return "orphan"
        return None

    def _in_circle(self, group: Group, one: Waiting) -> bool:
        """Whether the chain of held parents returns to this message."""
        at: Waiting | None = one
        for _ in range(len(group.held)):
            if at is None or group.order != "s_b" or at.fields is None or not self._is_in(group, at):
                return False
            if not at.fields["after"]:
                return False
            parent = id_of(at.fields["after"][0])
            if parent == one.id:
                return True
            at = next((other for other in group.held if other.id == parent), None)
        return False

    def _condemn_one(self, group: Group) -> bool:
        """Refuse messages that are self_parent, orphan or in a cycle, with all held messages below them."""
        for one in group.held:
            if self._names_itself(group, one):  # it was held until its sender joined
                group.held.remove(one)
                self._bury_held(group, "self_parent", one)
                return True
            code = self._refusal(group, one)
            if code is None and self._in_circle(group, one):
                code = "cycle"
            if code is not None:
                self._condemn(group, one, code)
                return True
        return False

    def _condemn(self, group: Group, one: Waiting, code: str) -> None:
        doomed = [one]
        for above in doomed:
            doomed += [
                under
                for under in group.held
                if under not in doomed
                and under.fields is not None
                and above.id in map(id_of, under.fields["after"])
                and self._is_in(group, under)
            ]
        for each in doomed:
            group.held.remove(each)
            group.condemned.add(each.id)
            self._bury_held(group, code if each is one or code == "cycle" else "orphan", each)

    def _deliver(self, group: Group, one: Waiting) -> None:
        group.delivered[one.id] = one.value
        if one.value is None:
            name, epoch, seq = one.id
            head = json.dumps(
                {"group": group.name, "sender": name, "epoch": epoch, "seq": seq},
                ensure_ascii=False,
                separators=(",", ":"),
            )
            self._emit(group, head[:-1].encode(), "abandoned", one.offset, one.arrived_ms)
        else:
            group.recent.setdefault(one.id[:2], []).append(one.id[2])
            self._emit(group, one.value[:-1], "delivered", one.offset, one.arrived_ms)
        group.placed_now[one.id] = group.position

    def _emit(self, group: Group, head: bytes, status: str, offset: int, arrived_ms: int) -> None:
        group.position += 1
        appended = {
            "position": group.position,
            "order": group.order,
            "status": status,
            "partition": group.partition,
            "offset": offset,
            "arrived_ms": arrived_ms,
            "released_offset": self.now[0],
            "released_ms": self.now[1],
        }
        tail = json.dumps(appended, separators=(",", ":"))
        self.ordered.append(head + b"," + tail[1:].encode())
        self.ordered_keys.append(group.name.encode())

    # ── membership ────────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self, group: Group, fields: Fields) -> str | None:
        if group.accepted:
            return "bad_stamp"
        options = dict(fields.get("options", []))
        order = options.get("order", self.order)
        if order not in KNOWN:
            return "unknown_order"
        group.order = order
        group.closed = options.get("closed", False) or order in BY_CLOCKS
        group.window = options.get("window", self.limits.window)
        group.digests = options.get("digests", self.limits.digests)
        group.members = dict.fromkeys(fields.get("members", []), (0, True))
        group.joined = {(name, 0) for name in group.members}
        oracle_clocks.configure(group, options)
        group.clocks.began = {(name, 0): 1 for name in group.members} if order in BY_CLOCKS else {}
        return None

    def _join(self, group: Group, fields: Fields) -> str | None:
        name, epoch = fields["sender"], fields["epoch"]
        if name in group.members:
            last, is_in = group.members[name]
            if (epoch, True) == (last, is_in):
                return "bad_stamp"
            if epoch <= last:
                return "fenced"
        if not group.closed and any(other == name and newer > epoch for other, newer in group.highest):
            return "fenced"
        if group.order in BY_CLOCKS:
            code = oracle_clocks.join(group, fields)
            if code is not None:
                return code
        group.members[name] = (epoch, True)
        group.joined.add((name, epoch))
        return None

    def _leave(self, group: Group, fields: Fields) -> str | None:
        return self._put_out(group, *end_of(fields))

    _evict = _leave

    def _put_out(self, group: Group, name: str, epoch: int, cut: int) -> str | None:
        joined, is_in = group.members.get(name, (-1, False))
        heard = (name, epoch) in group.highest
        if not heard and joined < epoch:
            return "unknown_member"
        if epoch < joined or (epoch == joined and not is_in):
            return "fenced"
        if cut > group.highest.get((name, epoch), 0) + group.window:
            return "seq_jump"
        group.members[name] = (epoch, False)
        return None

    def _fence_older(self, group: Group, name: str, epoch: int) -> None:
        """Messages of older epochs that were in flight still count."""
        for other, older in list(group.highest):
            if other == name and older < epoch and (other, older) not in group.fences:
                self._fence(group, name, older, group.highest[name, older])

    def _fence(self, group: Group, name: str, epoch: int, cut: int) -> None:
        if group.closed and (name, epoch) not in group.joined:
            cut = 0  # it was never a member, and now it can never join
        group.fences[name, epoch] = min(cut, group.fences.get((name, epoch), SEQ_MAX))
        for one in list(group.held):
            if one.id[:2] == (name, epoch) and one.id[2] > cut and one.value is not None:
                group.held.remove(one)
                self._bury_held(group, "fenced", one)

    # ── dead letters ──────────────────────────────────────────────────────────────────────────────────────────────

    def _bury_held(self, group: Group, code: str, one: Waiting) -> None:
        where = (group.partition, one.offset, one.arrived_ms)
        self._bury(code, group, one.value, one.fields, group.name.encode(), where)

    def _bury(
        self,
        code: str | None,
        group: Group | None,
        value: bytes | None,
        fields: Fields | None,
        key: bytes | None,
        where: tuple[int, int, int],
    ) -> None:
        letter: dict[str, Any] = {"code": code}
        if fields is not None:
            letter |= {"group": fields.get("group"), "sender": fields.get("sender")}
            letter["epoch"] = fields["epoch"] if "sender" in fields else None
            seq = fields.get("seq")
            letter["seq"] = seq if fields["kind"] in ("message", "heartbeat") else None
        letter |= dict(zip(("partition", "offset", "arrived_ms"), where, strict=True))
        letter |= buried(value)
        self.dead.append(letter)
        self.dead_keys.append(key)

    # ── inspecting ────────────────────────────────────────────────────────────────────────────────────────────────

    def held(self) -> list[dict[str, Any]]:
        return [
            {
                "group": group.name,
                "destination": None,
                "sender": one.id[0],
                "epoch": one.id[1],
                "seq": one.id[2],
                "partition": group.partition,
                "offset": one.offset,
                "since_ms": one.arrived_ms,
                **waits_for(group, one, self._is_in),
            }
            for _, group in sorted(self.groups.items(), key=lambda pair: pair[0].encode())
            for one in sorted(group.held, key=lambda one: (one.offset, one.rank))
            if one.value is not None
        ]
