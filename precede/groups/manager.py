"""Lists and changes the groups of a log for one process: the documents' GroupManager (M2MC, chapter 8).

    with precede.Groups("ann") as groups:
        for offer in groups.discover():
            print(offer.group, offer.order, list(offer.members))
        groups.create("travel", order="causal", closed=True, members=["ann", "bob"])
        groups.join("chess")
        print(groups.members("chess"))
        groups.leave("chess")

The log itself answers requests for groups: its ordered records show all created groups and their current members.
Each group that this process is not in is offered once. `discover` is the document's advertisement: after it, declined
groups are offered once more. Joining and leaving are records in the group's own sequence, so every member sees them
between the same two messages.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec

from precede.client_settings import Config, client_settings
from precede.ingest.extras import need
from precede.ingest.group_records import Writer, Written
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import LogReader, open_reader
from precede.ingest.producer import Publisher
from precede.ingest.sending import log_of
from precede.ingest.signing import key_in
from precede.reading.from_delta import DeltaRows
from precede.streaming.places.place import Place
from precede.udfs.codes import FENCED
from precede.udfs.errors import Closed, Refused, Rejected
from precede.udfs.member.knowledge import read_without_data
from precede.udfs.peers.catalogue import Catalogue, Listing
from precede.udfs.peers.directory import Directory, RowState
from precede.udfs.peers.views import IN, Standing
from precede.udfs.records.identifiers import as_description
from precede.udfs.records.messages import Id, LogRecord
from precede.udfs.records.published import lenient_reader

ANSWER_S = 30.0
POLL_S = 0.2


class _Head(msgspec.Struct):
    """The fields that show whether the rest of an ordered record is needed."""

    group: str
    order: str
    position: int
    kind: str = "message"
    destination: str | None = None


_head = lenient_reader(_Head)


class CatalogueReader:
    """Keeps a catalogue of all groups up to date with the ordered topic."""

    def __init__(
        self, bootstrap: Address | str, topic: str, *, client: Literal["confluent", "kafka-python"] = "confluent"
    ) -> None:
        self.catalogue = Catalogue()
        self.cut_off: set[str] = set()
        """Groups whose first records are no longer in the topic; their earlier changes of members are unknown."""
        self._topic = topic
        self._reader = open_reader(client, bootstrap)
        self._assigned = False

    def read_on(self) -> list[Listing]:
        """Read to the end; returns the groups that are new, or whose members have changed."""
        changed: dict[str, Listing] = {}
        for records in self._batches():
            for _, listing in self.learn(records):
                changed[listing.group] = listing
        return list(changed.values())

    def poll(self) -> list[LogRecord]:
        """The next ordered records; empty if none came for a moment."""
        if not self._assigned:
            starts = self._reader.starts(self._topic, at_end=False, timeout_s=POLL_S)
            if not starts:
                return []
            self._reader.assign(self._topic, starts)
            self._assigned = True
        return self._reader.read(POLL_S)

    def learn(self, records: list[LogRecord]) -> Iterator[tuple[LogRecord, Listing]]:
        """Take in the records; returns those with news about a group, and the group."""
        for record in records:
            listing = self._learn(record)
            if listing is not None:
                yield record, listing

    def close(self) -> None:
        self._reader.close()

    def _batches(self) -> Iterator[list[LogRecord]]:
        while True:
            records = self.poll()
            yield records
            if not records and (not self._assigned or self._reader.at_end()):
                return

    def _learn(self, record: LogRecord) -> Listing | None:
        if record.value is None:
            return None
        try:
            head = _head(record.value)
            if head.position > 1 and head.group not in self.catalogue.groups:
                self.cut_off.add(head.group)
            whole = msgspec.structs.asdict(head) if head.kind == "message" else read_without_data(record.value)
        except msgspec.DecodeError as error:
            raise Refused(
                f"{self._topic} holds a record that precede did not write, at offset {record.offset}: {error}."
            ) from error
        return self.catalogue.learn(whole)


def catalogue_of_delta(root: Place, storage: Mapping[str, str]) -> Catalogue:
    """The same from the table `deliveries`, which keeps what the topic may have dropped."""
    need("delta", "Reading Delta tables")
    from deltalake.exceptions import DeltaError

    folder = root / "deliveries"
    try:
        table = DeltaRows(folder, storage)
    except (DeltaError, OSError) as error:
        raise Refused(f"There is no readable table {folder}; name the `delta` folder of the job.") from error
    catalogue = Catalogue()
    for row in table.select('"record"', ("kind", "!=", "message"), then='ORDER BY "position"'):
        catalogue.learn(read_without_data(row["record"].encode()))
    heads = '"group", "order", "destination"'
    for row in table.select(f'{heads}, max("position") AS "position"', then=f"GROUP BY {heads}"):
        catalogue.learn(row)
    return catalogue


class Outcome(NamedTuple):
    """The outcome of a record that this process wrote."""

    epoch: int
    position: int | None
    """Its position in the group's sequence; None if no answer came in time, or nothing was written."""
    written: bool
    """Whether a record was written: a member need not join again."""


