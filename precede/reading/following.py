"""Reads the ordered topic for an application: delivered messages one by one, by the consumer's rule, resumable.

    for message in precede.follow("travel"):
        print(message.position, message.sender, message.data)

The rule: drop a position at or below the last one, deliver the next one; anything else is a hole. A hole is raised as
an exception, so that it cannot be overlooked. Asking for the next message after that continues behind the hole.

To resume later, save `follower.token` together with the result of handling the message, and pass it to `follow`.
"""

import json
import sys
from decimal import Decimal
from threading import Lock
from typing import Any, Literal, Self

import msgspec

from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import LogReader, open_reader
from precede.ingest.kafka.reading import REQUEST_S
from precede.ingest.kafka.topics import ORDERED_TOPIC
from precede.udfs.errors import Hole, Refused
from precede.udfs.records.lenient import lenient_reader
from precede.udfs.records.messages import Id, LogRecord
from precede.udfs.records.ordered_record import OrderedRecord
from precede.udfs.records.strict import DEPTH_MAX

DIGITS_MAX = 4_000
IDLE_S = 0.5  # how long one read waits for new records; a stop may come late by this much


class Delivery(OrderedRecord, kw_only=True):
    """One delivered record of the ordered topic, as an application gets it."""

    epoch: int = 0
    after: list[Id] = msgspec.field(default_factory=list)
    raw_data: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="data")
    record: bytes = b""  # the whole record as in the topic; records have no field of this name

    @property
    def data(self) -> Any:
        """The application's value; None if the record has none."""
        if not self.raw_data:
            return None
        try:
            return json.loads(bytes(self.raw_data))
        except (ValueError, RecursionError):  # more digits or levels than Python accepts by default
            return _parse_extreme(bytes(self.raw_data))

    @property
    def id(self) -> tuple[str | None, int, int | None]:
        return self.sender, self.epoch, self.seq

    @property
    def held_ms(self) -> int:
        """How long the message was held."""
        return self.released_ms - self.arrived_ms


_read = lenient_reader(Delivery)

_one_at_a_time = Lock()


def _parse_extreme(text: bytes) -> Any:
    """Parse valid JSON of any size: an integer with very many digits becomes a `Decimal`."""
    with _one_at_a_time:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 2 * DEPTH_MAX)
        try:
            return json.loads(text, parse_int=_integer)
        finally:
            sys.setrecursionlimit(limit)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= DIGITS_MAX else Decimal(digits)


def as_delivery(record: bytes, where: str) -> Delivery:
    """Read one ordered record."""
    try:
        delivery = _read(record)
    except msgspec.DecodeError as error:
        raise Refused(f"{where} holds a record that precede did not write: {error}.") from error
    delivery.record = record
    return delivery


class ConsumersRule:
    """Applies the consumer's rule: knows the last position delivered per group and destination."""

    def __init__(self, last: dict[tuple[str, str | None], int] | None = None, *, from_beginning: bool) -> None:
        self.last = {} if last is None else last
        # A reader that starts in the middle cannot know what came before the first record of a group.
        self._from_beginning = from_beginning

    def admits(self, delivery: Delivery) -> bool:
        """Whether to deliver it; False if it was delivered before. Raises Hole once if any position is missing."""
        place = (delivery.group, delivery.destination)
        last = self.last.get(place)
        if last is None:
            last = 0 if self._from_beginning else delivery.position - 1
        if delivery.position > last + 1:
            self.last[place] = delivery.position - 1
            raise Hole(delivery, last)
        if delivery.position <= last:
            return False
        self.last[place] = delivery.position
        return True


