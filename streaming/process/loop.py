"""The order query in one thread: read, decide, publish, again and again.

A transaction is begun with the first record and committed as soon as there is nothing more to read, but not sooner than
`commit_ms` after the one before. What the kernel gives is produced while it works on, so the client sends in the
background what is in the transaction already. On a backlog transactions are larger, within bounds.

After an error it is not known what is committed, and the kernel may be ahead of it. Then the loop ends, and the next
one starts as a new process would: from the cache or the state topic, and the log from the horizon on.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic
from precede.streaming import faults
from precede.streaming.job import starting_point
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.order.packed_rows import PackedRow
from precede.streaming.order.sink import Sink
from precede.streaming.process.cache import Cache, CacheError, CacheSource, StateTopic, remove_cache
from precede.streaming.process.groups import ProcessGroups
from precede.streaming.process.raw_reader import TAKE_MAX, RawReader
from precede.streaming.settings import Settings
from precede.udfs.limits import Patience
from precede.udfs.steps import Row

POLL_S = 0.2
RECORDS_MAX = 50_000
BYTES_MAX = 32 * 1024 * 1024
BUSY_S = 1.0
"""A transaction is committed after so many records, bytes or seconds, far below the time the broker allows."""
STEADY_RECORDS = 32
STEADY_PAUSES = 2
"""After a transaction with more records than this, the next one waits so many times as long: a commit costs the
processor as much as hundreds of records, and a steady stream needs no more of them."""
MARK_S = 1.0
"""How often the cache notes up to where it is a copy of the state topic."""
COLLECT_S = 10.0
OBJECTS_MAX = 20_000
"""How often cycles are looked for, among so many new objects at most: nothing that the loop makes is one."""


class OrderLoop:
    """One run of the loop; it looks like a query of Spark to the job."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        raw: Topic,
        state: Topic,
        patience: Patience,
        *,
        say: Callable[[str], object],
        observe: Callable[[str, str, float], object],
    ) -> None:
        """The sink must be open."""
        self.failure: Exception | None = None
        self._looked_at = 0.0
        self._settings = settings
        self._sink = sink
        self._raw = raw
        self._patience = patience
        self._say = say
        self._observe = observe
        self._state = StateTopic(
            settings.bootstrap,
            state.name,
            CacheSource(sink.state.topic, sink.state.stream, tuple(sink.ownership.partitions)),
            check_stop=self._check_stop,
        )
        self._stopping = threading.Event()
        self._due = 0.0
        self._mark_at = self._collect_at = time.monotonic()
        self._is_marked = True
        self._unproved_ends: dict[int, int] = {}
        """Ends of the state topic that become a mark with the next commit."""
        self._thread = threading.Thread(target=self._run, name="order", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def end(self, seconds: float) -> None:
        """End it between two transactions, and wait for that, at most this time."""
        self._stopping.set()
        self._thread.join(seconds)

    def stop(self) -> None:
        """The job has waited for its end as long as it may."""
        self.end(0.0)

    def note_progress(self, keeper: QueryKeeper) -> None:
        """It makes progress when it looks for records, whether or not there are any."""
        keeper.progress_at = self._looked_at
        keeper.batches = self._sink.counts.batches
        keeper.batch = keeper.batches - 1
        if self._looked_at:
            keeper.works()

    # ── in its thread ─────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        gc.disable()
        try:
            self._order()
        except Exception as error:  # noqa: BLE001 (the job raises it, or starts the loop again)
            self.failure = error
        finally:
            gc.enable()

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise InterruptedError("The job is stopping.")

    def _order(self) -> None:
        folder = Path(self._settings.cache)
        cache = self._state.copy(folder, self._sink.token, self._say)
        try:
            self._order_with(cache)
        except CacheError as error:
            cache.abandon()
            remove_cache(folder)
            self._say(f"The cache {folder} cannot be used any more ({error}): it is made again.")
            raise
        except BaseException:
            cache.abandon()
            raise
        cache.close()

    def _order_with(self, cache: Cache) -> None:
        settings, sink = self._settings, self._sink
        horizon = sink.coverage.published
        owned = sink.ownership.partitions
        ends = reading.ends_of(settings.bootstrap, self._raw.name, owned)
        position = starting_point.fresh(settings, sink.token, horizon, ends)
        starting_point.find(settings, position)  # once more, now that no other job can change it
        groups = ProcessGroups(
            cache,
            sink.state,
            horizon,
            sink.token,
            order=settings.order,
            limits=settings.limits,
            patience=self._patience,
            partitions=self._raw.partitions,
            partitioner=settings.partitioner,
        )
        offsets = {at: horizon.get(at, ends[at][0]) for at in owned}
        reader = RawReader(
            settings.bootstrap, self._raw.name, offsets, on_error=sink.notices.client_error, until_end=settings.once
        )
        groups.show_in(sink.counts)
        try:
            while not self._stopping.is_set() and not (settings.once and reader.has_ended):
                rows = reader.take(POLL_S)
                self._looked_at = time.monotonic()
                if rows:
                    self._publish(self._transaction(rows, reader, groups), groups, cache)
                self._keep()
            if settings.once and not self._stopping.is_set():
                self._write_all(groups, cache)
        finally:
            reader.close()
            groups.close()
            self._state.close()

    def _transaction(self, rows: list[Row], reader: RawReader, groups: ProcessGroups) -> Iterator[PackedRow]:
        """What comes out of these records and those that come until the transaction is due."""
        latest = time.monotonic() + BUSY_S
        records = size = 0
        while rows:
            yield from groups.step(rows)
            records += len(rows)
            size += sum([len(row[3]) for row in rows if row[3] is not None])
            now = time.monotonic()
            has_more = len(rows) >= TAKE_MAX
            if now >= latest or records >= RECORDS_MAX or size >= BYTES_MAX or self._stopping.is_set():
                break
            if not has_more:
                if now >= self._due:
                    break
                self._stopping.wait(self._due - now)  # what comes meanwhile is taken at once, not record by record
            rows = reader.take(0.0)
        pause_ms = self._settings.commit_ms * (STEADY_PAUSES if records > STEADY_RECORDS else 1)
        self._due = time.monotonic() + pause_ms / 1000
        yield from groups.finish()

    def _publish(self, rows: Iterator[PackedRow], groups: ProcessGroups, cache: Cache) -> None:
        has_committed = self._sink.publish_step(rows)
        groups.committed()
        if has_committed:
            self._mark(cache)
            self._is_marked = False
        for phase, seconds in self._sink.counts.seconds.items():
            self._observe("order", phase, seconds)

    def _write_all(self, groups: ProcessGroups, cache: Cache) -> None:
        """Write all states that changed; then the topic has everything up to the token."""
        while groups.unwritten:
            self._publish(groups.finish(writes_all=True), groups, cache)
        self._sink.publish_state(iter(()), is_last=True)
        self._look_at_ends()
        self._sink.ownership.check_not_taken_over(for_s=0.0)  # no commit follows that would prove it
        self._mark(cache)

    def _keep(self) -> None:
        """Between two transactions: what need not be done in each."""
        now = time.monotonic()
        if not self._is_marked and now - self._mark_at >= MARK_S:
            self._look_at_ends()
            self._mark_at, self._is_marked = time.monotonic(), True
        if now - self._collect_at >= COLLECT_S:
            self._collect_at = now
            if gc.get_count()[0] <= OBJECTS_MAX:
                gc.collect(1)
            gc.freeze()  # what is left is looked at no more

    def _look_at_ends(self) -> None:
        """Nothing of this job is in an open transaction now, so the cache has all that it has written.

        But another job may have taken over and written more: only a commit after this proves that none had.
        """
        faults.reach("cache.mark")
        self._unproved_ends = self._state.ends()

    def _mark(self, cache: Cache) -> None:
        """Everything below these ends is proved to be from this job, or was read at its start."""
        ends, self._unproved_ends = self._unproved_ends, {}
        if ends:
            cache.note_positions(ends)
