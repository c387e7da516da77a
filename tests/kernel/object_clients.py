"""Objects that stamp their messages; a test decides where and when each is delivered."""

from __future__ import annotations

from collections.abc import Iterable

from precede.udfs.member.objects import Conflicts, Instance, ObjectClient, ObjectMessage
from precede.udfs.records.messages import Id

Sid = tuple[int, str]


class Group:
    """Objects and their messages; the test decides where and when each is delivered."""

    def __init__(self, *names: str, conflicts: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = {pair for one, other in conflicts for pair in ((one, other), (other, one))}
        self.conflicts = Conflicts(self.pairs)
        self.objects = {name: ObjectClient(name, self.conflicts) for name in names}
        self.seqs: dict[str, int] = {}
        self.said: dict[Id, ObjectMessage] = {}
        self.significant: dict[Id, set[Id]] = {}
        """What precedes each message by the definition in 3.1, whatever the stamps say."""
        self._before: dict[Sid, set[Id]] = {}
        """What precedes whatever an instance sends next."""
        self._committed: dict[str, list[tuple[str, set[Id]]]] = {name: [] for name in names}
        """Of each object the committed instances: their methods, what they sent and received, and what precedes it."""

    def start(self, name: str, op: str = "client", request: ObjectMessage | None = None) -> Instance:
        instance = self.objects[name].start(op, request)
        conflicting = [ids for other, ids in self._committed[name] if (op, other) in self.pairs]
        self._before[instance.sid] = set().union(*conflicting)
        if request is not None:
            self._note(instance, request.id)
        return instance

    def receive(self, instance: Instance, message: ObjectMessage) -> None:
        instance.receive(message)
        self._note(instance, message.id)

    def _note(self, instance: Instance, id_: Id) -> None:
        self._before[instance.sid] |= self.significant[id_] | {id_}

    def commit(self, instance: Instance) -> None:
        instance.commit()
        self._committed[instance.sid[1]].append((instance.op, self._before[instance.sid]))

    def send(self, instance: Instance, op: str, *to: str, type_: str = "request") -> ObjectMessage:
        name = instance.sid[1]
        for draft in instance.drafts(op, type_, to):  # type: ignore[arg-type]
            self.seqs[name] = self.seqs.get(name, 0) + 1
            id_ = (name, 0, self.seqs[name])
            instance.sent(draft, id_)
            message = self.said[id_] = self.objects[name].known[id_]
            self.significant[id_] = self._before[instance.sid].copy()
            self._note(instance, id_)
        return message

    def deliver(self, message: ObjectMessage, *to: str) -> None:
        """Deliver to all objects, or to these only."""
        for name in to or self.objects:
            self.objects[name].deliver(message)
