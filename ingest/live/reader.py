"""Live reading over Kafka: consumers read the raw topic and the ordered topic, and `poll` hands over deliveries.

It is driven by its caller and needs no thread. It begins with what is committed. At the end of that it reads horizon,
states and token (a call of `poll` may take some seconds for it), and from there on it delivers what its kernel makes.
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from precede.ingest.follower_token import VERSION, FollowerToken
from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import TopicReader
from precede.ingest.kafka.topics import describe
from precede.ingest.live import kept_state
from precede.ingest.live.choice import LiveChoice
from precede.ingest.live.consumer import Batch, LiveConsumer
from precede.ingest.live.kernel import Output, StreamIdentity
from precede.ingest.live.start import LiveStart, NotYet, OtherRules, ReadingPlace, complete_token, find_start
from precede.ingest.progress import NewerFormat, decode_progress
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.rules import RULES

AGAIN_S = 1.0
"""How long to wait before live reading is tried again."""
TELL_AFTER_S = 5.0
"""After this time a person is told, once, why live reading has not begun."""
SHORTEST_S = 0.001
"""The client does not wait for less than this."""
NEAR_RECORDS = 10_000
"""So near to the end of the ordered topic, live reading begins."""
KEEP_EVERY_S = 300.0
"""How often the state is kept in a file while records come."""


class _Phase(Enum):
    LOOKING = 0
    """The ordered topic does not exist yet."""
    COMMITTED = 1
    BEGINNING = 2
    """The kernel has its state; the ordered topic is read up to the end it had then."""
    LIVE = 3


class LiveReader:
    """Reads all groups of a stream, or some, live."""

    def __init__(
        self,
        bootstrap: Address | str,
        *,
        ordered_topic: str,
        progress_topic: str,
        groups: Collection[str] | None = None,
        start: Literal["beginning", "end"] = "beginning",
        token: FollowerToken | None = None,
        state_file: Path | None = None,
        request_s: float = reading.REQUEST_S,
        passes_over_cut: bool = False,
    ) -> None:
        """With `passes_over_cut`, a token of all groups is taken where what comes next is deleted."""
        self._passes_over_cut = passes_over_cut
        self._bootstrap = bootstrap
        self._ordered_topic = ordered_topic
        self._progress_topic = progress_topic
        self._groups = None if groups is None else frozenset(group.encode() for group in groups)
        self._start = start
        self._state_file = state_file
        self._request_s = request_s
        first = FollowerToken(topic=ordered_topic, v=VERSION) if token is None else token
        first.check_topic(ordered_topic)
        self._reading = LiveChoice(first, groups=self._groups)
        with ExitStack() as opened:  # where no client can be made, the file is free again
            opened.enter_context(kept_state.only_reader(state_file))
            self._consumer = LiveConsumer(bootstrap, ordered_topic, progress_topic)
            self._file_lock = opened.pop_all()
        self._phase = _Phase.LOOKING
        self._place: ReadingPlace | None = None
        self._stream: StreamIdentity | None = None
        self._marks: dict[int, int] = {}
        """The ordered topic is read up to here before the next step."""
        self._behind: dict[int, int] = {}
        """The raw partitions in which the kernel has not reached the end that they had at the start."""
        self._may_go_live = True
        self._try_at = 0.0
        self._tell_at = 0.0
        self._keep_at = monotonic() + KEEP_EVERY_S
        self._watch: TopicWatch | None = None
        self.lacks_beginning = False
        """Whether the ordered topic has lost records, as it was found."""
        self._was_interrupted = False
        """Whether the last step did not come to its end: a signal, or an error."""

    # ── what comes out ────────────────────────────────────────────────────────────────────────────────────────────

    def poll(self, timeout_s: float) -> Output | None:
        """Deliver one record; None if none came in this time. Raises Difference once for each group that differs."""
        output: Output | None = self._wait(self._take_one, timeout_s)
        return output

    def poll_all(self, timeout_s: float) -> list[Output]:
        """Deliver what can be delivered now; waits up to this time for the first record."""
        outputs: list[Output] | None = self._wait(self._take_all, timeout_s)
        return outputs or []

    def _take_one(self) -> Output | None:
        return self._reading.next()

    def _take_all(self) -> list[Output] | None:
        return self._reading.take() or None

    def _wait(self, take: Callable[[], Any], timeout_s: float) -> Any:
        deadline = monotonic() + timeout_s
        is_late = False
        while True:
            taken = take()
            if taken is not None or is_late:
                return taken
            left_s = deadline - monotonic()
            is_late = left_s < SHORTEST_S
            self._advance(max(0.0, left_s))

    @property
    def token(self) -> FollowerToken:
        """How far it was delivered: what this or a committed reader goes on from."""
        return self._reading.token

    @property
    def has_begun(self) -> bool:
        """Whether the ordered topic is there."""
        return self._phase is not _Phase.LOOKING

    @property
    def is_live(self) -> bool:
        """Whether deliveries come from the kernel."""
        return self._phase is _Phase.LIVE

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        if self._reading.has_outputs or self._phase in (_Phase.LOOKING, _Phase.BEGINNING):
            return False
        if self._phase is _Phase.LIVE:
            return self._consumer.raw_at_end
        return not self._may_go_live and self._consumer.ordered_at_end

    @property
    def is_catching_up(self) -> bool:
        """Whether live reading is about to begin, or the kernel has not reached the end that there was then."""
        if self._phase is _Phase.COMMITTED:
            return self._may_go_live and self._try_at == 0.0
        return self._phase is _Phase.BEGINNING or bool(self._behind)

    @property
    def is_compared(self) -> bool:
        """Whether the ordered topic has shown everything that was delivered live."""
        return self._reading.is_compared

    def close(self) -> None:
        """Close the connection to the broker; the state is kept where a file was named."""
        with self._file_lock:
            try:
                self._keep()
            finally:
                self._consumer.close()

    # ── step by step ──────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, timeout_s: float) -> None:
        """Do what is next."""
        try:
            if self._phase is _Phase.LOOKING:
                self._look(timeout_s)
                return
            if self._phase is _Phase.COMMITTED and self._should_begin():
                self._begin()
                return
            if self._phase is _Phase.BEGINNING and self._is_marked():
                self._go_live()
            if self._phase is _Phase.LIVE and not self._reading.is_live:
                self._end_live()
            if self._watch is not None:
                self._watch.check()
            if monotonic() >= self._keep_at:
                self._keep()
            self._read(timeout_s)
        except KafkaException as error:
            raise clients.unreadable(self._bootstrap, self._ordered_topic, error.args[0]) from error

    def _look(self, timeout_s: float) -> None:
        """Find the ordered topic, and begin to read what is committed."""
        reader = TopicReader(self._bootstrap, self._request_s)
        try:
            found = reader.all_ends(self._ordered_topic)
            ordered = describe(self._bootstrap, [self._ordered_topic]).get(self._ordered_topic) if found else None
        finally:
            reader.close()
        if ordered is None:
            self._start = "beginning"  # whatever comes into it is new
            sleep(min(timeout_s, AGAIN_S))
            return
        self.lacks_beginning = any(first for first, _ in found.values())
        self._place = ReadingPlace(self._bootstrap, ordered, self._progress_topic, self._groups)
        token = complete_token(
            self._reading.token, self._place, found, at_end=self._start == "end", passes_over_cut=self._passes_over_cut
        )
        self._reading = LiveChoice(token, groups=self._groups)
        self._marks = {at: found[at][1] for at in token.offsets}
        self._phase = _Phase.COMMITTED
        self._consumer.read_ordered(token.offsets)

    def _should_begin(self) -> bool:
        """Whether what is committed is delivered nearly up to its end, and live reading may be tried."""
        if not self._may_go_live or monotonic() < self._try_at or not self._is_marked():
            return False
        before, self._marks = self._marks, self._ordered_ends(committed=True)
        return sum(self._marks.values()) - sum(before.values()) <= NEAR_RECORDS

    def _ordered_ends(self, *, committed: bool) -> dict[int, int]:
        """The ends of the ordered topic; without `committed`, also of what is in open transactions."""
        assert self._place is not None
        ordered = self._place.ordered
        ends = reading.ends(self._bootstrap, ordered.name, ordered.partitions, committed=committed)
        return {at: ends[at][1] for at in self._consumer.ordered_offsets}

    def _begin(self) -> None:
        """Read what the kernel begins with."""
        assert self._place is not None
        try:
            found = find_start(self._place, self._reading.token.released, self._state_file)
        except Unreachable as error:  # a transaction that is open hides what is needed, or the broker is away
            found = NotYet(str(error))
        if isinstance(found, LiveStart):
            self._stream = found.stream
            self._reading.begin(found.stream, found.state, found.published)
            self._behind = dict(found.raw_ends)
            self._marks = self._ordered_ends(committed=False)
            self._phase = _Phase.BEGINNING
            return
        self._try_at = monotonic() + AGAIN_S
        if isinstance(found, OtherRules):
            self._may_go_live = False
            warnings.warn(found.reason, stacklevel=2)
        elif self._tell_at == 0.0:
            self._tell_at = monotonic() + TELL_AFTER_S
        elif monotonic() >= self._tell_at:
            self._tell_at = math.inf
            why = found.reason.rstrip(".")
            warnings.warn(f"Live reading has not begun: {why}. Until it does, what is committed is read.", stacklevel=2)

    def _is_marked(self) -> bool:
        """Whether the ordered topic was read up to the end that it had when this was last asked."""
        offsets = self._consumer.ordered_offsets
        return all(offsets[at] >= mark for at, mark in self._marks.items())

    def _go_live(self) -> None:
        """From here on the kernel delivers; the ordered topic rests until the kernel has reached the end."""
        assert self._stream is not None
        self._reading.go_live()
        self._phase = _Phase.LIVE
        self._assign(self._consumer.ordered_offsets)
        ids = {self._stream.raw_topic: self._stream.raw_topic_id, self._ordered_topic: self._stream.ordered_topic_id}
        self._watch = TopicWatch(self._bootstrap, ids)

    def _end_live(self) -> None:
        """From here on everything comes from the ordered topic."""
        self._phase, self._may_go_live, self._watch = _Phase.COMMITTED, False, None
        self._assign(self._consumer.ordered_offsets)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, timeout_s: float) -> None:
        """Hand over what has come; waits up to this time for the first of it."""
        if self._was_interrupted:  # what the consumer gave then may not have been handed over
            self._assign(self._reading.ordered_offsets)
        self._was_interrupted = True
        batch = self._consumer.read(timeout_s)
        if batch is not None:
            self._hand_over(batch)
        self._was_interrupted = False

    def _assign(self, ordered_offsets: Mapping[int, int]) -> None:
        """Read on from here: the ordered topic, and where the kernel runs the raw topic and the owners, too."""
        if self._phase is _Phase.LIVE and self._stream is not None:
            self._consumer.read_all(ordered_offsets, self._stream.raw_topic, self._reading.raw_offsets)
        else:
            self._consumer.read_ordered(ordered_offsets)

    def _hand_over(self, batch: Batch) -> None:
        for key, value in batch.progress:
            self._read_owner(key, value)
        if batch.raw:
            self._reading.take_raw(batch.raw)
        for partition, offset in batch.raw_ends.items():
            self._reading.reach(partition, offset)
        self._reading.take_ordered(batch.ordered)
        if self._phase is _Phase.LIVE:
            self._pause()

    def _read_owner(self, key: bytes | None, value: bytes | None) -> None:
        """A record of the progress topic: live reading ends where another owner makes other bytes."""
        if self._stream is None or self._reading.is_ending:
            return
        try:
            owner = decode_progress([(key, value)], self._progress_topic, self._ordered_topic).any_owner
        except NewerFormat as error:
            self._end_for_another_owner(str(error))
            return
        if owner is not None and (owner.rules, owner.raw_topic_id) != (RULES, self._stream.raw_topic_id):
            self._end_for_another_owner(
                f"A job with other rules has taken over {self._ordered_topic} (version {owner.rules}; this release "
                f"knows {RULES})."
            )

    def _end_for_another_owner(self, why: str) -> None:
        warnings.warn(f"{why} Live reading ends, and what is committed is read instead.", stacklevel=2)
        self._reading.end_live()

    def _pause(self) -> None:
        """Read the ordered topic only when the kernel has caught up, and only so far ahead."""
        if self._behind:
            reached = self._reading.raw_offsets
            self._behind = {at: end for at, end in self._behind.items() if reached[at] < end}
        if not self._behind:
            full = {at for at in self._consumer.ordered_offsets if not self._reading.wants_ordered(at)}
            self._consumer.pause_ordered(full)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self) -> None:
        """Keep the kernel's state in the file."""
        self._keep_at = monotonic() + KEEP_EVERY_S
        state = None if self._state_file is None else self._reading.state()
        if state is not None and self._state_file is not None and self._stream is not None:
            kept_state.write_state(self._state_file, self._stream, self._groups, state)


EVERY_S = 10.0
REQUEST_S = 10.0


class TopicWatch:
    """Asks without waiting for the answer, so that no delivery is late."""

    def __init__(self, bootstrap: Address | str, ids: dict[str, str]) -> None:
        """`ids` are the topics by name, each with the id that it should have."""
        self._admin = clients.admin(bootstrap)
        self._ids = ids
        self._asked: dict[str, Future[Any]] = {}
        self._ask_at = monotonic() + EVERY_S

    def check(self) -> None:
        """Raise Refused if a topic is not the one it was."""
        for name, future in list(self._asked.items()):
            if future.done():
                del self._asked[name]
                self._check(name, future)
        if not self._asked and monotonic() >= self._ask_at:
            self._ask_at = monotonic() + EVERY_S
            self._asked = self._admin.describe_topics(TopicCollection(list(self._ids)), request_timeout=REQUEST_S)

    def _check(self, name: str, future: "Future[Any]") -> None:
        try:
            found = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                return  # the broker is away; it is asked again
            found = ""
        if found != self._ids[name]:
            raise Refused(
                f"The topic {name} has been deleted{', and another one has its name' if found else ''}: live reading "
                "ends. Start again when the job runs with new topics."
            )
