"""Whether a group takes what `precede send` writes: asked once for each sender and group, before its first message.

The owner records of the job tell how it finds the partition of a group, and its default order; the group's first record
in the log is its `create`, if it has one. Who may not read these is not refused for that.
"""

from contextlib import suppress

import msgspec

from precede.ingest.epochs import created_as
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import Owner, read_progress
from precede.udfs.codes import BAD_STAMP, MISSING_STAMP
from precede.udfs.errors import AccessDenied, Refused
from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import DEFAULT_PARTITIONER
from precede.udfs.records.published import lenient_reader


class Stream(msgspec.Struct, frozen=True):
    """Where the job writes what is made of a raw topic."""

    ordered_topic: str
    progress_topic: str


class _Letter(msgspec.Struct):
    code: str
    reason: str


_read_letter = lenient_reader(_Letter)


def check_fit(
    bootstrap: Address | str, topic: str, group: str, record: bytes, *, partitioner: str, stream: Stream
) -> None:
    """Raise Refused if the group would never deliver such a record, or nothing that is sent by this partitioner."""
    owner = None
    with suppress(AccessDenied):
        owner = _owner(bootstrap, topic, stream)
    used = partitioner if owner is None else owner.partitioner or DEFAULT_PARTITIONER
    if used != partitioner:
        raise Refused(
            f"The job finds the partition of a group by {used}, and this would send by {partitioner}, so the job would"
            f' refuse what is sent (wrong_partition): set `partitioner = "{used}"`.'
        )
    created = None
    with suppress(AccessDenied):
        created = created_as(bootstrap, topic, group, partitioner=partitioner)
    named = None if created is None else created.options.order
    order = named if isinstance(named, str) else None if owner is None else owner.order
    if order in ORDERS:
        _check_stamp(group, order, record)


def _owner(bootstrap: Address | str, topic: str, stream: Stream) -> Owner | None:
    """The job's owner record, if a job has written one for this raw topic."""
    found = describe(bootstrap, [stream.progress_topic]).get(stream.progress_topic)
    if found is None:
        return None
    owner = read_progress(bootstrap, found, stream.ordered_topic, settled=False).any_owner
    return owner if owner is not None and owner.raw_topic == topic else None


def _check_stamp(group: str, order: str, record: bytes) -> None:
    """Raise Refused if the kernel misses something in the stamp of this record."""
    kernel = Holdback(order=order)
    kernel.receive(record, group.encode(), 0, 0, 0)
    for letter in map(_read_letter, kernel.dead):
        if letter.code in (MISSING_STAMP, BAD_STAMP):
            raise Refused(
                f"{group} has the order {order}, and `precede send` writes only what a message answers: the group would"
                f" refuse it ({letter.code}: {letter.reason.rstrip('.')}). Send with precede.Member, which knows the"
                " stamps of every order."
            )
