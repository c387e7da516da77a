"""Where a check reads: files as `precede replay` reads and writes them, the topics of a stream, or its Delta tables.

Raw records drive: an ordered record is judged as soon as the raw record that released it was read.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from precede.check.judge import Check
from precede.check.records import (
    ERASED,
    OrderedRead,
    RawRecord,
    UnreadableError,
    read_letter,
    read_ordered,
    read_raw,
)
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.records.messages import LogRecord, Record

if TYPE_CHECKING:
    from precede.ingest.follower_token import FollowerToken
    from precede.ingest.progress import Owner
    from precede.streaming.settings import Settings

Tell = Callable[[str, float], None]
"""Told what is being read, and which part of it has been: 0 to 1."""

TELL_EVERY = 20_000
SETTLE_LAG = 100_000
"""Ordered records of different groups may be interleaved in any way, but not over so many raw records."""
BREAKS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
"""What a line cannot hold, `precede replay` writes as a space."""


class CannotJudgeError(Refused):
    """What is needed for a verdict is not there."""


# ── in step ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class InStep:
    """Passes ordered records to a check once the raw log was read up to what released them."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self.reached: dict[int, int] = {}
        """Of each raw partition, the last offset that was read."""
        self._waiting: dict[int, deque[OrderedRead]] = {}
        self.waiting = 0

    def raw(self, one: RawRecord) -> None:
        self._check.take_raw(one)
        partition, offset = one.partition, one.offset
        self.reached[partition] = offset
        waiting = self._waiting.get(partition)
        while waiting and waiting[0].released_offset <= offset:
            self.waiting -= 1
            self._check.take(waiting.popleft())

    def ordered(self, one: OrderedRead) -> None:
        waiting = self._waiting.get(one.partition)
        if not waiting and one.released_offset <= self.reached.get(one.partition, -1):
            self._check.take(one)
        else:
            self.waiting += 1
            self._waiting.setdefault(one.partition, deque()).append(one)

    def release(self, below: Mapping[int, int] | None = None) -> None:
        """No more raw records come, below these offsets or at all: what waits for one is judged all the same."""
        for partition, waiting in self._waiting.items():
            while waiting and (below is None or waiting[0].released_offset < below.get(partition, 0)):
                self.waiting -= 1
                self._check.take(waiting.popleft())


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Raw:
    """Receives what the reader of log lines finds."""

    def __init__(self, limits: Limits) -> None:
        self.found: list[RawRecord] = []
        self._limits = limits

    def receive(self, value: bytes | None, key: Any, partition: int, offset: int, timestamp_ms: int) -> None:
        if value is not None and (b"\n" in value or b"\r" in value):
            value = value.translate(BREAKS_TO_SPACES)
        has_own_key = key is not None and not isinstance(key, bytes)
        one = read_raw(value, None if has_own_key else key, partition, offset, timestamp_ms, self._limits)
        if has_own_key and one.record is not None:
            one = self._with_own_key(one, one.record)
        self.found.append(one)

    @staticmethod
    def _with_own_key(one: RawRecord, record: Record) -> RawRecord:
        """A line without a key has the one of its group."""
        group = record.group
        if isinstance(group, str):
            if record.kind == "tick":
                return one._replace(record=None)
            return one._replace(group=group)
        return one


def judge_files(
    raw: Path, ordered: Path, letters: Path | None, check: Check, limits: Limits, tell: Tell | None = None
) -> None:
    """Judge files; an ordered file and a file of dead letters are read in step with the raw one."""
    with raw.open("rb") as log, ordered.open("rb") as lines:
        dead = None if letters is None else letters.open("rb")
        try:
            step = InStep(check)
            size = max(1, raw.stat().st_size)
            following = _ordered_lines(lines, ordered, check)
            codes = _letters(dead, letters) if dead is not None and letters is not None else iter(())
            _judge_lines(_raw_lines(log, limits), following, codes, step, check, _teller(tell, raw, size))
        finally:
            if dead is not None:
                dead.close()


def _teller(tell: Tell | None, raw: Path, size: int) -> Callable[[int], None]:
    return lambda read: None if tell is None else tell(raw.name, read / size)


def _judge_lines(
    raw: Iterator[tuple[int, list[RawRecord]]],
    ordered: Iterator[OrderedRead],
    letters: Iterator[Any],
    step: InStep,
    check: Check,
    tell: Callable[[int], None],
) -> None:
    reached = step.reached
    letter = next(letters, None)
    one = next(ordered, None)
    settled = 0
    in_steps = True
    last: dict[int, int] = {}
    for read, records in raw:
        tell(read)
        for record in records:
            partition, offset = record.partition, record.offset
            while letter is not None and (
                letter.offset <= offset
                if letter.partition == partition
                else letter.offset <= reached.get(letter.partition, -1)
            ):
                check.take_letter(letter)
                letter = next(letters, None)
            step.raw(record)
            while one is not None and one.released_offset <= reached.get(one.partition, -1):
                if one.released_offset < last.get(one.partition, 0):
                    in_steps = False
                last[one.partition] = one.released_offset
                check.take(one)
                one = next(ordered, None)
        settled += len(records)
        if in_steps and settled > SETTLE_LAG:
            settled = 0
            check.settle({partition: offset - SETTLE_LAG for partition, offset in reached.items()})
    while letter is not None:
        check.take_letter(letter)
        letter = next(letters, None)
    while one is not None:
        check.take(one)
        one = next(ordered, None)
    check.settle()


