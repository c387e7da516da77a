"""One group at one peer: what arrives is ordered by the kernel and kept for others; what the peer says is stamped.

a record of the broadcast or of a page   -> `take` (intake.py) -> kernel -> events
what the application says                -> `send` -> stamped, signed -> `take`, and out to all
time                                     -> `due` -> heartbeats, questions, pages
"""

from functools import partial
from typing import Any

from precede.udfs import errors
from precede.udfs.peers.events import Joined, JoinHeard, Synced
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA
from precede.udfs.peers.intake import Intake
from precede.udfs.peers.notes import GroupNote, JoinAnswer, SyncAnswer, SyncRequest, encode, newest_members, write_data
from precede.udfs.peers.speaking import HEARTBEAT_MS
from precede.udfs.peers.streams import OriginStream
from precede.udfs.peers.views import IN
from precede.udfs.records.messages import Id, Join
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read


class PeerGroup(Intake):
    """A group that this peer is in, or is entering."""

    @property
    def note(self) -> GroupNote:
        """What this peer announces of the group."""
        return GroupNote(self.group, self.records.create, self.speaking.knowledge.view, self.default_order)

    # ── saying ────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        data: bytes,
        *,
        after: list[Id],
        to: list[str] | None,
        object_: dict[str, Any] | None,
        clock_ms: int,
        now_ms: float,
    ) -> tuple[Id, bytes]:
        """Say something; returns its id and its record.

        Raises Refused while this peer may not, and ValueError for what it does not know.
        """
        if self.own_join.left:
            raise errors.Refused(f"{self.name} has left {self.group}: join it again to come back.")
        if not self.own_join.joined:
            raise errors.Refused(f"{self.name} is not in {self.group} yet: wait until its join counts.")
        if to is None and self.order.has_destinations:
            raise ValueError(f"in {self.order.name} a message needs `to`, the members it is for")
        if to is not None and not self.order.takes_to:
            raise ValueError(f"in {self.order.name} every message is for the whole group: leave `to` out")
        if self.ordering.held_count >= self.limits.held_max * 9 // 10:
            raise errors.Congested(f"{self.group} holds {self.ordering.held_count:,} messages: wait until some go.")
        for field, named, most in (("after", after, self.limits.after_max), ("to", to or [], self.limits.to_max)):
            if len(named) > most:
                raise ValueError(f"`{field}` may name {most} at most, not {len(named)}")
        for id_ in after:
            if not self._has(id_):
                raise ValueError(
                    f"{id_} has not been delivered to {self.name}: a message can only answer what its sender knows"
                )
        self.log_coverage.check_room(len(data))
        id_, value = self.speaking.message(data, after, to, object_, clock_ms)
        self.log_coverage.said(id_, len(value))
        self.said.append(value)
        if self.speaking.observes:
            self.take_said(now_ms)  # the next stamp depends on it
        return id_, value

    def take_said(self, now_ms: float) -> None:
        """Take in what this peer has said, as one bundle, and send it to all."""
        values, self.said = self.said, []
        self.out += [(DATA, write_data(self.key, value)) for value in values]
        self.take_all(values, now_ms)

    def _has(self, id_: Id) -> bool:
        """Whether a message was delivered here, or is an own one."""
        own = id_[:2] == (self.name, self.speaking.epoch) and id_[2] <= self.speaking.stamps.seq
        return own or self.speaking.knowledge.has(id_) or self.ordering.is_settled(id_)

    def _say(self, value: bytes, now_ms: float) -> None:
        self.take(value, now_ms)
        self.out.append((DATA, write_data(self.key, value)))

    def begin_epoch(self, epoch: int) -> None:
        """Say everything in a larger epoch from here on."""
        self.speaking.begin_epoch(epoch)
        self.sync_schedule.synchroniser.begin_epoch(epoch)

    def create(self, options: dict[str, Any], now_ms: float) -> None:
        """Begin the group by its `create` record."""
        value = self.speaking.control({"kind": "create", "options": options, "members": []})
        self._say(value, now_ms)

    def enter(self, now_ms: float) -> None:
        """Say that this peer joins; `due` sees to it that the join counts."""
        value = self.speaking.join()
        self.own_join.begin(value, now_ms)
        self._say(value, now_ms)

    def leave(self, now_ms: float) -> None:
        """Say that this peer leaves; what it said so far counts."""
        self._say(self.speaking.leave(), now_ms)
        self.own_join.end()
        self.speaking.heartbeat_ms = None

    def adopt(self, create: bytes, now_ms: float) -> None:
        """Another `create` stands; what this peer said and that one refuses is not waited for: a new epoch begins."""
        super().adopt(create, now_ms)
        name, epoch = self.name, self.speaking.epoch
        said = [(name, epoch, seq) for seq in range(1, self.speaking.stamps.seq + 1)]
        gone = [id_ for id_ in said if not self.sync_schedule.kept.has(id_)]
        self.log_coverage.drop(gone)
        join = self.own_join.record
        if gone and not self.own_join.left:
            self.begin_epoch(epoch + 1)
            self.enter(now_ms)
        elif join is not None and join not in self.records.all():
            self._say(join, now_ms)  # the `create` before may have refused it

    # ── what others lack ──────────────────────────────────────────────────────────────────────────────────────────

    def receive_request(self, request: SyncRequest, asker: OriginStream, peers: int, now_ms: float) -> None:
        """Somebody says what it has. Raises PeerFault."""
        self.sync_schedule.receive_request(request, asker, peers, now_ms)
        if self.own_join.joined and self.order.waits_for_members and request.id.name != self.name:
            self.speaking.tell_soon(now_ms)  # who lacks something may wait for this clock, too

    def receive_answer(
        self, answer: SyncAnswer, size: int, teller: OriginStream, now_ms: float, *, is_from_log: bool
    ) -> None:
        """A page for somebody. Raises PeerFault."""
        take = partial(self.take, now_ms=now_ms, is_from_log=is_from_log, is_page=True)
        self.sync_schedule.receive_answer(answer, size, teller, take, now_ms)
        self.take_heard(now_ms)

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────

    def join_taken(self, join: Join, value: bytes) -> None:
        if self.is_gateway:
            self.events.append(JoinHeard(self.group, join.sender, join.epoch, value))
            return
        waits = self.order.waits_for_members and self.own_join.is_in
        if waits and join.sender != self.name:
            self._answer_join(join.sender, join.epoch, value)

    def _answer_join(self, joiner: str, epoch: int, join: bytes) -> None:
        """Tell a joiner that its join is taken into account; a gateway does so once the log has it."""
        named = newest_members(self.members, self.group, len(join))
        answer = JoinAnswer(self.group, joiner, epoch, self.name, self.speaking.time, named, join)
        self.out.append((ANNOUNCEMENT, encode(answer)))

    def take_join_of(self, answer: JoinAnswer, now_ms: float) -> None:
        """What the one who answers says from here on counts after this join."""
        try:
            join = read(answer.join, self.limits) if answer.join else None
        except Malformed:
            return
        answered = self.group, answer.joiner, answer.epoch
        if not isinstance(join, Join) or (join.group, join.sender, join.epoch) != answered:
            return
        if not self.records.has(join, answer.join):  # else all would answer each answer
            self.hear([answer.join], now_ms, is_from_log=False)

    def receive_join_answer(self, answer: JoinAnswer, now_ms: float) -> None:
        """A member answers; the own clock goes above its."""
        if not self.own_join.receive_answer(answer, self.speaking.epoch):
            return
        stamps: Any = self.speaking.stamps
        if self.order.waits_for_members and answer.time <= self.speaking.knowledge.time + self.limits.window:
            stamps.catch_up(answer.time)
        self.speaking.tell_soon(now_ms)

    def check_join(self, present: set[str] | None, gateways: set[str], now_ms: float) -> None:
        """Whether the own join counts now; `present` are the names of all who are there, None if not all are known."""
        if self.speaking.knowledge.view.get(self.name, (-1, IN))[0] < self.speaking.epoch:
            return  # it waits for the history
        waits_for: set[str] | None = set()
        if self.order.waits_for_members:
            is_known = present is not None and self.sync_schedule.synced
            waits_for = None
            if present is not None and is_known:
                waits_for = (self.members.keys() | gateways | self.own_join.named) & present
        if self.own_join.counts_now(waits_for):
            self.events.append(Joined(self.group, self.speaking.epoch))
            if self.order.waits_for_members:
                self.speaking.tell_soon(now_ms)
        elif self.own_join.record is not None and self.own_join.is_due(now_ms):
            self.out.append((DATA, write_data(self.key, self.own_join.record)))

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def due(self, clock_ms: int, now_ms: float) -> None:
        """Do what is due."""
        speaking = self.speaking
        if speaking.heartbeat_ms is not None and speaking.heartbeat_ms <= now_ms:
            speaking.heartbeat_ms = None
            if self.own_join.joined and self.order.waits_for_members:
                self._say(speaking.heartbeat(clock_ms, now_ms), now_ms)
                if not self.ordering.held_count:
                    speaking.heartbeat_ms = None
        if speaking.heartbeat_ms is None and self.order.waits_for_members and self.own_join.joined:
            speaking.heartbeat_ms = now_ms + HEARTBEAT_MS if self.ordering.held_count else None
        out, became_synced = self.sync_schedule.due(now_ms)
        self.out += out
        if became_synced:
            self.events.append(Synced(self.group))
        self.take_deferred(now_ms)
        self.take_heard(now_ms)
        told = self.sync_schedule.forgotten(self.ordering.waited_for, now_ms)
        if told:
            passed, delivered = self.ordering.pass_over(told, self.sync_schedule.reached_time, now_ms)
            self.sync_schedule.passed(passed)
            self._deliver(delivered)
        self.log_coverage.drop(self.sync_schedule.kept.forget_old(self._may_forget))

    def _may_forget(self, id_: Id) -> bool:
        return not self.ordering.is_held(id_) and not self.log_coverage.keeps(id_)

    def deadline_ms(self) -> float | None:
        """When to call `due`."""
        times = [
            self.speaking.heartbeat_ms,
            self.sync_schedule.deadline_ms(is_waiting=bool(self.ordering.held_count)),
            self.own_join.again_ms,
            self.deferred_until_ms(),
        ]
        return min((time for time in times if time is not None), default=None)
