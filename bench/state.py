"""The size of groups with nothing held in the state."""

from bench import traffic
from bench.figures import Figure, Report
from bench.stage import Stage
from precede.udfs.holdback import Holdback
from precede.udfs.shard import ShardState, encode_state

GROUP_BYTES_MAX = 100
SENDER_BYTES_MAX = 150


def run(_stage: Stage, quick: bool) -> Report:
    """The same messages with one and with four senders per group: the difference is three senders."""
    count, groups = (5_000, 10) if quick else (1_000_000, 100)
    one, four = (_bytes(groups, count, senders) / groups for senders in (1, 4))
    sender = (four - one) / 3
    return Report(
        "state",
        f"{count:,} s_b messages of {groups:,} groups, 30 % out of order on their way, nothing held at the end",
        [
            _figure("a group, its key included", one - sender, GROUP_BYTES_MAX),
            _figure("a sender, its 16 digests included", sender, SENDER_BYTES_MAX),
            Figure(what="a group of four senders as Spark keeps it", value=round(four, 1), unit="bytes"),
        ],
    )


def _figure(what: str, found: float, most: int) -> Figure:
    return Figure(what=what, value=round(found, 1), unit="bytes", target=most, more_is_better=False)


def _bytes(groups: int, count: int, senders: int) -> int:
    holdback = Holdback()
    for offset, (key, value) in enumerate(traffic.whole(groups, count, senders=senders)):
        holdback.receive(value, key, 0, offset, 1_700_000_000_000 + offset)
        if offset % 10_000 == 0:
            holdback.clear()
    assert not any(holdback.held()), "something is held"
    return len(encode_state(ShardState(0, holdback.dump())))
