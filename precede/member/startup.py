"""How a member finds its place: what the log tells of its group, where it goes on reading, and under which epoch.

The ordered topic is read to its end once, from where the member stopped or, for a newcomer, from the beginning; only
the records of its group are looked into. What a newcomer does not want to be handed is heard all the same, so that it
may be answered and stamps are right.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from precede.ingest import epochs
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import LogReader
from precede.ingest.kafka.reading import why_unreadable
from precede.ingest.kafka.topics import describe
from precede.member.publishing import Voice
from precede.reading.delta_history import DeltaHistory
from precede.reading.following import Delivery, FollowerToken, as_delivery
from precede.streaming.order import progress
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.member.knowledge import read_without_data
from precede.udfs.records.messages import EPOCH_MAX, Id, LogRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOOK_S = 0.2
PATIENCE_S = 60.0
ADMISSION_S = 5.0

Found = tuple[LogRecord, dict[str, Any]]


class Opening:
    """One member's opening; `token` and `older` are what it finds."""

    def __init__(
        self,
        voice: Voice,
        reader: LogReader,
        bootstrap: Address | str,
        topics: tuple[str, str, str],
        past: Callable[[], DeltaHistory | None],
    ) -> None:
        self.token = ""
        self.position = 0
        """The last position that is not to be handed over."""
        self.older: Iterator[Delivery] = iter(())
        """What is to be handed over before the topic is read on: what only Delta has."""
        self._voice = voice
        self._reader = reader
        self._bootstrap = bootstrap
        self._raw, self._ordered, self._progress = topics
        self._past = past
        self._offsets: dict[int, int] = {}
        self._own_seq = 0

    def read(self, *, history: Literal["all", "none"] | int, since: int | None) -> None:
        """Hear what is there, and decide where to begin."""
        known = self._voice.known
        self._offsets = self._reader.starts(self._ordered, at_end=False, timeout_s=0.0)
        resumes = since is None and known.token is not None
        if resumes and self._voice.knowledge.is_legacy:
            for _ in self._records():
                pass
        if resumes:
            place = msgspec.json.decode(known.token or "", type=FollowerToken)
            self._offsets |= place.offsets
            since = max((last for _, destination, last in place.last if self._is_mine(destination)), default=0)
        self.position = since or 0
        first: int | None = None  # the first position that the topic still has of the group
        newest: deque[Found] = deque()
        messages = 0
        for found in self._records():
            fields = found[1]
            if not self._is_mine(fields.get("destination")):
                continue
            first = first or fields["position"]
            if since is not None:
                if fields["position"] <= since:
                    self._skip(found)
            elif history == "none":
                self._skip(found)
            elif history != "all":
                newest.append(found)
                messages += _is_message(fields)
                while messages > history:
                    messages -= _is_message(newest[0][1])
                    self._skip(newest.popleft())
        if not resumes:
            self._look_back(first, "all" if since is not None else history, messages)
        elif first is None:
            self._only_in_delta("all")
        mine = [(known.group, None, self.position), (known.group, known.sender, self.position)]
        self.token = FollowerToken(self._ordered, self._offsets, mine, from_beginning=False).text()

    def _records(self) -> Iterator[Found]:
        """The records of the group up to the end of the topic, learned from."""
        knowledge, known = self._voice.knowledge, self._voice.known
        for record, fields in records_of(self._reader, self._ordered, known.group, dict(self._offsets)):
            knowledge.learn(fields)
            self._voice.adopt(fields["order"])
            if fields.get("sender") == known.sender and fields.get("epoch", 0) == known.epoch:
                self._own_seq = max(self._own_seq, fields.get("seq", 0))
            yield record, fields

    def _is_mine(self, destination: str | None) -> bool:
        return destination is None or destination == self._voice.known.sender

    def _skip(self, found: Found) -> None:
        """A record that is known but not handed over."""
        record, fields = found
        self._voice.observe(fields)
        self.position = fields["position"]
        self._offsets[record.partition] = record.offset + 1

    # ── what only Delta has ───────────────────────────────────────────────────────────────────────────────────────

    def _look_back(self, first: int | None, history: Literal["all", "none"] | int, messages: int) -> None:
        """The topic begins behind the group's beginning: what was before stands in Delta, if the member knows it.

        What lies between the place to begin and the topic's first record is a hole, which the member fills from Delta.
        """
        past = self._past()
        if past is None or first == 1:
            return
        for delivery in past.views():
            fields = read_without_data(delivery.record)
            self._voice.knowledge.learn(fields)
            self._voice.adopt(fields["order"])
        if first is None:
            self._only_in_delta(history)
        elif isinstance(history, int):
            self.position = max(self.position, first - 1 - max(0, history - messages))

    def _only_in_delta(self, history: Literal["all", "none"] | int) -> None:
        past = self._past()
        if past is None:
            return
        last = past.last()
        if history != "all":
            self.position = max(self.position, last - (0 if history == "none" else history))
        self.older = past.between(self.position + 1, last)

    # ── epoch and membership ──────────────────────────────────────────────────────────────────────────────────────

    def settle_epoch(self, key: "Ed25519PrivateKey | None", *, is_new: bool) -> None:
        """Go on under the epoch that is kept, or start a new one where it has ended or cannot be trusted."""
        voice, known = self._voice, self._voice.known
        knowledge = voice.knowledge
        if knowledge.order is None:
            usual = self._usual_order()
            created = epochs.created_as(self._bootstrap, self._raw, known.group)
            voice.adopt(usual if created is None else knowledge.apply_create(created, usual))
        self._await_admission()
        is_over = knowledge.is_out(known.sender, known.epoch) or known.epoch > EPOCH_MAX
        if is_new or is_over or self._own_seq > known.seq:
            over = knowledge.last_ended_epoch(known.sender)
            free = epochs.free_epoch(self._bootstrap, self._raw, known.group, known.sender, key, above=over)
            if free != known.epoch:
                voice.begin(free)

    def _await_admission(self) -> None:
        """Where only the service lets newcomers in, it may have done so a moment ago."""
        knowledge, name = self._voice.knowledge, self._voice.known.sender
        deadline = monotonic() + ADMISSION_S
        while knowledge.has_keys and knowledge.closed and name not in knowledge.keys and monotonic() < deadline:
            for _ in self._records():
                pass

    def join(self) -> None:
        """Say `join` where the group asks for it; where clocks decide, wait until that has its place.

        Only then is it known which times are over, and nobody may come in below them.
        """
        voice, known = self._voice, self._voice.known
        knowledge = voice.knowledge
        if voice.order.waits_for_members:
            voice.hear_time(knowledge.time)
        brings_key = voice.public_key is not None and bool(knowledge.keys) and known.sender not in knowledge.keys
        asked = knowledge.closed or voice.order.waits_for_members or brings_key
        why_forged = voice.why_forged()
        if why_forged is not None and voice.order.waits_for_members:
            raise Refused(why_forged)  # nobody could be told that it hears the others
        if not asked or known.joined or knowledge.is_in(known.sender, known.epoch):
            return
        if why_forged is not None:
            warnings.warn(f"{why_forged} Until then {known.sender} can only listen.", stacklevel=4)
            return
        fields: dict[str, Any] = {"kind": "join", "sender": known.sender, "epoch": known.epoch}
        if voice.order.waits_for_members:
            fields["time"] = voice.time
        if brings_key:
            fields["key"] = voice.public_key
        voice.control(**fields)
        known.joined = True
        deadline = monotonic() + PATIENCE_S
        while voice.order.waits_for_members and not knowledge.is_in(known.sender, known.epoch):
            if monotonic() > deadline:
                raise Refused(
                    f"The join of {known.sender} was not delivered in {known.group} within {PATIENCE_S:.0f} s: see that"
                    " `precede run` is at work, and what `precede tail --dead-letters` says."
                )
            for _ in self._records():
                pass

    def _usual_order(self) -> str:
        """The order of groups nobody created, as the job wrote it down; without a job, the default."""
        try:
            topic = describe(self._bootstrap, [self._progress]).get(self._progress)
            # The order stays as it is, so what open transactions hide is of no use here.
            known = topic and progress.read_progress(self._bootstrap, topic, self._ordered, settled=False)
        except Unreachable as error:
            raise why_unreadable(self._bootstrap, self._progress, error) from error
        owner = known[0] if known else None
        return "s_b" if owner is None else owner.order


