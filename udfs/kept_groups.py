"""The groups of a kernel, as what feeds and keeps it needs them: found by key, looked at, put away, written elsewhere.

A group that records reach is decoded; all others are kept as blobs, and each is decoded when it is first touched. For a
caller that writes the states of groups, this remembers which ones changed since they were written.
"""

from collections.abc import Container, Iterator, Mapping, MutableMapping

from precede.udfs.analysis.inspection import oldest_and_gaps
from precede.udfs.engine.group import Group, Shared
from precede.udfs.engine.outbox import Outbox, TypedOutbox
from precede.udfs.engine.snapshot import outline, restore, snapshot
from precede.udfs.engine.state import NO_OPTIONS
from precede.udfs.limits import Limits
from precede.udfs.orders import Order
from precede.udfs.partitioner import check_partitioner, partition_of
from precede.udfs.ticks import tick as passing_time
from precede.udfs.ticks.patience import Patience


class KeptGroups:
    """The groups, decoded or not; `Holdback` hands them their records."""

    def __init__(
        self,
        order: str,
        limits: Limits,
        patience: Patience,
        partitions: int | None,
        partitioner: str,
        blobs: MutableMapping[bytes, bytes],
        orders: Mapping[str, type[Order]],
        outbox: Outbox,
    ) -> None:
        self.order = order
        self.limits = limits
        self.patience = patience
        self.partitions = partitions
        self.partitioner = check_partitioner(partitioner)
        self.outbox = outbox
        self.shared = Shared(limits, orders, outbox)
        self._groups: dict[str, Group] = {}
        """The groups that were touched, by name, because a record brings the name."""
        self._resting: dict[str, Group] = {}
        """Decoded groups that were not touched since the last `rest`."""
        self._blobs = blobs
        """What was loaded; of a group that was touched since, the one in `_groups` counts."""
        self._covered: dict[bytes, int] = {}
        """Groups whose state reaches further than the records that come: those below this offset are passed over."""
        self.changed: dict[bytes, tuple[int, int, int]] = {}
        """The groups reached since `note_written`: partition, offset and time of the first record that reached it."""
        self._deadlines: dict[bytes, int] | None = None
        """When time may matter to the groups that are not decoded; looked up when the first tick comes."""

    # ── one group ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _group(self, key: bytes, partition: int) -> Group:
        """The group of this key: known, to be decoded, or new."""
        name = key.decode()
        group = self._groups.get(name)
        if group is not None and not group.begun and self.partitions is None:
            del self._groups[name]  # nothing of it was accepted, so it does not live anywhere yet
            group = None
        if group is None and name in self._resting:
            group = self._groups[name] = self._resting.pop(name)
        if group is None:
            blob = self._blobs.get(key)
            if blob is not None:
                group = restore(key, blob, self.shared)
            else:
                if self.partitions is not None:
                    partition = partition_of(key, self.partitions, self.partitioner)
                group = Group(key, order=self.order, partition=partition, shared=self.shared)
                group.plain_partition = None  # this record may be refused, and the first accepted one is a change
            self._groups[name] = group
        return group

    def decoded_group(self, key: bytes) -> Group | None:
        """The group, to be looked at; None where it is put away, or new."""
        name = key.decode()
        return self._groups.get(name) or self._resting.get(name)

    def _is_covered(self, key: bytes, offset: int) -> bool:
        """Whether the group's state has everything up to this offset of its partition already."""
        covered = self._covered.get(key)
        if covered is None:
            return False
        if offset < covered:
            return True
        del self._covered[key]
        return False

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def group(self, name: str) -> Group | None:
        """One group, to be looked at and not touched; None where nothing of it was accepted.

        One that is put away stays so: this decodes a copy. Who looks often calls `look`.
        """
        return next((group for group in self._look(name) if group.begun), None)

    def look(self, name: str) -> Group | None:
        """One group, to be looked at often: it is decoded from here on; None where nothing of it has come."""
        found = self._groups.get(name) or self._resting.get(name)
        if found is not None:
            return found
        key = name.encode()
        return self._group(key, 0) if key in self._blobs else None

    def open(self, name: str) -> Group:
        """One group, new where nothing of it has come; for a caller without a log, which also changes groups itself."""
        return self._group(name.encode(), 0)

    def names(self) -> list[str]:
        """The groups of which anything was accepted, in order."""
        return [name for name in [key.decode() for key in self._keys()] if self.has_begun(name)]

    def has_begun(self, name: str) -> bool:
        """Whether anything of a group was accepted; it is not decoded for that."""
        found = self._groups.get(name) or self._resting.get(name)
        return name.encode() in self._blobs if found is None else found.begun

    def is_created(self, name: str) -> bool:
        """Whether a `create` record began a group; it is not decoded for that."""
        found = self._groups.get(name) or self._resting.get(name)
        if found is not None:
            return found.options is not NO_OPTIONS
        key = name.encode()
        return key in self._blobs and outline(key, self._blobs[key]).options is not None

    def is_covered(self, key: bytes, offset: int) -> bool:
        """Whether the state that was loaded has this record already."""
        return bool(self._covered) and offset < self._covered.get(key, 0)

    def homes(self) -> Iterator[tuple[bytes, int]]:
        """The key of each group, and the partition where it lives."""
        for group in self._look(None):
            if group.begun:
                yield group.key, group.partition

    def _keys(self) -> list[bytes]:
        """The keys of all groups, in order."""
        return sorted({group.key for group in self._decoded()} | self._blobs.keys())

    def _decoded(self) -> Iterator[Group]:
        yield from self._groups.values()
        yield from self._resting.values()

    def _look(self, group: str | None) -> Iterator[Group]:
        """One group or all, to be looked at and not touched."""
        for key in self._keys() if group is None else [group.encode()]:
            known = self.decoded_group(key)
            if known is None and key in self._blobs:
                known = restore(key, self._blobs[key], Shared(self.limits, self.shared.orders, TypedOutbox()))
            if known is not None:
                yield known

    def waiting_of(self, key: bytes) -> tuple[int, int, int] | None:
        """When the oldest held message arrived, how many gaps there are, and how many are held; None if none is."""
        for group in self._look(key.decode()):
            if group.held:
                return (*oldest_and_gaps(group), len(group.held))
        return None

    def note_waiting(self, waiting: dict[bytes, tuple[int, int, int]]) -> None:
        """Update, for the groups that were touched, what they wait for: see `waiting_of`."""
        for group in self._decoded():
            if group.held:
                waiting[group.key] = (*oldest_and_gaps(group), len(group.held))
            else:
                waiting.pop(group.key, None)

    # ── what changed ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _note_change(self, group: Group, offset: int, now_ms: int) -> None:
        """The first change since the state was written; what follows in this group is not looked at any more."""
        self.changed.setdefault(group.key, (group.partition, offset, now_ms))
        group.take_at_once()

    def note_written(self, key: bytes) -> None:
        """The state of this group is kept elsewhere as it is now: its next record counts as a change again."""
        self.changed.pop(key, None)
        group = self.decoded_group(key)
        if group is not None:
            group.plain_partition = None

    def forget_changes(self) -> None:
        """For callers that do not write state: do not remember more of what changed."""
        self.changed.clear()

    def take_changes(self) -> dict[bytes, tuple[int, int, int]]:
        """What `changed` has of groups with a state; of the others, the next record is a change again."""
        changed, self.changed = self.changed, {}
        for key in list(changed):
            group = self.decoded_group(key)
            if group is not None and not group.begun:
                del changed[key]
                group.plain_partition = None
        return changed

    def state_of(self, key: bytes) -> bytes | None:
        """The state of one group; None where nothing of it was accepted."""
        group = self.decoded_group(key)
        if group is None:
            return self._blobs.get(key)
        return self._snapshot(group) if group.begun else None

    def _snapshot(self, group: Group) -> bytes:
        return snapshot(group, passing_time.deadline_ms(group, self.patience))

    def covered(self) -> dict[bytes, int]:
        """The groups that still pass over records, and up to which offset."""
        return self._covered.copy()

    # ── putting away ──────────────────────────────────────────────────────────────────────────────────────────────────

    def rest(self, unwritten: Container[bytes] | None = None) -> int:
        """Put away, as blobs, the groups that no record reached since the last call but one; how many they are.

        Called now and then, this bounds how many groups are decoded at the same time. With `unwritten` only the groups
        that are not in it are put away, and `blobs` has their states as they are now.
        """
        put_away = 0
        stay: dict[str, Group] = {}
        for name, group in self._resting.items():
            if unwritten is not None and group.key in unwritten:
                stay[name] = group
                continue
            self.shared.holding.discard(group)
            if group.begun:
                due_ms = passing_time.deadline_ms(group, self.patience)
                if unwritten is None:
                    self._blobs[group.key] = snapshot(group, due_ms)
                if due_ms is not None and self._deadlines is not None:
                    self._deadlines[group.key] = due_ms
                put_away += 1
            group.close()
        self._resting, self._groups = stay | self._groups, {}
        return put_away

    @property
    def decoded(self) -> int:
        """How many groups are decoded now."""
        return len(self._groups) + len(self._resting)
