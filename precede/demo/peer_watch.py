"""What the demo of peers observes: what each peer has delivered, what the log made of it, and whether they agree."""

from dataclasses import dataclass, field

from precede.reading.delivery import Delivery
from precede.udfs.records.messages import Id


@dataclass
class WatchedPeer:
    """One peer, by what its process tells."""

    name: str
    segment: str
    delivered: dict[Id, str] = field(default_factory=dict)
    """What was delivered, in its order, with its text."""
    held: int = 0
    """How often a message had to wait for another one long enough to be shown."""
    longest_ms: float = 0.0
    members: list[str] = field(default_factory=list)


@dataclass
class PeerWatch:
    """Everything seen so far."""

    peers: dict[str, WatchedPeer]
    answered: dict[Id, Id] = field(default_factory=dict)
    """Which message each one answers."""
    log: list[Delivery] = field(default_factory=list)
    """The messages of the ordered topic."""
    positions: list[int | None] = field(default_factory=list)
    """The positions of all its records."""

    def take(self, delivery: Delivery) -> None:
        """The log delivers a record."""
        self.positions.append(delivery.position)
        if delivery.kind == "message":
            self.log.append(delivery)

    @property
    def agreed(self) -> int:
        """How many messages all peers and the log have."""
        ids = {_id_of(one) for one in self.log}
        for peer in self.peers.values():
            ids &= peer.delivered.keys()
        return len(ids)

    @property
    def is_complete(self) -> bool:
        """Whether every peer has exactly what the log has."""
        ids = {_id_of(one) for one in self.log}
        return all(peer.delivered.keys() == ids for peer in self.peers.values())

    @property
    def is_contiguous(self) -> bool:
        return self.positions == list(range(1, len(self.positions) + 1))

    @property
    def is_lawful(self) -> bool:
        """Whether every answer comes after what it answers, at each peer and in the log."""
        orders = [[_id_of(one) for one in self.log], *(list(peer.delivered) for peer in self.peers.values())]
        places = [{id_: number for number, id_ in enumerate(order)} for order in orders]
        return all(
            place[question] < place[answer]
            for place in places
            for answer, question in self.answered.items()
            if answer in place and question in place
        )


def _id_of(delivery: Delivery) -> Id:
    return delivery.sender or "", delivery.epoch, delivery.seq or 0