def records_of(reader: LogReader, topic: str, group: str, offsets: dict[int, int]) -> Iterator[Found]:
    """The records of a group from these offsets to the end of the topic."""
    if not offsets:
        return
    key = group.encode()
    reader.assign(topic, offsets)
    deadline = monotonic() + PATIENCE_S
    while True:
        records = reader.read(LOOK_S)
        for record in records:
            if record.key == key and record.value is not None:
                yield record, read_without_data(record.value)
        if records:
            deadline = monotonic() + PATIENCE_S
        elif reader.at_end():
            return
        elif monotonic() > deadline:
            raise Refused(
                f"The topic {topic} could not be read to its end: Kafka did not answer for {PATIENCE_S:.0f} s."
            )


def search(reader: LogReader, topic: str, group: str, destination: str | None, id_: Id) -> Delivery | None:
    """The message of this id, where the topic still has it."""
    for record, fields in records_of(reader, topic, group, reader.starts(topic, at_end=False, timeout_s=0.0)):
        is_it = (fields.get("sender"), fields.get("epoch", 0), fields.get("seq")) == id_
        if is_it and fields.get("destination") == destination:
            return as_delivery(record.value or b"", topic)
    return None


def _is_message(fields: dict[str, Any]) -> bool:
    return fields.get("kind", "message") == "message" and bool(fields["status"] == "delivered")
