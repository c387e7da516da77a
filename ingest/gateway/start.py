"""What a gateway begins with: the kernel's state, and what the ordered topic tells of each group.

The ordered topic is read whole only where nothing of it is on the disk (past_file.py), and else from there on, with the
last messages before that.
"""

from typing import NamedTuple

import msgspec

from precede.ingest.gateway.past import Past
from precede.ingest.gateway.past_file import KeptPast, PastFile
from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.live.collection import without_collection
from precede.ingest.live.live_start import LiveStart, NotYet, OtherRules, Place, find_start
from precede.udfs.errors import Refused
from precede.udfs.records.messages import SEQ_MAX


class GatewayStart(NamedTuple):
    """Where the log stands."""

    ordered: Topic
    live: LiveStart
    past: Past


def find_gateway_start(
    bootstrap: Address | str, ordered_topic: str, progress_topic: str, past_file: PastFile
) -> GatewayStart | NotYet:
    """Read what a gateway begins with. Raises Refused where it cannot begin, and Unreachable while Kafka is away."""
    ordered = describe(bootstrap, [ordered_topic]).get(ordered_topic)
    if ordered is None:
        raise Refused(
            f"The topic {ordered_topic} does not exist: start the job first (precede run), which creates the topics, or"
            " name the topics of your stream in the settings."
        )
    found = find_start(Place(bootstrap, ordered, progress_topic, None), {})
    if isinstance(found, OtherRules):
        raise Refused(f"{found.reason.partition(':')[0]}: run the job and the gateway with the same release.")
    if isinstance(found, NotYet):
        return found
    with without_collection():  # records hold no cycles
        return GatewayStart(ordered, found, read_past(bootstrap, ordered, past_file))


def read_past(bootstrap: Address | str, ordered: Topic, past_file: PastFile) -> Past:
    """What the ordered topic tells of each group, with what of it is on the disk. Raises Refused and Unreachable."""
    past = Past()
    kept = past_file.read(ordered.id)
    offsets = dict.fromkeys(range(ordered.partitions), 0)
    if kept is not None:
        past.learn(kept.records)
        offsets = _go_on(bootstrap, ordered, kept)
    for value, key, partition, offset, at_ms in reading.records_from(bootstrap, ordered.name, offsets):
        offsets[partition] = offset + 1
        if key is None or value is None:
            continue
        try:
            past.note_ordered(key, value, at_ms=at_ms)
        except msgspec.DecodeError as error:
            raise Refused(
                f"The ordered topic {ordered.name} holds a record that precede did not write: {error}."
            ) from error
    past.write_to(past_file, ordered.id, offsets)
    return past


def _go_on(bootstrap: Address | str, ordered: Topic, kept: KeptPast) -> dict[int, int]:
    """Where to read on: where the file ends, or at the oldest of the last messages if that is before."""
    begin = reading.offsets_since(bootstrap, ordered.name, ordered.partitions, kept.messages_ms)
    return {
        at: min(kept.offsets.get(at, 0), offset if offset is not None and kept.messages_ms else SEQ_MAX)
        for at, offset in begin.items()
    }
