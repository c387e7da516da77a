"""What reading a stream begins with: progress, owner, topics by their ids, states, and what a kernel takes of them.

The horizon is read first: each state that is read after it covers what lies below. A kernel begins at the horizon, and
passes over, for each group, what its state has. Who publishes or hands over reads the token last: whatever the
states cover is published by then.

All of them say the same sentences; only what to do differs.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from precede.ingest.gc_paused import gc_paused
from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.live.kernel import KernelState
from precede.ingest.progress import Owner, Progress, read_progress
from precede.ingest.state_topic import read_state
from precede.udfs.errors import AccessDenied, Refused, Unreachable
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import partition_of
from precede.udfs.records.state_pieces import StoredState

States = dict[int, dict[bytes, StoredState]]
"""By raw partition and group, what the state topic has."""


class StreamStart:
    """Reads what there is of one stream; `remedy` is what to do where it cannot be read."""

    def __init__(self, bootstrap: Address | str, ordered_topic: str, progress_topic: str, *, remedy: str) -> None:
        self.bootstrap = bootstrap
        self.ordered_topic = ordered_topic
        self.progress_topic = progress_topic
        self.remedy = remedy

    def progress(self, *, settled: bool) -> Progress | None:
        """How far the stream is; None where no topic says it. With `settled` this waits for open transactions."""
        topic = self._topic(self.progress_topic)
        with self._told_if_denied(self.progress_topic):
            return None if topic is None else read_progress(self.bootstrap, topic, self.ordered_topic, settled=settled)

    def check_owner(self, owner: Owner) -> Topic:
        """The raw topic, if it and the order are as the owner says."""
        if owner.order not in ORDERS:
            raise Refused(
                f"The job orders {self.ordered_topic} by {owner.order}, which this program does not know: register "
                f"that order (precede.register), or {self.remedy}."
            )
        return self.same_topic(owner.raw_topic, owner.raw_topic_id)

    def same_topic(self, name: str, id_: str) -> Topic:
        """A topic that the job uses. Raises Refused if it was deleted, or deleted and made again."""
        found = self._topic(name)
        if found is None or found.id != id_:
            raise Refused(
                f"The topic {name}, which the job of {self.ordered_topic} uses, has been deleted"
                f"{'' if found is None else ', and another one has its name'}: {self.remedy}."
            )
        return found

    def raw_ends(self, owner: Owner) -> list[tuple[int, int]]:
        """The first and the next offset of each raw partition."""
        with self._told_if_denied(owner.raw_topic):
            return reading.ends(self.bootstrap, owner.raw_topic, owner.partitions, committed=False)

    def states(
        self, owner: Owner, partitions: list[int], groups: Collection[bytes] | None, *, waits_s: float | None = None
    ) -> States:
        """What the state topic has of these partitions, and of these groups.

        An open transaction is waited for, with `waits_s` no longer than that: what was committed before is all then.
        """
        topic = self.same_topic(owner.state_topic, owner.state_topic_id)
        if topic.partitions <= max(partitions):
            raise Refused(
                f"The state topic {topic.name} has {topic.partitions} partitions, and the raw topic {owner.partitions}:"
                f" there must be as many: {self.remedy}."
            )
        one = next(iter(groups)) if groups is not None and len(groups) == 1 else None
        where = (self.bootstrap, topic.name, partitions)
        with gc_paused():  # the pieces hold no cycles
            try:
                quiet_s = reading.REQUEST_S if waits_s is None else waits_s
                return read_state(*where, stream=owner.ordered_topic_id, group=one, quiet_s=quiet_s)
            except Unreachable:
                if waits_s is None:
                    raise
                return read_state(*where, stream=owner.ordered_topic_id, group=one, settled=False)

    def check_reaches_back(self, owner: Owner, starts: Mapping[int, int], ends: Mapping[int, tuple[int, int]]) -> None:
        """Raise Refused if the raw topic has lost what comes behind the states."""
        for at, start in starts.items():
            if start < ends[at][0]:
                raise Refused(
                    f"Partition {at} of the raw topic {owner.raw_topic} begins at offset {ends[at][0]}, and the state "
                    f"topic reaches only to {start}: what lies between is deleted, so what is held is not known. Keep "
                    f"the raw topic longer; for now, {self.remedy}."
                )

    def _topic(self, name: str) -> Topic | None:
        with self._told_if_denied(name):
            found = describe(self.bootstrap, [name]).get(name)
            if found is None:
                clients.check_visible(self.bootstrap, name)
            return found

    @contextmanager
    def _told_if_denied(self, topic: str) -> Iterator[None]:
        """Where an access rule is missing, say which, rather than that the topic cannot be read now."""
        try:
            yield
        except Unreachable as error:
            why = reading.why_unreadable(self.bootstrap, topic, error)
            raise (why if isinstance(why, AccessDenied) else error) from error


def raw_partitions_of(groups: Collection[bytes] | None, owner: Owner) -> list[int]:
    """The raw partitions in which these groups lie; all without groups."""
    if groups is None:
        return list(range(owner.partitions))
    return sorted({partition_of(key, owner.partitions, owner.partitioner) for key in groups})


def kernel_state(states: States, starts: Mapping[int, int], groups: Collection[bytes] | None = None) -> KernelState:
    """What a kernel that begins at these offsets takes of the states."""
    found = KernelState(dict(starts), {}, {})
    for at, stored in states.items():
        for key, state in stored.items():
            if groups is None or key in groups:
                found.groups[key] = state.blob
                if state.next > starts[at]:
                    found.covered[key] = state.next
    return found
