"""What a gateway begins with: the kernel's state, and what the ordered topic tells of each group."""

from typing import NamedTuple

import msgspec

from precede.ingest.gateway.past import Past
from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import describe
from precede.ingest.live.collection import without_collection
from precede.ingest.live.live_start import LiveStart, NotYet, OtherRules, Place, find_start
from precede.udfs.errors import Refused


class GatewayStart(NamedTuple):
    """Where the log stands."""

    live: LiveStart
    past: Past


def find_gateway_start(bootstrap: Address | str, ordered_topic: str, progress_topic: str) -> GatewayStart | NotYet:
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
    past = Past()
    with without_collection():  # records hold no cycles
        for key, value in reading.read_to_end(bootstrap, ordered.name, ordered.partitions):
            if key is not None and value is not None:
                try:
                    past.note_ordered(key, value)
                except msgspec.DecodeError as error:
                    raise Refused(
                        f"The ordered topic {ordered.name} holds a record that precede did not write: {error}."
                    ) from error
    return GatewayStart(found, past)
