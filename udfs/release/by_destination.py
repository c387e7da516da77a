"""The hold-back loop where every destination has a sequence of its own (`causal_p2p`).

The engine (group.py) judges a record once: copies, fences, stamps, windows, membership. What is left, when each of its
destinations gets it, is decided here. A message that some destination has not got is held, once, in the group, and in
each of these destinations (destination.py); it is settled when all have got it. Among all that is ready, at whatever
destinations, the lowest offset goes first, to one destination after the other by name.

In a closed group what a stranger names is no destination before the stranger's `join`: otherwise an outsider would
decide how many records others cause.

What is given up on takes a position at every destination named so far, once all earlier ones of its sender are settled.
It has no stamp that could be merged. So from the first one on, what a stamp names counts as met, too, where all that
its sender said up to there is settled at all destinations: nothing of it can be missing then.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import QUEUED, WALK_MAX, HeldMessage, Watch
from precede.udfs.engine.outbox import stand_in_head
from precede.udfs.engine.search import Search
from precede.udfs.engine.senders import Sender, SenderKey, sender_key
from precede.udfs.records.messages import Id
from precede.udfs.release.destination import Destination, Place, entries_of

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


class Destinations:
    """All destinations of one group, and what waits for a place at some of them."""

    __slots__ = ("by_name", "gave_up", "got_by", "group", "past", "places", "places_held", "stirred")

    def __init__(self, group: "Group") -> None:
        self.group = group
        self.by_name: dict[str, Destination] = {}
        self.places: dict[Id, set[str]] = {}
        """Of each message the destinations that have not got it; none is kept while it waits for its sender's join."""
        self.places_held = 0
        """How many places are waited for, all in all: these are what is limited."""
        self.gave_up = False
        """Whether anything was ever given up on."""
        self.got_by: dict[Id, list[str]] = {}
        """Of what is given up on and waits for its turn, the destinations that had got it before, if any."""
        self.past: dict[SenderKey, list[tuple[int, int, str, HeldMessage]]] = {}
        """Once something was given up on: by sender, who waits for all up to a seq to be settled, as a heap by that."""
        self.stirred: list[Id] = []
        """What a fence has just ended that others may wait for."""

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, sender: Sender, one: HeldMessage, watch: Watch, offset: int, now_ms: int) -> Refusal | None:
        """Take a message that passed all checks; it is refused where there is no room to hold it."""
        group = self.group
        names = _names(one)
        if watch == QUEUED:
            known = (self.by_name.get(name) or Destination(name, self) for name in names)
            more = sum(1 for destination in known if not destination.is_ready(one))
        else:
            more = max(1, len(names))
        assert one.value is not None
        refusal = group.no_room(sender, one.id[2], one.value, self.places_held, more)
        if refusal is not None:
            return refusal
        group.accept(sender, one.id)
        if watch != QUEUED:  # a stranger's: what it names counts from the `join` on
            group.hold(one, watch)
            self.places_held += more
            return None
        self._name(names)
        if more or not names:
            self._settle(self._place(one), offset, now_ms)
        else:  # the usual one: ready everywhere, so it is never held
            self.places[one.id] = set(names)
            self.places_held += len(names)
            self._settle([(one.offset, 0, name, one) for name in names], offset, now_ms)
        return None

    def welcome(self, names: Iterable[str]) -> None:
        """These get membership records from here on."""
        for name in names:
            if name not in self.by_name:
                self.by_name[name] = Destination(name, self)

    def _name(self, names: Iterable[str]) -> None:
        """A message that counts is addressed to these."""
        for name in names:
            destination = self.by_name.get(name)
            if destination is None:
                destination = self.by_name[name] = Destination(name, self)
            destination.named = True

    def _place(self, one: HeldMessage) -> list[Place]:
        """Hold a message for all its destinations; those where it is ready are returned."""
        names = _names(one)
        ready: list[Place] = []
        self.group.hold(one, QUEUED)
        self.places[one.id] = set(names)
        self.places_held += len(names)
        for name in names:
            destination = self.by_name[name]
            destination.held[one.id] = one
            if destination.is_ready(one):
                ready.append(destination.place(one))
            else:
                destination.watch(one)
        return ready if names else self._end(one)

    def _settle(self, ready: list[Place], offset: int, now_ms: int) -> None:
        """Deliver what is ready and all it frees; after every single delivery the ready set is taken anew."""
        heapify(ready)
        while ready:
            _, _, name, one = heappop(ready)
            freed = self._stand_in(one, offset, now_ms) if not name else self._deliver(one, name, offset, now_ms)
            for place in freed:
                heappush(ready, place)

    def _deliver(self, one: HeldMessage, name: str, offset: int, now_ms: int) -> list[Place]:
        """The next position of a destination goes to this message; what that frees."""
        destination = self.by_name[name]
        assert one.message is not None
        assert one.value is not None
        self._emit(destination, one.value[:-1], destination.delivered, one, offset, now_ms)
        destination.held.pop(one.id, None)
        freed = destination.merge(one.message.seen)  # type: ignore[arg-type]  # judged before
        left = self.places[one.id]
        left.remove(name)
        self.places_held -= 1
        return freed if left else freed + self._end(one)

    def _emit(
        self, destination: Destination, head: bytes, form: bytes, one: HeldMessage, offset: int, now_ms: int
    ) -> None:
        destination.position += 1
        outbox = self.group.outbox
        outbox.ordered.append(form % (head, destination.position, one.offset, one.arrived_ms, offset, now_ms))
        outbox.ordered_keys.append(self.group.key)

    def _end(self, one: HeldMessage) -> list[Place]:
        """No destination waits for this message any more; what that frees."""
        group = self.group
        del self.places[one.id]
        if one.watch is not None:
            group.stop_watching(one)
            group.release(one)
        name, epoch, seq = one.id
        sender = group.senders[sender_key(name, epoch)]
        sender.add(seq)
        if group.digests:
            assert one.value is not None
            sender.remember(seq, one.value, group.digests)
        return self._freed_by_end(one.id, sender)

    def _freed_by_end(self, id_: Id, sender: Sender) -> list[Place]:
        """What goes now that this id is settled at all destinations."""
        freed: list[Place] = []
        for stand_in in self.group.take_watchers(id_) if id_ in self.group.waiting else ():
            self.group.release(stand_in)
            self.places_held -= 1
            freed += self._in_turn(stand_in)
        who = sender_key(sender.name, sender.epoch)
        heap = self.past.get(who)
        while heap and heap[0][0] <= sender.prefix:
            seq, _, name, one = heappop(heap)
            destination = self.by_name[name]
            if destination.watches(one, who, seq):
                if destination.is_ready(one):
                    freed.append(destination.place(one))
                else:
                    destination.watch(one)
        if heap is not None and not heap:
            del self.past[who]
        return freed

    def is_past(self, who: SenderKey, seq: int) -> bool:
        """Whether all that a sender said up to there is settled, where that counts."""
        sender = self.group.senders.get(who) if self.gave_up else None
        return sender is not None and seq <= sender.prefix

    def watch_past(self, who: SenderKey, seq: int, one: HeldMessage, destination: Destination) -> None:
        """Let a message wait for that, too."""
        if self.gave_up:
            heappush(self.past.setdefault(who, []), (seq, one.offset, destination.name, one))

    # ── control records ───────────────────────────────────────────────────────────────────────────────────────────

    def deliver_control(self, value: bytes, offset: int, now_ms: int) -> None:
        """A membership record takes a position at every member and destination; then what a fence has freed goes."""
        record = HeldMessage(offset, now_ms, 0, value, ("", 0, 0))
        for name in sorted(self.by_name):
            destination = self.by_name[name]
            self._emit(destination, value[:-1], destination.delivered, record, offset, now_ms)
        stirred, self.stirred = self.stirred, []
        if stirred and not self.gave_up:
            self.gave_up = True
            self._settle(self._look_again(), offset, now_ms)
        for id_ in stirred:
            self._settle(self._freed_by_end(id_, self.group.senders[sender_key(id_[0], id_[1])]), offset, now_ms)

    def joined(self, who: Watch, offset: int, now_ms: int) -> None:
        """What waited for a join goes where it is for, all of it before the first is delivered."""
        ready: list[Place] = []
        for one in self.group.take_watchers(who):
            names = _names(one)
            self.group.release(one)
            self.places_held -= max(1, len(names))
            self._name(names)
            ready += self._place(one)
        self._settle(ready, offset, now_ms)

    def fence(self, one: HeldMessage, refusal: Refusal) -> None:
        """A held message is over its sender's fence: it becomes a dead letter wherever it is still waited for."""
        if one.value is not None and self._withdraw(one, refusal):
            # Some have got it, so it is settled, and those whom it did not reach in time must not wait for ever.
            sender = self.group.senders[sender_key(one.id[0], one.id[1])]
            sender.add(one.id[2])
            if self.group.digests:
                sender.remember(one.id[2], one.value, self.group.digests)
            self.stirred.append(one.id)

    def _withdraw(self, one: HeldMessage, refusal: Refusal) -> list[str]:
        """Take a held message from all that wait for it, with a dead letter for each; who has got it is returned."""
        group = self.group
        group.stop_watching(one)
        group.release(one)
        names = _names(one)
        left = self.places.pop(one.id, None)
        self.places_held -= max(1, len(names)) if left is None else len(left)
        waiting = names if left is None else sorted(left)
        for name in waiting:
            if left is not None:  # a stranger's message waits at none of them yet
                del self.by_name[name].held[one.id]
            group.refuse_held(one, refusal, name)
        if not waiting:
            group.refuse_held(one, refusal)
        return [name for name in names if name not in waiting]

    # ── giving up ─────────────────────────────────────────────────────────────────────────────────────────────────

    def give_up(
        self, stand_in: HeldMessage, held: HeldMessage | None, refusal: Refusal, offset: int, now_ms: int
    ) -> None:
        """Put a stand-in where a message is missing, or held."""
        got_by = [] if held is None else self._withdraw(held, refusal)
        if got_by:
            self.got_by[stand_in.id] = got_by
        ready = self._in_turn(stand_in)
        if not self.gave_up:
            self.gave_up = True
            ready += self._look_again()
        self._settle(ready, offset, now_ms)

    def _look_again(self) -> list[Place]:
        """Judge all that is held once more, by what is settled, too, and let it wait for that from here on."""
        self.past.clear()
        ready: list[Place] = []
        for destination in self.by_name.values():
            destination.waiting.clear()
            for one in destination.held.values():
                if destination.is_ready(one):
                    ready.append(destination.place(one))
                else:
                    destination.watch(one)
        return ready

    def _in_turn(self, stand_in: HeldMessage) -> list[Place]:
        """A stand-in whose turn has come; else it is held, and watches the last one before it that is not settled."""
        name, epoch, seq = stand_in.id
        sender = self.group.senders[sender_key(name, epoch)]
        if sender.prefix >= seq - 1:
            return [(stand_in.offset, stand_in.rank, "", stand_in)]
        self.group.hold(stand_in, (name, epoch, sender.last_absent(seq - 1)))
        self.places_held += 1
        return []

    def _stand_in(self, one: HeldMessage, offset: int, now_ms: int) -> list[Place]:
        """The next position of every destination named so far goes to what stands for a message given up on."""
        name, epoch, seq = one.id
        who = sender_key(name, epoch)
        got_by = self.got_by.pop(one.id, ())
        head = stand_in_head(self.group.name, one.id)
        freed: list[Place] = []
        for at in sorted(self.by_name):
            destination = self.by_name[at]
            if destination.named and at not in got_by:
                self._emit(destination, head, destination.abandoned, one, offset, now_ms)
                freed += destination.merge([one.id])
        sender = self.group.senders[who]
        sender.add(seq)
        return freed + self._freed_by_end(one.id, sender)

    # ── looking and keeping ───────────────────────────────────────────────────────────────────────────────────────

    def waiting_for(self, one: HeldMessage) -> list[str | None]:
        """Which destinations have not got a held message; None stands for nobody."""
        left = self.places.get(one.id)
        return [*(_names(one) if left is None else sorted(left))] or [None]

    def watched(self) -> set[Id]:
        """The last ids of what is watched anywhere."""
        return {
            entries_of(one, destination.name)[-1]
            for destination in self.by_name.values()
            for one in destination.held.values()
        }

    def missing(self, one: HeldMessage, names: Iterable[str], at_most: int) -> list[Id]:
        """The ids not there that these destinations may wait for; where all are there, what those wait for in turn.

        A stamp does not say which of the ids it covers were meant for whom.
        """
        search = Search(self.group, at_most)
        level, walked = [(one, list(names))], {one.id}
        while level and not search.found:
            below: list[tuple[HeldMessage, list[str]]] = []
            for each, at in level:
                if each.watch is not None and len(each.watch) == 2:
                    search.found.add(each.id)
                    continue
                for name, epoch, last in self._unmet(each, at):
                    for under in search.up_to(name, epoch, last):
                        if under.id not in walked and len(walked) < WALK_MAX:
                            walked.add(under.id)
                            places = self.places.get(under.id, set())
                            below.append((under, sorted(places if self.gave_up else places.intersection(at))))
            level = below
        return sorted(search.found)[:at_most]

    def _unmet(self, one: HeldMessage, names: list[str]) -> list[Id]:
        name, epoch, seq = one.id
        if one.message is None:
            return [(name, epoch, seq - 1)]
        return [entry for at in names for entry in self.by_name[at].unmet(one)]

    def dump(self) -> Any:
        """All of it as plain data, but for what the group keeps of held messages."""
        if not self.by_name and not self.gave_up:
            return None
        whose: dict[SenderKey, int] = {}
        destinations = []
        for one in self.by_name.values():
            clock: list[int] = []
            for who, seq in one.clock.items():
                clock += (whose.setdefault(who, len(whose)), seq)
            destinations.append([one.name, one.named, one.position, clock])
        number_of = {name: number for number, name in enumerate(self.by_name)}
        places = []
        for held in self.group.held.values():
            left = self.got_by.get(held.id) if held.value is None else self.places.get(held.id)
            places.append(None if left is None else sorted(number_of[name] for name in left))
        keys = [who if isinstance(who, tuple) else (who, 0) for who in whose]
        return [self.gave_up, keys, destinations, places]

    def load(self, dumped: Any) -> None:
        """Take what `dump` gave, with what the group holds already."""
        self.gave_up, keys, destinations, places = dumped
        whose = [sender_key(name, epoch) for name, epoch in keys]
        for name, named, position, clock in destinations:
            one = self.by_name[name] = Destination(name, self)
            one.named, one.position = named, position
            one.clock = {whose[clock[at]]: clock[at + 1] for at in range(0, len(clock), 2)}
        every = list(self.by_name)
        for held, numbers in zip(self.group.held.values(), places, strict=True):
            names = [every[number] for number in numbers or ()]
            if held.value is None:
                if names:
                    self.got_by[held.id] = names
            elif numbers is not None:
                self.places[held.id] = set(names)
                for name in names:
                    self.by_name[name].held[held.id] = held
        self._look_again()

    def count_places(self, held: Iterable[HeldMessage]) -> None:
        """Count how many places these wait for: all that is held, also where `dump` had nothing to keep."""
        self.places_held = 0
        for one in held:
            left = self.places.get(one.id)
            if one.value is None:
                self.places_held += 1
            else:
                self.places_held += max(1, len(_names(one))) if left is None else len(left)


def _names(one: HeldMessage) -> list[str]:
    """The destinations of a message, each once, in order."""
    return sorted(set(one.message.to))  # type: ignore[union-attr, arg-type]  # judged before
