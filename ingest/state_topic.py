"""Reading the state topic: the newest state of each group, for readers, restores and commands.

What cannot be trusted is refused in a sentence: a piece that is lost, a newer format. Records that precede did not
write, and those of another stream, are passed over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

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
