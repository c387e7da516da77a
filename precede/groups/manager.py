"""The groups of a log as one process sees and changes them: the documents' GroupManager (M2MC, chapter 8).

    with precede.Groups("ann") as groups:
        for offer in groups.discover():
            print(offer.group, offer.order, list(offer.members))
        groups.create("travel", order="causal", closed=True, members=["ann", "bob"])
        groups.join("chess")
        print(groups.members("chess"))
        groups.leave("chess")

The log itself answers who asks for groups: its ordered records tell of all that were created, and who belongs to them
now. Each group that this process is not in is offered once; `discover` is the document's advertisement, after which
what was declined is offered once more. Joining and leaving are records in the group's own sequence, so every member
sees them between the same two messages.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec

from precede.groups.catalogue import CatalogueReader
from precede.ingest.group_records import Writer, Written
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import LogReader, open_reader
from precede.ingest.kafka.topics import DEAD_LETTER_TOPIC, ORDERED_TOPIC, RAW_TOPIC
from precede.ingest.producer import Publisher
from precede.ingest.sending import log_of
from precede.ingest.signing import key_in
from precede.udfs.errors import Refused
from precede.udfs.peers.catalogue import Listing
from precede.udfs.peers.directory import Directory, GroupsInfo, Offer, Row
from precede.udfs.peers.views import IN, Standing
from precede.udfs.records.lenient import lenient_reader
from precede.udfs.records.messages import Id, LogRecord

ANSWER_S = 30.0


class Answer(NamedTuple):
    """What became of a record of this process."""

    epoch: int
    position: int | None
    """Its place in the group's sequence; None where no answer came in the time given, or nothing was written."""
    written: bool
    """Whether there was anything to write: who is in already need not join."""


class _Place(msgspec.Struct):
    """Where an ordered record, or a dead letter, comes from."""

    partition: int = -1
    offset: int = -1
    position: int | None = None
    code: str = ""
    reason: str = ""


_place = lenient_reader(_Place)


