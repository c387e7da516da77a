"""Release by destination (`causal_p2p`): every destination has a sequence of its own.

The engine judges a record once: copies, fences, stamps, windows, membership. When each of its destinations gets it is
decided here. A message that some destination has not got is held, once, in the group, and in each of these
destinations; it is settled when all have got it. Of everything that is ready, at whatever destinations, the lowest
offset goes first, to one destination after the other by name.

In a closed group what a stranger names is no destination before the stranger's `join`: otherwise an outsider would
decide how many records others cause.

An abandoned message takes a position at every destination named so far, once all earlier ones of its sender are
settled.

Destinations share nothing but the records. What a message waits for at one of them is the entry of this destination in
`sent`, and it goes as soon as the clock there has reached everything that the entry names, whatever other destinations
still wait for. A message that waits watches ONE sender whose clock is too low, and is judged again when that has risen
far enough.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, ClassVar

from precede.udfs.codes import Refusal
from precede.udfs.engine.admission import no_room
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.interfaces import Release
from precede.udfs.engine.outbox import Labels
from precede.udfs.engine.repair_timers import NOTICED_MAX
from precede.udfs.engine.search import WALK_MAX, Look
from precede.udfs.engine.senders import SenderKey, SenderRuns, sender_key
from precede.udfs.engine.state import QUEUED, control, first_of, waits_for_join
from precede.udfs.records.messages import Id, Join

Place = tuple[int, int, str, HeldMessage]
"""(offset, rank, destination, message): how ready messages rank; a stand-in has one place for all destinations."""


class SettledEverywhere:
    """What is settled at all destinations, and the messages that wait for that.

    It counts from the first abandoned message on, because a stand-in has no stamp that a destination could merge. From
    there on an entry of a stamp is met, too, where everything that its sender said up to there is settled at all
    destinations: nothing of it can be missing then.
    """

    __slots__ = ("counts", "group", "waiting")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.counts = False
        """Whether anything was ever abandoned."""
        self.waiting: dict[SenderKey, list[tuple[int, int, str, HeldMessage]]] = {}
        """By sender, the messages that wait for all up to a seq to be settled, as a heap by that seq."""

    def covers(self, who: SenderKey, seq: int) -> bool:
        """Whether everything that a sender said up to there is settled, where that counts."""
        sender = self.group.senders.get(who) if self.counts else None
        return sender is not None and seq <= sender.prefix

    def watch(self, who: SenderKey, seq: int, one: HeldMessage, destination: str) -> None:
        """Let a message of one destination wait for that, too."""
        if self.counts:
            heappush(self.waiting.setdefault(who, []), (seq, one.offset, destination, one))

    def take(self, who: SenderKey, reached: int) -> list[tuple[int, str, HeldMessage]]:
        """The messages that waited for no more than this seq, with the seq and destination of each, in that order."""
        heap = self.waiting.get(who)
        taken: list[tuple[int, str, HeldMessage]] = []
        while heap and heap[0][0] <= reached:
            seq, _, name, one = heappop(heap)
            taken.append((seq, name, one))
        if heap is not None and not heap:
            del self.waiting[who]
        return taken


class Destination:
    """The virtual receiver of one member."""

    __slots__ = ("clock", "held", "labels", "name", "named", "position", "settled", "waiting")

    def __init__(self, name: str, group: Group, settled: SettledEverywhere) -> None:
        self.name = name
        self.settled = settled
        self.named = False
        """Whether a message was ever addressed to it; a member gets membership records before that."""
        self.position = 0
        self.clock: dict[SenderKey, int] = {}
        """The maximum of the stamps delivered here."""
        self.held: dict[Id, HeldMessage] = {}
        """The messages that wait for their place here."""
        self.waiting: dict[SenderKey, list[tuple[int, int, HeldMessage]]] = {}
        """By the sender whose clock they watch, the waiting messages as a heap by how far it must rise; some left."""
        self.labels = Labels(group.key, group.name, group.order.name, group.partition, name, takes_apart=True)

    def is_ready(self, one: HeldMessage) -> bool:
        """Whether the clock meets what `sent` says of this destination; else its last entry left is to be watched."""
        entries = entries_of(one, self.name)
        clock = self.clock
        while entries:
            name, epoch, seq = entries[-1]
            who = (name, epoch) if epoch else name
            if seq > clock.get(who, 0) and not self.settled.covers(who, seq):
                return False
            entries.pop()  # once met it stays met, so each entry is looked at once
        return True

    def meets(self, who: SenderKey, seq: int) -> bool:
        """Whether nothing of this sender up to that seq need be waited for here."""
        return seq <= self.clock.get(who, 0) or self.settled.covers(who, seq)

    def watch(self, one: HeldMessage) -> None:
        """Let a message that is not ready wait for its last entry."""
        name, epoch, seq = entries_of(one, self.name)[-1]
        who = sender_key(name, epoch)
        heappush(self.waiting.setdefault(who, []), (seq, one.offset, one))
        self.settled.watch(who, seq, one, self.name)

    def watches(self, one: HeldMessage, who: SenderKey, seq: int) -> bool:
        """Whether a message still waits here, and for this entry."""
        if self.held.get(one.id) is not one:
            return False  # abandoned, or fenced
        entries = entries_of(one, self.name)
        return bool(entries) and entries[-1][2] == seq and sender_key(entries[-1][0], entries[-1][1]) == who

    def place(self, one: HeldMessage) -> Place:
        """How a message that is ready here ranks."""
        return one.offset, 0, self.name, one

    def merge(self, stamp: list[Id]) -> list[Place]:
        """Let the clock rise to a stamp that is delivered here; the messages that are ready now are returned."""
        clock, waiting = self.clock, self.waiting
        ready: list[Place] = []
        for name, epoch, seq in stamp:
            who = (name, epoch) if epoch else name
            if seq > clock.get(who, 0):
                clock[who] = seq
                if who in waiting:
                    self._wake(who, seq, ready)
        return ready

    def _wake(self, who: SenderKey, reached: int, ready: list[Place]) -> None:
        """Judge the messages again that wait for no more of this sender than that."""
        heap = self.waiting[who]
        while heap and heap[0][0] <= reached:
            awaited, _, one = heappop(heap)
            if self.watches(one, who, awaited):
                if self.is_ready(one):
                    ready.append(self.place(one))
                else:
                    self.watch(one)
        if not heap:
            del self.waiting[who]

    def unmet(self, one: HeldMessage) -> list[Id]:
        """Up to which seq of which senders a message waits here."""
        return [
            entry for entry in entries_of(one, self.name) if not self.meets(sender_key(entry[0], entry[1]), entry[2])
        ]


def entries_of(one: HeldMessage, name: str) -> list[Id]:
    """What a stamp says was sent to one destination, as far as it is not known to be met."""
    return one.message.sent.get(name, [])  # type: ignore[union-attr]  # judged before


class ByDestination(Release):
    """All destinations of one group, and what waits for a place at some of them."""

    __slots__ = ("by_name", "fenced", "got_by", "group", "places", "places_held", "settled")

    needs_stand_ins: ClassVar[bool] = True

    def __init__(self, group: Group) -> None:
        self.group = group
        self.by_name: dict[str, Destination] = {}
        self.places: dict[Id, set[str]] = {}
        """Of each message the destinations that have not got it; none is kept while it waits for its sender's join."""
        self.places_held = 0
        """How many places are waited for in all: these are what is limited."""
        self.settled = SettledEverywhere(group)
        self.got_by: dict[Id, list[str]] = {}
        """Of an abandoned message that waits for its turn, the destinations that had got it before, if any."""
        self.fenced: list[Id] = []
        """Messages that a fence has just ended after some destinations had got them: others may wait for these."""

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, sender: SenderRuns, one: HeldMessage, watch: Watch, offset: int, now_ms: int) -> Refusal | None:
        group = self.group
        names = _names(one)
        if watch == QUEUED:
            known = (self.by_name.get(name) or Destination(name, group, self.settled) for name in names)
            more = sum(1 for destination in known if not destination.is_ready(one))
        else:
            more = max(1, len(names))
        assert one.value is not None
        refusal = no_room(group, sender, one.id[2], one.value, held=self.places_held, more=more)
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

    def _welcome(self, names: Iterable[str]) -> None:
        """These get membership records from here on."""
        for name in names:
            if name not in self.by_name:
                self.by_name[name] = Destination(name, self.group, self.settled)

    def _name(self, names: Iterable[str]) -> None:
        """A message that counts is addressed to these."""
        for name in names:
            destination = self.by_name.get(name)
            if destination is None:
                destination = self.by_name[name] = Destination(name, self.group, self.settled)
            destination.named = True

    def _place(self, one: HeldMessage) -> list[Place]:
        """Hold a message for all its destinations; its places where it is ready are returned."""
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
        """Deliver what is ready and all it frees; after every single delivery the next one is chosen among all."""
        heapify(ready)
        while ready:
            _, _, name, one = heappop(ready)
            freed = self._stand_in(one, offset, now_ms) if not name else self._deliver(one, name, offset, now_ms)
            for place in freed:
                heappush(ready, place)

    def _deliver(self, one: HeldMessage, name: str, offset: int, now_ms: int) -> list[Place]:
        """The next position of a destination goes to this message; the places that this frees are returned."""
        destination = self.by_name[name]
        assert one.message is not None
        self._put(destination, one, offset, now_ms)
        destination.held.pop(one.id, None)
        freed = destination.merge(one.message.seen)  # type: ignore[arg-type]  # judged before
        left = self.places[one.id]
        left.remove(name)
        self.places_held -= 1
        return freed if left else freed + self._end(one)

    def _put(self, destination: Destination, one: HeldMessage, offset: int, now_ms: int) -> None:
        destination.position += 1
        self.group.outbox.place(destination.labels, one, destination.position, offset, now_ms)

    def _end(self, one: HeldMessage) -> list[Place]:
        """No destination waits for this message any more; the places that this frees are returned."""
        group = self.group
        del self.places[one.id]
        if one.watch is not None:
            group.stop_watching(one)
            group.take_out(one)
        name, epoch, seq = one.id
        sender = group.senders[sender_key(name, epoch)]
        sender.add(seq)
        if group.digests:
            assert one.value is not None
            sender.remember(seq, one.value, group.digests)
        return self._freed_by_end(one.id, sender)

    def _freed_by_end(self, id_: Id, sender: SenderRuns) -> list[Place]:
        """The places that are free now that this id is settled at all destinations."""
        freed: list[Place] = []
        for stand_in in self.group.take_watchers(id_) if id_ in self.group.waiting else ():
            self.group.take_out(stand_in)
            self.places_held -= 1
            freed += self._in_turn(stand_in)
        who = sender_key(sender.name, sender.epoch)
        if who not in self.settled.waiting:
            return freed
        for seq, name, one in self.settled.take(who, sender.prefix):
            destination = self.by_name[name]
            if destination.watches(one, who, seq):
                if destination.is_ready(one):
                    freed.append(destination.place(one))
                else:
                    destination.watch(one)
        return freed

    # ── control records ───────────────────────────────────────────────────────────────────────────────────────────

    def deliver_control(self, value: bytes, offset: int, now_ms: int) -> None:
        """A membership record takes a position at every member and destination; then what a fence freed is let go."""
        record = control(value, offset, now_ms)
        for name in sorted(self.by_name):
            self._put(self.by_name[name], record, offset, now_ms)
        fenced, self.fenced = self.fenced, []
        if fenced and not self.settled.counts:
            self.settled.counts = True
            self._settle(self._look_again(), offset, now_ms)
        for id_ in fenced:
            self._settle(self._freed_by_end(id_, self.group.senders[sender_key(id_[0], id_[1])]), offset, now_ms)

    def create(self, members: list[str]) -> None:
        self._welcome(members)

    def join(self, record: Join, *, only_signs: bool) -> None:
        if not only_signs:
            self._welcome([record.sender])

    def joined(self, record: Join, offset: int, now_ms: int) -> None:
        self.happened((record.sender, record.epoch), offset, now_ms)

    def happened(self, watch: Watch, offset: int, now_ms: int) -> None:
        """A sender joined: its messages go where they are addressed, all of them placed before one is delivered."""
        ready: list[Place] = []
        for one in self.group.take_watchers(watch):
            names = _names(one)
            self.group.take_out(one)
            self.places_held -= max(1, len(names))
            self._name(names)
            ready += self._place(one)
        self._settle(ready, offset, now_ms)

    def withdraw(self, found: list[HeldMessage], refusal: Refusal) -> None:
        """A held message becomes a dead letter wherever it is still waited for."""
        for one in found:
            if one.value is not None and self._withdraw(one, refusal):
                # Some have got it, so it is settled, and the destinations it did not reach must not wait for ever.
                sender = self.group.senders[sender_key(one.id[0], one.id[1])]
                sender.add(one.id[2])
                if self.group.digests:
                    sender.remember(one.id[2], one.value, self.group.digests)
                self.fenced.append(one.id)

    def _withdraw(self, one: HeldMessage, refusal: Refusal) -> list[str]:
        """Take a held message from all that wait for it, with a dead letter each; the ones that got it are returned."""
        group = self.group
        group.stop_watching(one)
        group.take_out(one)
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

    # ── abandoning ────────────────────────────────────────────────────────────────────────────────────────────────

    def places_per_stand_in(self) -> int:
        return max(1, len(self.by_name))

    def room_for_stand_ins(self) -> int | None:
        return self.group.limits.held_max - self.places_held

    def abandon(
        self, stand_in: HeldMessage, held: HeldMessage | None, refusal: Refusal, offset: int, now_ms: int
    ) -> None:
        got_by = [] if held is None else self._withdraw(held, refusal)
        if got_by:
            self.got_by[stand_in.id] = got_by
        ready = self._in_turn(stand_in)
        if not self.settled.counts:
            self.settled.counts = True
            ready += self._look_again()
        self._settle(ready, offset, now_ms)

    def _look_again(self) -> list[Place]:
        """Judge everything held once more, now also by what is settled, and let it wait for that from here on."""
        self.settled.waiting.clear()
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
        """The place of a stand-in whose turn has come; else it is held, and watches the last open id before it."""
        name, epoch, seq = stand_in.id
        sender = self.group.senders[sender_key(name, epoch)]
        if sender.prefix >= seq - 1:
            return [(stand_in.offset, stand_in.rank, "", stand_in)]
        self.group.hold(stand_in, (name, epoch, sender.last_absent(seq - 1)))
        self.places_held += 1
        return []

    def _stand_in(self, one: HeldMessage, offset: int, now_ms: int) -> list[Place]:
        """The next position of every destination named so far goes to the stand-in of an abandoned message."""
        name, epoch, seq = one.id
        who = sender_key(name, epoch)
        got_by = self.got_by.pop(one.id, ())
        freed: list[Place] = []
        for at in sorted(self.by_name):
            destination = self.by_name[at]
            if destination.named and at not in got_by:
                self._put(destination, one, offset, now_ms)
                freed += destination.merge([one.id])
        sender = self.group.senders[who]
        sender.add(seq)
        return freed + self._freed_by_end(one.id, sender)

    # ── looking and keeping ───────────────────────────────────────────────────────────────────────────────────────

    def blockers(self, one: HeldMessage, look: Look) -> Iterator[tuple[str | None, list[Id]]]:
        left = self.places.get(one.id)
        names = _names(one) if left is None else sorted(left)
        for name in names:
            yield name, self._missing(one, [name], look)
        if not names:
            yield None, self._missing(one, [], look)

    def queued(self) -> list[HeldMessage]:
        """The first messages that wait for something that is not here, then the one that has waited longest."""
        queued = self.group.waiting.get(QUEUED)
        if queued is None:
            return []
        look = Look(self.group, 1)
        first = islice((one for one in self.group.held.values() if one.watch == QUEUED), NOTICED_MAX)
        found = [one for one in first if self.missing(one, look)]
        longest = first_of(queued)
        return found if any(one is longest for one in found) else [*found, longest]

    def watched(self) -> set[Id]:
        return {
            entries_of(one, destination.name)[-1]
            for destination in self.by_name.values()
            for one in destination.held.values()
        }

    def entered_up_to(self, name: str, epoch: int) -> int:
        sender = self.group.senders.get(sender_key(name, epoch))
        return 0 if sender is None else sender.prefix

    def missing(self, one: HeldMessage, look: Look) -> list[Id]:
        return self._missing(one, sorted(self.places.get(one.id, ())), look)

    def _missing(self, one: HeldMessage, names: list[str], look: Look) -> list[Id]:
        """The absent ids that these destinations may wait for; where all are there, what those wait for in turn.

        A stamp does not say which of the ids it covers were meant for which destination.
        """
        search = look.search()
        level, walked = [(one, names)], {one.id}
        while level and not search.found:
            below: list[tuple[HeldMessage, list[str]]] = []
            for each, at in level:
                if waits_for_join(each.watch):
                    search.found.add(each.id)
                    continue
                for name, epoch, last in self._unmet(each, at):
                    for under in search.up_to(name, epoch, last):
                        if under.id not in walked and len(walked) < WALK_MAX:
                            walked.add(under.id)
                            places = self.places.get(under.id, set())
                            below.append((under, sorted(places if self.settled.counts else places.intersection(at))))
            level = below
        return sorted(search.found)[: look.at_most]

    def _unmet(self, one: HeldMessage, names: list[str]) -> list[Id]:
        name, epoch, seq = one.id
        if one.message is None:
            return [(name, epoch, seq - 1)]
        return [entry for at in names for entry in self.by_name[at].unmet(one)]

    def dump(self) -> Any:
        """All of it as plain data, without what the group keeps of held messages."""
        if not self.by_name and not self.settled.counts:
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
        return [self.settled.counts, keys, destinations, places]

    def load(self, dumped: Any) -> None:
        self.settled.counts, keys, destinations, places = dumped
        whose = [sender_key(name, epoch) for name, epoch in keys]
        for name, named, position, clock in destinations:
            one = self.by_name[name] = Destination(name, self.group, self.settled)
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

    def relink(self, held: Iterable[HeldMessage]) -> None:
        """Count how many places these wait for: everything that is held, also where `dump` had nothing to keep."""
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
