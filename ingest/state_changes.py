"""Reading the state topic state by state, from any offsets on: for a copy of it that need not fit into memory."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from precede.ingest.kafka.access import Address
from precede.ingest.state_topic import damaged, replaced, state_records
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.state_pieces import LostPieceError, Piece, StoredState, join, read_key, read_piece


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
