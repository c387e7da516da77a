"""What the kernel has decided: ordered records, dead letters and the job's own records, in order."""

from functools import cache

from msgspec import UNSET, UnsetType

from precede.udfs.codes import Refusal
from precede.udfs.records.dead_letters import EXCERPT_BYTES_MAX, DeadLetter, encode_dead_letter
from precede.udfs.records.job_records import JobRecord, Topic
from precede.udfs.records.messages import Id, Identity, LogRecord
from precede.udfs.records.wire import encode_name


class Outbox:
    """Parallel lists of keys and values; the caller of the kernel takes them and clears."""

    __slots__ = (
        "dead",
        "dead_codes",
        "dead_keys",
        "duplicates",
        "held_growth",
        "ordered",
        "ordered_keys",
        "own",
    )

    def __init__(self) -> None:
        self.ordered: list[bytes] = []
        self.ordered_keys: list[bytes] = []
        self.dead: list[bytes] = []
        self.dead_keys: list[bytes | None] = []
        self.dead_codes: list[str] = []
        self.own: list[JobRecord] = []
        self.duplicates = 0
        self.held_growth = 0
        """By how much the number of held messages has grown since this was created; below 0 where it shrank."""

    def refuse(
        self,
        refusal: Refusal,
        identity: Identity,
        record: LogRecord,
        destination: str | UnsetType = UNSET,
    ) -> None:
        """Write the dead letter of one record, or of one destination of it."""
        letter = DeadLetter(
            code=refusal.code,
            reason=refusal.reason,
            group=identity.group,
            sender=identity.sender,
            epoch=identity.epoch,
            seq=identity.seq,
            destination=destination,
            partition=record.partition,
            offset=record.offset,
            arrived_ms=record.timestamp_ms,
        )
        self.dead.append(encode_dead_letter(letter, record.value))
        self.dead_codes.append(refusal.code)
        # A compressed record may have a key larger than Kafka accepts back, and the stream would be stuck at it.
        self.dead_keys.append(None if record.key is None else record.key[:EXCERPT_BYTES_MAX])

    def say(self, topic: Topic, key: bytes, value: bytes, offset: int) -> None:
        """Add one record of the job's own."""
        self.own.append(JobRecord(topic, key, value, offset))

    def clear(self) -> None:
        """Forget what the caller has taken."""
        self.own.clear()
        self.ordered.clear()
        self.ordered_keys.clear()
        self.dead.clear()
        self.dead_keys.clear()
        self.dead_codes.clear()


@cache
def ordered_form(order: str, status: str, partition: int) -> bytes:
    """An ordered record without its numbers; all groups share it, because every message needs it."""
    return _form(f'"order":"{order}","status":"{status}","partition":{partition}')


def destination_form(order: str, status: str, partition: int, destination: str) -> bytes:
    """The same for one destination of one group."""
    name = encode_name(destination).replace("%", "%%")
    return _form(f'"order":"{order}","status":"{status}","destination":{name},"partition":{partition}')


def _form(fixed: str) -> bytes:
    end = '"offset":%d,"arrived_ms":%d,"released_offset":%d,"released_ms":%d}'
    return f'%b,"position":%d,{fixed},{end}'.encode()


def stand_in_head(group: str, id_: Id) -> bytes:
    """The beginning of the record that stands for an abandoned message."""
    name, epoch, seq = id_
    return f'{{"group":{encode_name(group)},"sender":{encode_name(name)},"epoch":{epoch},"seq":{seq}'.encode()