class FollowerToken(msgspec.Struct, array_like=True):
    """A follower's progress: the next offset of each partition, and the last position of each group."""

    topic: str
    offsets: dict[int, int]
    last: list[tuple[str, str | None, int]]
    from_beginning: bool

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class Follower:
    """An iterator over delivered messages; `follow` creates it."""

    def __init__(
        self,
        reader: LogReader,
        *,
        topic: str,
        group: str | None,
        start: Literal["beginning", "end"],
        token: str | None,
        patience_s: float | None,
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._group = group
        self._key = None if group is None else group.encode()
        self._start = start
        self._patience_s = patience_s
        self._offsets: dict[int, int] = {}
        self._rule = ConsumersRule(from_beginning=start == "beginning")
        self._waiting: list[LogRecord] = []  # read from Kafka but not yet handled, newest first
        self._assigned = False
        if token is not None:
            self._resume(token)

    @property
    def token(self) -> str:
        """Everything `follow` needs to continue after the last delivered message."""
        last = [(group, destination, position) for (group, destination), position in self._rule.last.items()]
        return FollowerToken(self._topic, self._offsets, last, self._start == "beginning").text()

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        return self._assigned and not self._waiting and self._reader.at_end()

    def continue_after(self, delivery: Delivery) -> None:
        """Continue after this delivery, which came from another source."""
        self._rule.last[delivery.group, delivery.destination] = delivery.position

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time."""
        if not self._assigned and not self._assign(timeout_s):
            return None
        if not self._waiting:
            self._waiting = self._reader.read(timeout_s)[::-1]
        while self._waiting:
            record = self._waiting[-1]
            delivery = self._admitted(record)  # after a hole the record stays here, to be delivered next
            self._waiting.pop()
            self._offsets[record.partition] = record.offset + 1
            if delivery is not None:
                return delivery
        return None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        idle_s = 0.0
        while self._patience_s is None or idle_s < self._patience_s:
            delivery = self.poll(IDLE_S)
            if delivery is not None:
                return delivery
            if not self._waiting:
                idle_s += IDLE_S
        raise StopIteration

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admitted(self, record: LogRecord) -> Delivery | None:
        if record.value is None or (self._key is not None and record.key != self._key):
            return None
        delivery = as_delivery(record.value, f"{self._topic}, offset {record.offset},")
        return delivery if self._rule.admits(delivery) else None

    def _assign(self, timeout_s: float) -> bool:
        """Start reading as soon as the topic exists; if it did not exist before, all of its records are new."""
        starts = self._reader.starts(self._topic, at_end=self._start == "end", timeout_s=timeout_s)
        if not starts:
            self._start = "beginning"
            return False
        self._offsets = starts | self._offsets
        self._reader.assign(self._topic, self._offsets)
        self._assigned = True
        return True

    def _resume(self, text: str) -> None:
        try:
            token = msgspec.json.decode(text, type=FollowerToken)
        except msgspec.DecodeError as error:
            raise Refused(f"This is no token of a follower: {error}.") from error
        if token.topic != self._topic:
            raise Refused(f"The token belongs to the topic {token.topic}, not to {self._topic}.")
        self._offsets = token.offsets
        # Partitions that the token does not know were added later: all of their records are new.
        self._start = "beginning"
        last = {(group, destination): position for group, destination, position in token.last}
        self._rule = ConsumersRule(last, from_beginning=token.from_beginning)


def follow(
    group: str | None = None,
    *,
    bootstrap: Address | str = "localhost:9092",
    topic: str = ORDERED_TOPIC,
    start: Literal["beginning", "end"] = "beginning",
    token: str | None = None,
    patience_s: float | None = None,
    request_s: float = REQUEST_S,
    client: Literal["confluent", "kafka-python"] = "confluent",
) -> Follower:
    """Follow one group, or all of them.

    `start` is where to begin without a `token`. Iteration waits for ever, or ends when nothing came for `patience_s`
    seconds. A broker that does not answer for `request_s` seconds at the start is an error. Both Kafka clients read
    committed transactions only, so each position is seen once, even after a crash.

    Raises Unreachable or AccessDenied if Kafka cannot be read, Refused for a wrong token, and Hole if positions are
    missing.
    """
    if start not in ("beginning", "end"):
        raise ValueError(f"start must be beginning or end, not {start!r}")
    reader = open_reader(client, bootstrap, request_s=request_s)
    return Follower(reader, topic=topic, group=group, start=start, token=token, patience_s=patience_s)
