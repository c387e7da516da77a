"""A job and its topics in memory, for tests of live reading: batches of any size, states emitted at any time."""

from __future__ import annotations

from random import Random
from typing import Any

from precede.ingest.follower_token import VERSION, FollowerToken
from precede.ingest.live.choice import LiveChoice
from precede.ingest.live.kernel import KernelState, StreamIdentity
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.state_pieces import join, read_key, read_piece
from precede.udfs.rules import RULES
from precede.udfs.state_log import StateLog, StateSettings
from tests.kernel import traffic

TICK = b'{"kind":"tick"}'
STREAM_ID = "ordered-id"
ORDERED_PARTITIONS = 3


def spread(log: traffic.Log, random: Random, partitions: int) -> list[LogRecord]:
    """The records in the partitions of their keys, a few elsewhere, with ticks in between; time goes on."""
    following = [0] * partitions
    now_ms = 1_000
    records: list[LogRecord] = []

    def add(value: bytes | None, key: bytes | None, partition: int) -> None:
        records.append(LogRecord(value, key, partition, following[partition], now_ms))
        following[partition] += 1

    for one in log.records:
        now_ms += 10
        home = 0 if one.key is None else partition_of(one.key, partitions)
        add(one.value, one.key, (home + one.partition) % partitions)
        if random.random() < 0.15:
            now_ms += random.choice([5, 50, 1_000, 100_000])
            add(TICK, None, random.randrange(partitions))
    return records


class Job:
    """Takes the raw log in batches; its topics are lists."""

    def __init__(self, log: traffic.Log, records: list[LogRecord], partitions: int, random: Random) -> None:
        self.stream = StreamIdentity(STREAM_ID, "raw", "raw-id", partitions, log.order, log.limits, "murmur2", RULES)
        self.raw = [[one for one in records if one.partition == at] for at in range(partitions)]
        self.ordered: list[list[LogRecord]] = [[] for _ in range(ORDERED_PARTITIONS)]
        self.token = dict.fromkeys(range(partitions), 0)
        self.horizon = dict.fromkeys(range(partitions), 0)
        self._state: dict[bytes, bytes] = {}
        self._random = random
        self._kernel = kernel_of(self.stream)
        every_ms = random.choice([0, 30, 300, 100_000])
        self._log = StateLog(StateSettings("state-id", STREAM_ID, every_ms, random.choice([300, 512 * 1024])))

    @property
    def is_done(self) -> bool:
        return all(self.token[at] == len(records) for at, records in enumerate(self.raw))

    def step(self) -> None:
        """One batch: some records of each partition; all that it makes is committed at once."""
        kernel = self._kernel
        now: dict[int, int] = {}
        for at, records in enumerate(self.raw):
            for record in records[self.token[at] : self.token[at] + self._random.choice([0, 1, 4, 12])]:
                kernel.receive(*record)
                self._publish()
                self.token[at] = record.offset + 1
                now[at] = record.timestamp_ms
        for key, (partition, offset, now_ms) in kernel.changed.items():
            self._log.changed(key, partition, (offset, now_ms))
        for at, now_ms in now.items():
            self._write(at, now_ms)
        uncovered = self._log.uncovered()
        self.horizon = {at: uncovered.get(at, end) for at, end in self.token.items()}

    def _write(self, partition: int, now_ms: int) -> None:
        for key, value in self._log.take_due(partition, self.token[partition], now_ms, self._state_of, {}):
            group, _ = read_key(key) or (b"", 0)
            self._kernel.note_written(group)
            if value is None:
                del self._state[key]
            else:
                self._state[key] = value

    def _state_of(self, key: bytes) -> bytes:
        blob = self._kernel.state_of(key)
        return b"" if blob is None else blob

    def _publish(self) -> None:
        kernel = self._kernel
        for key, value in zip(kernel.ordered_keys, kernel.ordered, strict=True):
            topic = self.ordered[partition_of(key, ORDERED_PARTITIONS)]
            topic.append(LogRecord(value, key, partition_of(key, ORDERED_PARTITIONS), len(topic), 0))
        kernel.clear()

    def states(self, horizon: dict[int, int]) -> KernelState:
        """What a reader finds in the state topic now."""
        found: dict[bytes, dict[int, Any]] = {}
        for key, value in self._state.items():
            group, number = read_key(key) or (b"", 0)
            found.setdefault(group, {})[number] = read_piece(value)
        stored = {group: join(group, pieces) for group, pieces in found.items()}
        stored = {group: one for group, one in stored.items() if one.blob}
        return KernelState(
            horizon,
            {group: one.blob for group, one in stored.items()},
            {group: one.next for group, one in stored.items()},
        )