class Groups:
    """The groups of a log as one name sees them, and its operations on them.

    To open it, and every method that reads or writes, raises Unreachable if no broker answered, and AccessDenied if the
    broker rejected the credentials or an access rule is missing. Refused means that something must be changed first:
    the state file, the key or a topic cannot be used, a group is not there or is there already, or the group refused
    the record. A method that writes also raises Unconfirmed if Kafka did not confirm the record.
    """

    def __init__(
        self,
        name: str,
        *,
        bootstrap: Address | str = "localhost:9092",
        raw_topic: str = RAW_TOPIC,
        ordered_topic: str = ORDERED_TOPIC,
        dead_letter_topic: str = DEAD_LETTER_TOPIC,
        state: Path | None = None,
        key: Path | None = None,
        answer_s: float = ANSWER_S,
        client: Literal["confluent", "kafka-python"] = "confluent",
    ) -> None:
        self.name = name
        self.answer_s = answer_s
        """How long to wait for the job to order what is sent here; 0 does not wait."""
        log = log_of(bootstrap, raw_topic)
        self._publisher = Publisher(bootstrap, topic=raw_topic, linger_ms=0)
        self._writer = Writer(self._publisher, log, state, name, key_in(key))
        self._directory = Directory(name)
        self._reader = CatalogueReader(bootstrap, ordered_topic, client=client)
        self._dead_letter_topic = dead_letter_topic
        self._open_reader: Callable[[], LogReader] = lambda: open_reader(client, bootstrap)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def discover(self) -> list[Listing]:
        """Every group this name is not in, each once, what it declined before among them."""
        self._look()
        self._directory.advertise()
        return self.offers()

    def offers(self) -> list[Listing]:
        """The groups that have come since, and were not offered yet."""
        self._look()
        groups = self._reader.catalogue.groups
        offers = self._directory.hear(GroupsInfo("the log", [one.info for one in groups.values()]))
        return [groups[one.info.group] for one in offers if isinstance(one, Offer)]

    def _look(self) -> None:
        """Read on; in which groups this name is, the log alone knows."""
        self._reader.read_on()
        for listing in self._reader.catalogue.groups.values():
            if self.name in listing.view:
                is_in = listing.view[self.name][1] is IN
                if is_in or self._directory.rows.get(listing.group) is Row.MEMBER:
                    self._directory.remember(listing.info)

    def all(self) -> list[Listing]:
        """Every group there is, by name."""
        self._reader.read_on()
        groups = self._reader.catalogue.groups
        return [groups[group] for group in sorted(groups)]

    def mine(self) -> list[str]:
        """The groups this name is in."""
        return [listing.group for listing in self.all() if self.name in listing.members]

    def members(self, group: str) -> dict[str, int]:
        """Who is in the group now, each with its epoch; of an open group, those who joined."""
        self._reader.read_on()
        return self._listing(group).members

    def _listing(self, group: str) -> Listing:
        listing = self._reader.catalogue.groups.get(group)
        if listing is None:
            raise Refused(f"There is no group {group}, as far as the job has ordered the log.")
        return listing

    # ── coming and going ──────────────────────────────────────────────────────────────────────────────────────────

    def create(
        self, group: str, *, order: str | None = None, members: Iterable[str] | None = None, **options: Any
    ) -> Answer:
        """Begin a group, by default with this name as its one member; options are those of the `create` record."""
        self._reader.read_on()
        if group in self._reader.catalogue.groups:
            raise Refused(f"There is a group {group} already: join it, or choose another name.")
        chosen = {name: value for name, value in {"order": order, **options}.items() if value is not None}
        first = [self.name] if members is None else list(members)
        return self._answer(lambda: self._writer.create(group, members=first, options=chosen))

    def join(self, group: str, *, new_key: str | None = None) -> Answer:
        """Become a member, with an epoch never used before; who is in already stays as it is.

        A group that is not there yet begins with it, open and in the default order. With `new_key`, a public key, this
        name speaks under a new epoch from here on, and under that key; the one that was given here signs for it.
        """
        standing = self._standing(group, self.name)
        answer = self._answer(lambda: self._writer.join(group, standing, new_key))
        self._look()
        return answer

    def admit(self, group: str, member: str, *, key: str) -> Answer:
        """As the service of a group with keys: let somebody in who has this public key, or bring a member a new one.

        What this was opened with must be the service's private key. The member goes on under the epoch of the answer.
        """
        standing = self._standing(group, member)
        return self._answer(lambda: self._writer.admit(group, member, standing, key))

    def decline(self, group: str) -> None:
        """Refuse an offer: the group is not offered again before the next `discover`."""
        try:
            self._directory.decline(group)
        except ValueError as error:
            raise Refused(f"{error}.") from error

    def leave(self, group: str, *, last: int | None = None) -> Answer:
        """Be a member no longer: nothing said after what was sent last, or after `last`, will count."""
        standing = self._standing(group, self.name)
        answer = self._answer(lambda: self._writer.leave(group, standing, last))
        self._look()
        return answer

    def evict(self, group: str, member: str, *, cut: int) -> Answer:
        """Put somebody else out: of what it says only seqs up to the cut still count."""
        standing = self._standing(group, member)
        return self._answer(lambda: self._writer.evict(group, member, 0 if standing is None else standing[0], cut))

    def abandon(self, group: str, first: Id, *, last: int | None = None) -> Answer:
        """Give up on a message that will never come, or on a run of them, from `first` to the seq `last`.

        The position is that of the first stand-in; None where that waits its turn for longer than the answer may take.
        """
        return self._answer(lambda: self._writer.abandon(group, first, first[2] if last is None else last))

    def _standing(self, group: str, name: str) -> Standing | None:
        self._reader.read_on()
        listing = self._reader.catalogue.groups.get(group)
        return None if listing is None else listing.view.get(name)

    def _answer(self, write: Callable[[], Written]) -> Answer:
        """Write a record, then look for it among what was ordered and what was refused."""
        with closing(self._open_reader()) as letters:
            starts = letters.starts(self._dead_letter_topic, at_end=True, timeout_s=0)
            letters.assign(self._dead_letter_topic, starts)
            written = write()
            deadline = time.monotonic() + self.answer_s
            while written.place is not None and time.monotonic() < deadline:
                if not starts and (starts := letters.starts(self._dead_letter_topic, at_end=False, timeout_s=0)):
                    letters.assign(self._dead_letter_topic, starts)
                for letter in _found(letters.read(0), written.place):
                    raise Refused(f"The group refused it ({letter.code}): {letter.reason}")
                records = self._reader.look()
                for _ in self._reader.learn(records):
                    pass
                for ordered in _found(records, written.place):
                    return Answer(written.epoch, ordered.position, written=True)
        return Answer(written.epoch, None, written=written.place is not None)

    # ── leaving off ───────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Let go of Kafka. No group is left by it."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _found(records: list[LogRecord], place: tuple[int, int]) -> Iterator[_Place]:
    """Those that come of the raw record of this place."""
    for record in records:
        found = _place(record.value or b"{}")
        if (found.partition, found.offset) == place:
            yield found
