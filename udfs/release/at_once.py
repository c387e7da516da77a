"""Release at once: a held message goes as soon as what it watches has happened, unless its order then names another.

    hold a:3, watches a:2      hold b:7, watches a:2      hold a:4, watches a:3
    a:2 is settled  ->  a:3 and b:7 are judged again and ready; a:3 is delivered, which frees a:4

One delivery frees what watches it, and after every single delivery the next one is chosen among all that is ready:
depth first, or the one that arrived first, as the order says.

In `causal` and `object` held messages may wait for each other in a circle, so that no message that may still come can
free them. Such a circle is simply held (contract, section 3); in `s_b` it is refused when it closes, and in the other
orders there is none. When the group gives up, the message that closed the circle is abandoned, which frees the others.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from precede.udfs.codes import Refusal
from precede.udfs.engine.admission import judge, no_room, refuse_permanently
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.interfaces import Release
from precede.udfs.engine.search import Look
from precede.udfs.engine.senders import SenderRuns, sender_key
from precede.udfs.engine.state import ID_PARTS, arrival, waits_for_id, waits_for_join
from precede.udfs.records.messages import Id, Join


class AtOnce(Release):
    """Wakes what watched an id or a join, and delivers what is ready and all it frees."""

    __slots__ = ("group",)

    def __init__(self, group: Group) -> None:
        self.group = group

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, sender: SenderRuns, one: HeldMessage, watch: Watch, offset: int, now_ms: int) -> Refusal | None:
        group = self.group
        assert one.value is not None
        refusal = no_room(group, sender, one.id[2], one.value, held=len(group.held))
        if refusal is None:
            group.accept(sender, one.id)
            if group.order.waits_once and len(watch) == ID_PARTS:
                one.message = None  # it will not be judged again, and what is held should be small
            group.hold(one, watch)
        return refusal

    def happened(self, watch: Watch, offset: int, now_ms: int) -> None:
        self.settle(self.woken_by(watch), offset, now_ms)

    def watch(self, one: HeldMessage, watch: Watch) -> None:
        """Let a held message wait for something else from here on."""
        if self.group.order.waits_once and len(watch) == ID_PARTS:
            one.message = None
        self.group.watch(one, watch)

    def woken_by(self, watch: Watch) -> list[HeldMessage]:
        """The messages that watched this are judged again, by arrival; the ready ones are returned, held no longer."""
        group = self.group
        order = group.order
        ready: list[HeldMessage] = []
        refused: list[tuple[HeldMessage, Refusal]] = []
        is_ready = order.waits_once and len(watch) == ID_PARTS
        for one in group.take_watchers(watch):
            verdict: Watch | Refusal | None = None
            if not is_ready:
                verdict = group.turn(one.id) if one.message is None else judge(group, order, one.id, one.message)
            if verdict is None:
                group.take_out(one)
                ready.append(one)
            elif isinstance(verdict, Refusal):
                group.take_out(one)
                refused.append((one, verdict))
            else:
                self.watch(one, verdict)
        for one, refusal in refused:  # last, so that the messages that hang on these are found where they wait now
            if refusal.code in order.takes_id:
                refuse_permanently(group, one, refusal)
            else:
                group.refuse_held(one, refusal)
        return ready

    def settle(self, ready: list[HeldMessage], offset: int, now_ms: int) -> None:
        """Deliver what is ready and all it frees; after every single delivery the next one is chosen among all."""
        group = self.group
        if group.order.depth_first:
            ready.reverse()
            while ready:
                one = ready.pop()
                group.settle(one, offset, now_ms)
                if one.id in group.waiting:
                    freed = self.woken_by(one.id)
                    freed.reverse()
                    ready += freed
            return
        ranked = [(one.offset, one.rank, one) for one in ready]
        heapify(ranked)
        while ranked:
            one = heappop(ranked)[2]
            group.settle(one, offset, now_ms)
            if one.value is None:
                self.stand_in_settled(one.id)
            if one.id in group.waiting:
                for freed_one in self.woken_by(one.id):
                    heappush(ranked, (freed_one.offset, freed_one.rank, freed_one))

    # ── membership ────────────────────────────────────────────────────────────────────────────────────────────────

    def joined(self, record: Join, offset: int, now_ms: int) -> None:
        self.happened((record.sender, record.epoch), offset, now_ms)

    def withdraw(self, found: list[HeldMessage], refusal: Refusal) -> None:
        group = self.group
        is_linked = False
        for one in found:
            if one.value is not None:
                group.stop_watching(one)
                group.take_out(one)
                group.refuse_held(one, refusal)
                is_linked = is_linked or self.is_linked(one)
        if is_linked:
            self.relink(group.held.values())

    def is_linked(self, one: HeldMessage) -> bool:
        """Whether more than its own watch hangs on a held message."""
        return one.id in self.group.waiting

    def deliver_control(self, value: bytes, offset: int, now_ms: int) -> None:
        self.group.place_control(value, offset, now_ms)

    # ── abandoning ────────────────────────────────────────────────────────────────────────────────────────────────

    def room_for_stand_ins(self) -> int | None:
        group = self.group
        return group.limits.held_max - len(group.held) if group.order.in_turn else None

    def abandon(
        self, stand_in: HeldMessage, held: HeldMessage | None, refusal: Refusal, offset: int, now_ms: int
    ) -> None:
        group = self.group
        if held is not None:
            group.stop_watching(held)
            group.take_out(held)
            self.withdrawn(held)
            group.refuse_held(held, refusal)
        previous = group.turn(stand_in.id) if group.order.in_turn else None
        if previous is None:
            self.settle([stand_in], offset, now_ms)
        else:
            self.hold_stand_in(stand_in, previous)

    def hold_stand_in(self, stand_in: HeldMessage, previous: Id) -> None:
        """Let a stand-in wait until its turn."""
        self.group.hold(stand_in, previous)

    def withdrawn(self, held: HeldMessage) -> None:
        """A held message was taken out because it is abandoned."""

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def missing(self, one: HeldMessage, look: Look) -> list[Id]:
        return self.group.order.missing(one, look)

    def blockers(self, one: HeldMessage, look: Look) -> Iterator[tuple[str | None, list[Id]]]:
        yield None, [one.id] if waits_for_join(one.watch) else self.missing(one, look)

    def entered_up_to(self, name: str, epoch: int) -> int:
        sender = self.group.senders.get(sender_key(name, epoch))
        return 0 if sender is None else sender.prefix

    def closing_messages(self) -> list[HeldMessage]:
        return [] if self.group.order.waits_once else closing_messages(self.group)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    def relink(self, held: Iterable[HeldMessage]) -> None:
        self.group.order.relink(held)


def closing_messages(group: Group) -> list[HeldMessage]:
    """Of each circle the message that arrived last, the first of these first."""
    held = group.held
    walk_of: dict[Id, int] = {}
    found: list[HeldMessage] = []
    for number, start in enumerate(held.values()):
        one: HeldMessage | None = start
        path: list[HeldMessage] = []
        while one is not None and one.id not in walk_of:
            walk_of[one.id] = number
            path.append(one)
            one = held.get(one.watch) if waits_for_id(one.watch) else None
        if one is not None and walk_of[one.id] == number:  # this walk came back to itself
            found.append(max((each for each in path[path.index(one) :] if each.value is not None), key=arrival))
    return sorted(found, key=arrival)