def kernel_of(stream: StreamIdentity) -> Holdback:
    return Holdback(
        order=stream.order, limits=stream.limits, partitions=stream.partitions, partitioner=stream.partitioner
    )


def whole(job: Job) -> dict[bytes, list[bytes]]:
    """What the kernel makes of the whole log, by group."""
    kernel = kernel_of(job.stream)
    for records in job.raw:
        for record in records:
            kernel.receive(*record)
    found: dict[bytes, list[bytes]] = {}
    for key, value in zip(kernel.ordered_keys, kernel.ordered, strict=True):
        found.setdefault(key, []).append(value)
    return found


class Reader:
    """A live reader of a job's topics: it reads, hands over and stops where chance says."""

    def __init__(self, job: Job, random: Random, token: FollowerToken | None = None) -> None:
        self.job = job
        self.random = random
        self.reading = LiveChoice(token or FollowerToken(topic="ordered", v=VERSION))
        self.read_ordered = [self.reading.offsets.get(at, 0) for at in range(ORDERED_PARTITIONS)]
        self.read_raw: dict[int, int] = {}
        self.got: list[tuple[bytes, bytes]] = []

    def maybe_step(self) -> None:
        if self.random.random() < 0.5:
            self.job.step()

    def hand_over(self) -> None:
        """Take some of what can be delivered, one by one or all at once."""
        for _ in range(self.random.choice([0, 1, 3, 100])):
            taken = self.reading.take() if self.random.random() < 0.2 else [self.reading.next()]
            self.got += [(one[0], one[1]) for one in taken if one is not None]

    def hand_over_all(self) -> None:
        while taken := self.reading.take():
            self.got += [(one[0], one[1]) for one in taken]

    def read_committed(self, upto: list[int] | None = None) -> None:
        for at, topic in enumerate(self.job.ordered):
            end = min(len(topic), self.read_ordered[at] + self.random.choice([0, 1, 5, 1_000]))
            end = end if upto is None else max(end, upto[at])
            self.reading.take_ordered(topic[self.read_ordered[at] : end])
            self.read_ordered[at] = max(end, self.read_ordered[at])

    def start_live(self, kept: KernelState | None = None) -> None:
        """Horizon, states, token, ordered topic to its end; the job goes on in between."""
        horizon = dict(self.job.horizon)
        self.maybe_step()
        state = self.job.states(horizon) if kept is None else kept
        self.maybe_step()
        published = dict(self.job.token)
        self.maybe_step()
        self.reading.begin(self.job.stream, state, published)
        ends = [len(topic) for topic in self.job.ordered]
        self.maybe_step()
        self.hand_over()
        self.read_committed(ends)
        self.hand_over_all()
        self.reading.go_live()
        self.read_raw = dict(state.starts)

    def read_live(self) -> None:
        if not self.reading.has_outputs:
            at = self.random.choice(list(self.read_raw))
            start = self.read_raw[at]
            records = self.job.raw[at][start : start + self.random.choice([1, 2, 20])]
            self.reading.take_raw(records)
            self.read_raw[at] = start + len(records)
        if self.random.random() < 0.3:
            self.read_committed()


def usable(kept: KernelState, token: FollowerToken, job: Job) -> bool:
    """Whether a reader with this token may begin with what another has kept."""
    covered = {at: place.offset for at, place in token.released.items()}
    return all(start <= max(covered.get(at, 0), job.token[at]) for at, start in kept.starts.items())


__all__ = ["Job", "Limits", "Reader", "spread", "usable", "whole"]