def _raw_lines(file: Any, limits: Limits) -> Iterator[tuple[int, list[RawRecord]]]:
    """Blocks of raw records, and how many bytes were read so far."""
    from precede.reading.log_lines import LogLines, blocks

    receiver = _Raw(limits)
    lines = LogLines(receiver, lambda text, _, offset: receiver.found.append(_refused_line(text, offset)))
    for block in blocks(file.fileno()):
        receiver.found = []
        lines.feed(block)
        yield file.tell(), receiver.found


def _refused_line(text: bytes, offset: int) -> RawRecord:
    """A dumped line that lacks what it needs is refused by `replay`, too."""
    return RawRecord(0, offset, 0, text, None, None)


def _ordered_lines(file: Any, path: Path, check: Check) -> Iterator[OrderedRead]:
    for number, line in enumerate(file, 1):
        text = line.rstrip(b"\r\n")
        if not text:
            continue
        try:
            yield read_ordered(text)
        except UnreadableError as error:
            check.unreadable(f"Line {number} of {path.name}", error)


def _letters(file: Any, path: Path) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield read_letter(line)
            except msgspec.DecodeError as error:
                raise Refused(f"Line {number} of {path} is no dead letter: {error}.") from error


# ── topics ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TopicsCheck:
    """Judges what a job has published, up to what its progress names; `next_round` goes on from there."""

    def __init__(
        self, settings: "Settings", groups: Collection[str], token: "FollowerToken | None", tell: Tell | None = None
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._owner, self.bounds = self._progress()
        owner = self._owner
        self._limits = owner.limits
        self._raw_next = self._first(settings.raw_topic)
        self._ordered_next = self._first(settings.ordered_topic)
        self._letters_next = self._first(settings.dead_letter_topic)
        has_raw = token is None and not any(self._raw_next.values())
        is_whole = token is None and not any(self._ordered_next.values())
        self.check = Check(
            groups=groups, order=owner.order, limits=owner.limits, has_raw=has_raw and is_whole, is_whole=is_whole
        )
        self._has_raw = has_raw and is_whole
        if token is not None:
            token.check_topic(settings.ordered_topic)
            self._ordered_next |= dict(token.offsets)
        elif not is_whole:
            gone = next(at for at, offset in self._ordered_next.items() if offset)
            self.check.findings.cannot(
                f"what {settings.ordered_topic} had before offset {self._ordered_next[gone]} of partition {gone}",
                "its retention has deleted it (--delta reads the tables, --from TOKEN says where to begin)",
            )
        elif not has_raw:
            gone = next(at for at, offset in self._raw_next.items() if offset)
            self.check.findings.cannot(
                "the raw log against what was published",
                f"{settings.raw_topic} begins at offset {self._raw_next[gone]} of partition {gone}: its retention has "
                "deleted what came before (--from TOKEN judges the sequences alone)",
            )
        self._step = InStep(self.check)
        self._kept: deque[OrderedRead] = deque()
        self._token = token

    def _progress(self) -> "tuple[Owner, dict[int, int]]":
        from precede.ingest.kafka.topics import describe
        from precede.ingest.progress import read_progress

        settings = self._settings
        topic = describe(settings.bootstrap, [settings.progress_topic]).get(settings.progress_topic)
        progress = None if topic is None else read_progress(settings.bootstrap, topic, settings.ordered_topic)
        owner = None if progress is None else progress.any_owner
        if progress is None or owner is None:
            raise CannotJudgeError(
                f"No job has published to {settings.ordered_topic} yet: there is nothing to judge. If another stream "
                "is meant, name its topics in --config FILE."
            )
        return owner, dict(progress.token)

    def _first(self, topic: str) -> dict[int, int]:
        from precede.ingest.kafka.reading import ends_of
        from precede.ingest.kafka.topics import describe

        known = describe(self._settings.bootstrap, [topic]).get(topic)
        if known is None:
            raise CannotJudgeError(f"There is no topic {topic}, which the job has written: it cannot be judged.")
        found = ends_of(self._settings.bootstrap, topic, range(known.partitions))
        return {partition: first for partition, (first, _) in found.items()}

    def run(self) -> None:
        """Judge all that was published when this began."""
        self._round()

    def next_round(self) -> None:
        """Judge what has been published since."""
        _, self.bounds = self._progress()
        self._round()

    def _round(self) -> None:
        settings, check, step = self._settings, self.check, self._step
        if self._has_raw:
            for record in self._records(settings.dead_letter_topic, self._letters_next):
                try:
                    letter = read_letter(record.value or b"")
                except msgspec.DecodeError as error:
                    raise Refused(
                        f"The topic {settings.dead_letter_topic} holds a record that is no dead letter: {error}."
                    ) from error
                check.take_letter(letter)
        raw = self._raw() if self._has_raw else iter(())
        ordered = self._ordered()
        kept, self._kept = self._kept, deque()
        for one in kept:
            self._offer(one)
        count, ended = 0, False
        while True:
            # What waits for a raw record is not added to; when no more raw ones come, all the rest is taken.
            following = next(ordered, None) if step.waiting == 0 or ended else None
            if following is not None:
                self._offer(following)
            elif ended:
                break
            else:
                arrived = next(raw, None)
                ended = arrived is None
                if arrived is not None:
                    step.raw(arrived)
            count += 1
            if self._tell is not None and count % TELL_EVERY == 0:
                done = sum(step.reached.values()) or sum(self._ordered_next.values())
                self._tell("what was published", done / max(1, sum(self.bounds.values())))
        step.release(self.bounds)
        check.settle(self.bounds)

    def _offer(self, one: OrderedRead) -> None:
        """What a batch published after the progress was read is for the next round."""
        if one.released_offset >= self.bounds.get(one.partition, 0):
            self._kept.append(one)
        elif self._token is None or not self._token.covers(
            one.partition, one.released_offset, one.group, one.destination, one.position
        ):
            if self._has_raw:
                self._step.ordered(one)
            else:
                self.check.take(one)

    def _records(self, topic: str, following: dict[int, int]) -> Iterator[LogRecord]:
        from precede.ingest.kafka.reading import records_from

        for record in records_from(self._settings.bootstrap, topic, dict(following)):
            following[record.partition] = record.offset + 1
            yield record

    def _raw(self) -> Iterator[RawRecord]:
        from precede.ingest.kafka.reading import records_from

        following, bounds = self._raw_next, self.bounds
        for one in records_from(self._settings.bootstrap, self._settings.raw_topic, dict(following)):
            if one.offset < bounds.get(one.partition, 0):
                following[one.partition] = one.offset + 1
                yield read_raw(one.value, one.key, one.partition, one.offset, one.timestamp_ms, self._limits)

    def _ordered(self) -> Iterator[OrderedRead]:
        for one in self._records(self._settings.ordered_topic, self._ordered_next):
            try:
                yield read_ordered(one.value or b"")
            except UnreadableError as error:
                self.check.unreadable(f"Offset {one.partition}:{one.offset} of {self._settings.ordered_topic}", error)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────

COLUMNS = '"group", "position", "destination", "status", "order", "partition", "offset", "released_offset", "record"'


def judge_tables(settings: "Settings", groups: Collection[str], check: Check, tell: Tell | None = None) -> None:
    """Judge the sequences in the Delta table of deliveries."""
    from precede.ingest.extras import need

    need("delta", "precede check --delta")
    from deltalake.exceptions import DeltaError, TableNotFoundError

    from precede.reading.from_delta import Condition, DeltaRows

    path = settings.delta_place / "deliveries"
    try:
        table = DeltaRows(path, settings.storage_options)
    except TableNotFoundError as error:
        raise CannotJudgeError(
            f"There is no Delta table {path}: name the root folder that the job writes to."
        ) from error
    except (DeltaError, OSError) as error:
        raise CannotJudgeError(f"The Delta table {path} cannot be read: {error}.") from error
    chosen: list[Condition] = [("group", "IN", list(groups))] if groups else []
    rows = next(table.select("count(*) AS rows", *chosen))["rows"]
    order = 'ORDER BY "group", "destination", "position"'
    for count, row in enumerate(table.select(COLUMNS, *chosen, then=order)):
        if tell is not None and count % TELL_EVERY == 0:
            tell("the table of deliveries", count / max(1, rows))
        where = f"Position {row['position']} of group {row['group']} in {path}"
        if row["status"] == ERASED or row["record"] is None:
            check.take(_erased(row))
            continue
        try:
            one = read_ordered(row["record"].encode())
        except UnreadableError as error:
            check.unreadable(where, error)
            continue
        if (one.group, one.position, one.destination) != (row["group"], row["position"], row["destination"]):
            check.unreadable(where, UnreadableError("its columns do not say what its record says"))
        check.take(one)


def _erased(row: dict[str, Any]) -> OrderedRead:
    """A row whose data were erased: only its place is judged."""
    released = row["released_offset"] if row["released_offset"] is not None else row["offset"]
    return OrderedRead(
        row["group"],
        b"",
        row["position"],
        row["order"],
        ERASED,
        row["destination"],
        row["partition"],
        row["offset"],
        0,
        released,
        0,
    )
