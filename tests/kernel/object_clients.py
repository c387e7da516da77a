"""Objects that stamp their messages; a test decides where and when each is delivered."""

from __future__ import annotations

from precede.udfs.member.objects import Conflicts, Instance, ObjectClient, ObjectMessage
from precede.udfs.records.messages import Id


class Group:
    """Objects and their messages; the test decides where and when each is delivered."""

    def __init__(self, *names: str, conflicts: list[tuple[str, str]] | None = None) -> None:
        self.conflicts = Conflicts(conflicts or [])
        self.objects = {name: ObjectClient(name, self.conflicts) for name in names}
        self.seqs: dict[str, int] = {}
        self.said: dict[Id, ObjectMessage] = {}
        self.knows: dict[object, set[Id]] = {name: set() for name in names}
        """What each object and instance really knew, whatever the stamps say."""
        self.past: dict[Id, set[Id]] = {}

    def start(self, name: str, op: str = "client", request: ObjectMessage | None = None) -> Instance:
        instance = self.objects[name].start(op, request)
        self.knows[instance.sid] = set(self.knows[name])
        if request is not None:
            self.receive(instance, request)
        return instance

    def receive(self, instance: Instance, message: ObjectMessage) -> None:
        instance.receive(message)
        self.knows[instance.sid] |= self.past[message.id] | {message.id}

    def commit(self, instance: Instance) -> None:
        instance.commit()
        self.knows[instance.sid[1]] |= self.knows[instance.sid]

    def send(self, instance: Instance, op: str, *to: str, type_: str = "request") -> ObjectMessage:
        name = instance.sid[1]
        self.seqs[name] = self.seqs.get(name, 0) + 1
        id_ = (name, 0, self.seqs[name])
        draft = instance.draft(op, type_, to)  # type: ignore[arg-type]
        instance.sent(draft, id_)
        message = self.objects[name].known[id_]
        self.said[id_] = message
        self.past[id_] = set(self.knows[instance.sid])
        self.knows[instance.sid].add(id_)
        return message

    def deliver(self, message: ObjectMessage, *to: str) -> None:
        """Deliver to all objects, or to these only."""
        for name in to or self.objects:
            self.objects[name].deliver(message)
