"""Reads the groups and their members, from the ordered topic as it grows, or from Delta."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from precede.ingest.extras import need
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import open_reader
from precede.reading.from_delta import DeltaRows
from precede.streaming.places.place import Place
from precede.udfs.errors import Refused
from precede.udfs.member.knowledge import read_without_data
from precede.udfs.peers.catalogue import Catalogue, Listing
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.published import lenient_reader

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
