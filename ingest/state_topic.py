"""Reading the state topic: the newest state of each group, for readers, restores and commands; or state by state.

What cannot be trusted is refused in a sentence: a piece that is lost, a newer format. Records that precede did not
write, and those of another stream, are passed over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import REQUEST_S, TopicReader, ends, never_stop
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.state_pieces import LostPieceError, Piece, StoredState, join, read_key, read_piece

READ_WAIT_MS = 10


def read_state(
    bootstrap: Address | str,
    topic: str,
    partitions: Iterable[int],
    *,
    stream: str,
    group: bytes | None = None,
    settled: bool = True,
    quiet_s: float = REQUEST_S,
    check_stop: Callable[[], object] = never_stop,
) -> dict[int, dict[bytes, StoredState]]:
    """The state of all groups, or of one, by raw partition.

    `stream` is the id of the ordered topic. With `settled` this waits until open transactions have ended and hide
    nothing that was there at the start. Raises Refused, Unreachable where nothing comes for `quiet_s` seconds, and what
    `check_stop` raises.
    """
    wanted = sorted(set(partitions))
    upto = dict.fromkeys(wanted, 0)
    if settled and wanted:
        found = ends(bootstrap, topic, max(wanted) + 1, committed=False)
        upto = {at: found[at][1] for at in wanted}
    pieces = StatePieces(topic, stream=stream, group=group)
    first = dict.fromkeys(wanted, 0)
    for record in state_records(bootstrap, topic, first, upto, settled=settled, quiet_s=quiet_s, check_stop=check_stop):
        pieces.add(record)
    return pieces.states(wanted)


def state_records(
    bootstrap: Address | str,
    topic: str,
    offsets: Mapping[int, int],
    upto: Mapping[int, int],
    *,
    settled: bool = True,
    quiet_s: float = REQUEST_S,
    check_stop: Callable[[], object] = never_stop,
) -> Iterator[LogRecord]:
    """The records of the topic from these offsets to its end, and at least up to `upto`, as `read_state` reads them."""
    reader = TopicReader(bootstrap, patient=False, wait_ms=READ_WAIT_MS)
    try:
        yield from reader.to_end(topic, offsets, upto=upto, quiet_s=quiet_s, check_stop=check_stop)
    except TimeoutError as error:
        hides = settled and reader.at_end()
        why = " to its end: a transaction is open in it" if hides else ""
        raise Unreachable(f"Cannot read the topic {topic} from Kafka at {bootstrap}{why}.") from error
    except KafkaException as error:
        raise clients.unreadable(bootstrap, topic, error.args[0]) from error
    finally:
        reader.close()


def damaged(topic: str, error: LostPieceError, *, may_have_checkpoint: bool = True) -> Refused:
    """For a state of which a piece is lost."""
    hint = "Start with the old checkpoint, or, where" if may_have_checkpoint else "Where"
    return Refused(
        f"The state topic {topic} is damaged: {error} {hint} the raw log is whole, choose a new state_topic."
    )


def replaced(topic: str, record: LogRecord, group: bytes) -> Refused:
    """For a record of another program under a key of this stream, of which compaction would leave nothing else."""
    return Refused(
        f"Another program writes into the state topic {topic}: at offset {record.offset} of partition "
        f"{record.partition} it replaced state of group {group.decode()!r}. Each stream needs its own state_topic."
    )


class StatePieces:
    """Collects the records of the state topic, and puts the states together."""

    def __init__(self, topic: str, *, stream: str, group: bytes | None = None) -> None:
        self._topic = topic
        self._stream = stream
        self._group = group
        self._found: dict[int, dict[bytes, dict[int, Piece]]] = {}

    def add(self, record: LogRecord) -> None:
        """Take the next record; a later one replaces an earlier one with the same key."""
        named = read_key(record.key)
        if named is None or (self._group is not None and named[0] != self._group):
            return
        group, number = named
        groups = self._found.setdefault(record.partition, {})
        pieces = groups.setdefault(group, {})
        if record.value is None:
            pieces.pop(number, None)
            return
        piece = read_piece(record.value)
        if piece is not None and piece.stream == self._stream:
            pieces[number] = piece
        elif number in pieces:
            raise replaced(self._topic, record, group)

    def states(self, partitions: Iterable[int]) -> dict[int, dict[bytes, StoredState]]:
        """The states of these partitions. Raises Refused where a piece is lost."""
        try:
            return {
                at: {group: join(group, found) for group, found in self._found.get(at, {}).items() if found}
                for at in partitions
            }
        except LostPieceError as error:
            raise damaged(self._topic, error) from error


class NewState(NamedTuple):
    """A state that stands in the topic; a later one of the same group replaces it."""

    partition: int
    group: bytes
    state: StoredState


def new_states(
    bootstrap: Address | str,
    topic: str,
    positions: Mapping[int, int],
    upto: Mapping[int, int],
    *,
    stream: str,
    is_known: Callable[[bytes], bool],
    check_stop: Callable[[], object],
) -> Iterator[NewState]:
    """Each state from these offsets on, at least up to those; by partition.

    Waits for open transactions, because they may hide what was there before. `is_known` says whether an earlier state
    of a group was read; `check_stop` raises where no more is to be read. Raises Refused and Unreachable.
    """
    arriving = ArrivingStates(topic, stream=stream, is_known=is_known)
    for record in state_records(bootstrap, topic, positions, upto, check_stop=check_stop):
        state = arriving.add(record)
        if state is not None:
            yield state
    arriving.check_whole()


class ArrivingStates:
    """Puts states together as their pieces come.

    The pieces of a state are written in one transaction. Of an older state of the same group some pieces may be left,
    and others compacted away: those of a newer one follow.
    """

    def __init__(self, topic: str, *, stream: str, is_known: Callable[[bytes], bool]) -> None:
        self._topic = topic
        self._stream = stream
        self._is_known = is_known
        self._parts: dict[bytes, dict[int, Piece]] = {}
        """The pieces of the groups whose state is not whole yet."""

    def add(self, record: LogRecord) -> NewState | None:
        """Take the next record; the state that it makes whole, if it does."""
        named = read_key(record.key)
        if named is None:
            return None
        group, number = named
        if record.value is None:
            self._forget(group, number)
            return None
        piece = read_piece(record.value)
        if piece is None or piece.stream != self._stream:
            if number == 0 and (group in self._parts or self._is_known(group)):
                raise replaced(self._topic, record, group)
            return None
        parts = self._parts.setdefault(group, {})
        if any(part.checksum != piece.checksum or part.next != piece.next for part in parts.values()):
            parts.clear()
        parts[number] = piece
        if len(parts) < piece.count:
            return None
        del self._parts[group]
        try:
            return NewState(record.partition, group, join(group, parts))
        except LostPieceError as error:
            raise damaged(self._topic, error, may_have_checkpoint=False) from error

    def _forget(self, group: bytes, number: int) -> None:
        """Take in that a piece was removed."""
        parts = self._parts.get(group, {})
        parts.pop(number, None)
        if not parts:
            self._parts.pop(group, None)

    def check_whole(self) -> None:
        """At the end of the topic nothing may be missing."""
        for group, parts in self._parts.items():
            try:
                join(group, parts)
            except LostPieceError as error:
                raise damaged(self._topic, error, may_have_checkpoint=False) from error