class _Place(msgspec.Struct):
    """The fields that show which raw record an ordered record or a dead letter comes from."""

    partition: int = -1
    offset: int = -1
    position: int | None = None
    code: str = ""
    reason: str = ""


_place = lenient_reader(_Place)


class Groups:
    """The groups of a log as one name sees them, and its operations on them.

    Settings are found as by `follow`, the key and the partitioner too. `partitioner` is the job's setting: in another
    partition than it says, the job refuses what is sent here.
    To open it, and every method that reads or writes, raises Unreachable if no broker answered, and AccessDenied if the
    broker rejected the credentials or an access rule is missing. Refused means that something must be changed first:
    the state file, the key or a topic cannot be used, a group is not there or is there already, or the group refused
    the record. A method that writes also raises Unconfirmed if Kafka did not confirm the record.
    """

    def __init__(
        self,
        name: str,
        *,
        config: Config = None,
        bootstrap: Address | str | None = None,
        raw_topic: str | None = None,
        ordered_topic: str | None = None,
        dead_letter_topic: str | None = None,
        state: str | Path | None = None,
        key: str | Path | None = None,
        answer_s: float = ANSWER_S,
        client: Literal["confluent", "kafka-python"] = "confluent",
        partitioner: str | None = None,
    ) -> None:
        self.name = name
        self.answer_s = answer_s
        """How long to wait for the job to order what is sent here; 0 means not at all."""
        settings = client_settings(
            config,
            bootstrap=bootstrap,
            raw_topic=raw_topic,
            ordered_topic=ordered_topic,
            dead_letter_topic=dead_letter_topic,
            key=key,
            partitioner=partitioner,
        )
        where, raw = settings.bootstrap, settings.raw_topic
        log = log_of(
            where,
            raw,
            partitions=settings.partitions,
            replicas=settings.replicas,
            say=partial(warnings.warn, stacklevel=4),
        )
        by, confirm_s = settings.partitioner, settings.confirm_s
        self._publisher = Publisher(where, topic=raw, linger_ms=0, partitioner=by, confirm_s=confirm_s)
        file = None if state is None else Path(state)
        self._writer = Writer(self._publisher, log, file, name, key_in(settings.key), senders=settings.state)
        self._directory = Directory(name)
        self._is_closed = False
        self._catalogue_reader = CatalogueReader(where, settings.ordered_topic, client=client)
        self._dead_letter_topic = settings.dead_letter_topic
        self._open_reader: Callable[[], LogReader] = lambda: open_reader(client, where)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def discover(self) -> list[Listing]:
        """Every group that this name is not in, each once, including declined ones."""
        self._read_on()
        self._directory.advertise()
        return self.offers()

    def offers(self) -> list[Listing]:
        """New groups that were not offered yet."""
        self._read_on()
        groups = self._reader.catalogue.groups
        offers = self._directory.receive(one.info for one in groups.values())
        return [groups[one.group] for one in offers]

    def _read_on(self) -> None:
        """Read on, and take from the log which groups this name is in."""
        self._reader.read_on()
        for listing in self._reader.catalogue.groups.values():
            if self.name in listing.view:
                is_in = listing.view[self.name][1] is IN
                if is_in or self._directory.rows.get(listing.group) is RowState.MEMBER:
                    self._directory.remember(listing.info)

    def all(self) -> list[Listing]:
        """Every group, by name."""
        self._reader.read_on()
        groups = self._reader.catalogue.groups
        return [groups[group] for group in sorted(groups)]

    def mine(self) -> list[str]:
        """The groups this name is in."""
        return [listing.group for listing in self.all() if self.name in listing.members]

    def members(self, group: str) -> dict[str, int]:
        """The current members, each with its epoch; of an open group, those that joined."""
        self._reader.read_on()
        return self._listing(group).members

    def _listing(self, group: str) -> Listing:
        listing = self._reader.catalogue.groups.get(group)
        if listing is None:
            raise Refused(f"There is no group {group}, as far as the job has ordered the log.")
        return listing

    # ── changing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def create(
        self,
        group: str,
        *,
        order: str | None = None,
        members: Iterable[str] | None = None,
        description: str | None = None,
        **options: Any,
    ) -> Outcome:
        """Create a group, by default with this name as its only member; options are those of the `create` record.

        `description` says in at most 1,000 characters what the group is about; everyone who lists groups sees it.
        Raises ValueError if it is longer.
        """
        told = as_description(description)
        self._reader.read_on()
        if group in self._reader.catalogue.groups:
            raise Refused(f"There is a group {group} already: join it, or choose another name.")
        chosen = {
            name: value for name, value in {"order": order, "description": told, **options}.items() if value is not None
        }
        first = [self.name] if members is None else list(members)
        return self._answer(lambda: self._writer.create(group, members=first, options=chosen))

    def join(self, group: str, *, new_key: str | None = None) -> Outcome:
        """Become a member, with an epoch never used before; a current member stays as it is.

        A group that does not exist yet begins with this, open and in the default order. With `new_key`, a public key,
        this name starts a new epoch and uses that key from then on; the key given to this object signs for it.
        """
        standing = self._standing(group, self.name)
        answer = self._answer(lambda: self._writer.join(group, standing, new_key))
        self._read_on()
        return answer

    def admit(self, group: str, member: str, *, key: str) -> Outcome:
        """As the service of a group with keys: admit a member with this public key, or give a member a new key.

        This object must have been opened with the service's private key. The member uses the epoch of the answer.
        """
        standing = self._standing(group, member)
        return self._answer(lambda: self._writer.admit(group, member, standing, key))

    def decline(self, group: str) -> None:
        """Refuse an offer: the group is not offered again before the next `discover`."""
        try:
            self._directory.decline(group)
        except ValueError as error:
            raise Refused(f"{error}.") from error

    def leave(self, group: str, *, last: int | None = None) -> Outcome:
        """Stop being a member: messages after the last one sent, or after `last`, will not count."""
        standing = self._standing(group, self.name)
        try:
            answer = self._answer(lambda: self._writer.leave(group, standing, last))
        except Rejected as rejected:
            if rejected.code != FENCED:  # with that code it has left before
                self._writer.undo_leave(group)
            raise
        self._read_on()
        return answer

    def evict(self, group: str, member: str, *, cut: int) -> Outcome:
        """Remove another member: only its seqs up to `cut` still count."""
        standing = self._standing(group, member)
        return self._answer(lambda: self._writer.evict(group, member, 0 if standing is None else standing[0], cut))

    def abandon(self, group: str, first: Id, *, last: int | None = None) -> Outcome:
        """Abandon a message that will never come, or a range of them, from `first` to the seq `last`.

        The position is that of the first stand-in; None if it is not released within the time for an answer.
        """
        return self._answer(lambda: self._writer.abandon(group, first, first[2] if last is None else last))

    def _standing(self, group: str, name: str) -> Standing | None:
        self._reader.read_on()
        listing = self._reader.catalogue.groups.get(group)
        return None if listing is None else listing.view.get(name)

    def _answer(self, write: Callable[[], Written]) -> Outcome:
        """Write a record, then look for it among what was ordered and what was refused."""
        with closing(self._open_reader()) as refused:
            starts = refused.starts(self._dead_letter_topic, at_end=True, timeout_s=0)
            refused.assign(self._dead_letter_topic, starts)
            written = write()
            deadline = time.monotonic() + self.answer_s
            while written.place is not None and time.monotonic() < deadline:
                if not starts and (starts := refused.starts(self._dead_letter_topic, at_end=False, timeout_s=0)):
                    refused.assign(self._dead_letter_topic, starts)
                for letter in _found(refused.read(0), written.place):
                    raise Rejected(letter.code, letter.reason)
                records = self._reader.poll()
                for _ in self._reader.learn(records):
                    pass
                for ordered in _found(records, written.place):
                    return Outcome(written.epoch, ordered.position, written=True)
        return Outcome(written.epoch, None, written=written.place is not None)

    # ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Disconnect from Kafka, which leaves no group; every other call raises Closed from now on."""
        if not self._is_closed:
            self._is_closed = True
            self._catalogue_reader.close()
            self._publisher.close()

    @property
    def _reader(self) -> CatalogueReader:
        if self._is_closed:
            raise Closed(f"the list of groups of {self.name}")
        return self._catalogue_reader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _found(records: list[LogRecord], place: tuple[int, int]) -> Iterator[_Place]:
    """Those that come from the raw record at this place."""
    for record in records:
        try:
            found = _place(record.value or b"{}")
        except msgspec.DecodeError:
            continue  # written by another program
        if (found.partition, found.offset) == place:
            yield found
