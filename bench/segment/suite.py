"""`make bench ARGS=peers`: peers as processes on loopback and on networks that it makes, and in the simulation.

Each process is a program that opens a `precede.Segment`, and says each message by a call of `Peer.send`: with the state
on disk, the kernel, the checksum and the garbage collector. A message's time runs from the moment at which
it was due to be sent, so that waiting for slow peers counts, until the application of another process has it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench import gateway_rate
from bench.figures import Figure, Lookup, Report
from bench.segment import simulated
from bench.segment.field import CUT, CUT_S, perform, tasks
from bench.segment.speaker import Found
from bench.stage import Stage
from precede.ingest.signing import make_key, public_text
from tests.segments.network import Network, why_not

RECORD_BYTES_MAX = 512 * 1024
P99, LONGEST = 2, -1


def run(stage: Stage, quick: bool) -> Report:
    """All of it."""
    figures: list[Figure] = []
    lookups: list[Lookup] = []
    figures += _steady(quick)
    figures += _loss(quick)
    figures += _large(quick)
    figures += _signed(stage.folder, quick)
    figures += _cut(quick)
    figures += _gateways(stage, quick)
    overload = _overload(quick)
    figures.append(overload[0])
    lookups.append(overload[1])
    recovery = simulated.recovery(quick)
    figures += recovery[0]
    lookups += [recovery[1], *simulated.lookups(quick)]
    return Report(
        "peers",
        "processes on loopback, one fifo group, records of 125 bytes, from when a message is due to its delivery",
        figures,
        lookups,
    )


def _steady(quick: bool) -> Iterator[Figure]:
    """At a steady rate: the 99th percentile, and that nothing is lost."""
    for peers, per_s, most in ((2, 100, None),) if quick else ((4, 5_000, 5.0), (4, 10_000, None), (8, 2_000, 10.0)):
        found = [_found(peers, per_s=per_s, seconds=1.0 if quick else 4.0) for _ in range(1 if quick else 3)]
        yield _at_most(f"p99, {peers} peers at {per_s:,}/s", median(_worst(one, P99) for one in found), "ms", most)
        yield _cores(f"cores a peer, {peers} at {per_s:,}/s", found[0])


def _loss(quick: bool) -> Iterator[Figure]:
    """With datagrams lost at the socket: how soon all is there, and what the repairs cost."""
    peers, per_s, seconds, loss = (2, 50, 1.0, 0.2) if quick else (8, 500, 5.0, 0.2)
    found = _found(peers, per_s=per_s, seconds=seconds, loss=loss)
    after_ms = 1_000 * (max(one.last_delivered_s for one in found) - max(one.last_sent_s for one in found))
    frames = sum(one.frames for one in found)
    lost = max(1.0, frames * (1 - (1 - loss) ** (peers - 1)))
    name = f"{peers} peers at {per_s}/s, {loss:.0%} loss"
    yield _at_most(f"{name}: all there after the last", max(after_ms, 0.1), "ms", 500.0)
    yield _at_most(f"{name}: repairs a lost frame", sum(one.repairs for one in found) / lost, "", 2.5)


def _large(quick: bool) -> Iterator[Figure]:
    """A record of the largest size."""
    for loss, most in ((0.0, 50.0), (0.05, 150.0)):
        size = RECORD_BYTES_MAX - 64
        found = _found(
            2 if quick else 4, per_s=0.5, seconds=2.0 if quick else 10.0, loss=loss, record_bytes=size, only_first=True
        )
        yield _at_most(f"a record of 512 KiB, {loss:.0%} loss", _worst(found, 0), "ms", most)


def _signed(folder: Path, quick: bool) -> Iterator[Figure]:
    """Every record signed and verified."""
    peers, per_s = (2, 50) if quick else (4, 1_000)
    keys: dict[str, str] = {}
    files: list[str] = []
    for number in range(peers):
        path = folder / f"peer-{number}-{time.monotonic_ns()}.key"
        keys[f"peer-{number}"] = public_text(make_key(path))
        files.append(str(path))
    asked = tasks(peers, per_s=per_s, seconds=1.0 if quick else 8.0, keys=keys)
    for task, file in zip(asked, files, strict=True):
        task.key = file
    found = _complete(perform(asked))
    yield _at_most(f"p99, {peers} peers at {per_s:,}/s, signed", _worst(found, P99), "ms", None)
    yield _cores(f"cores a peer, {peers} at {per_s:,}/s, signed", found)


def _cut(quick: bool) -> Iterator[Figure]:
    """Half of the peers are cut off for five seconds, by a link that is taken down."""
    if sentence := why_not():
        print(sentence)
        return
    peers, per_s, cut_s = (2, 20, 0.5) if quick else (8, 200, CUT_S)
    healed_s = 0.0

    with Network() as network:
        for bridge in ("one", "other"):
            network.bridge(bridge)
        network.split("one", "other")
        asked = tasks(peers, interface="", per_s=per_s, seconds=CUT + cut_s)
        for number, task in enumerate(asked):
            bridge = "one" if number < peers // 2 else "other"
            network.place(task.name, **{bridge: f"10.70.1.{number + 1}"})
            task.url += bridge

        def meanwhile(begin_s: float) -> None:
            nonlocal healed_s
            time.sleep(max(0.0, begin_s + CUT - time.monotonic()))
            network.cut("one", "other")
            time.sleep(max(0.0, begin_s + CUT + cut_s - time.monotonic()))
            network.heal("one", "other")
            healed_s = time.monotonic()

        found = _complete(perform(asked, network=network, meanwhile=meanwhile))
    took_s = max(one.last_delivered_s for one in found) - healed_s
    yield _at_most(f"a cut of half of {peers} peers for {cut_s:g} s heals within", max(took_s, 0.001), "s", 5.0)


def _gateways(stage: Stage, quick: bool) -> Iterator[Figure]:
    """What one gateway carries up, and how often two publish a message."""
    alone = gateway_rate.measure(stage, per_s=100 if quick else 0, seconds=1 if quick else 4)
    yield Figure(
        what="records/s that one gateway carries up",
        value=round(alone.per_s),
        unit="/s",
        target=None if quick else 10_000,
    )
    for per_s in (100,) if quick else (500, 2_000):
        both = gateway_rate.measure(stage, gateways=2, per_s=per_s, seconds=1 if quick else 4)
        what = f"publications a message, two gateways, {gateway_rate.PEERS * per_s:,} messages/s"
        yield _at_most(what, both.publications, "", 1.2)


def _overload(quick: bool) -> tuple[Figure, Lookup]:
    """Offered against delivered: what cannot be taken slows the senders down, and all that was sent arrives."""
    peers, seconds = (2, 0.5) if quick else (4, 2.0)
    most = _rate(_found(peers, seconds=seconds, burst=True))
    rows: list[list[str]] = []
    shares: list[float] = []
    for times in (0.5, 1.0, 2.0, 3.0):
        found = _found(peers, per_s=times * most / peers, seconds=seconds, at_most_s=seconds)
        delivered, refused = _rate(found), sum(one.refused for one in found)
        shares.append(delivered / most)
        rows.append([f"{times:g}", f"{times * most:,.0f}/s", f"{delivered:,.0f}/s", f"{refused:,}"])
    columns = ["times capacity", "offered by all", "delivered to each", "times a sender had to wait"]
    figure = Figure(
        what=f"{peers} peers, three times as much as they can take: delivered, to their capacity",
        value=round(shares[-1], 2),
        target=0.7,
        sides={"three times": round(shares[-1] * most), "capacity": round(most)},
    )
    return figure, Lookup(f"Overload, {peers} peers", columns, rows)


def _found(peers: int, *, only_first: bool = False, **more: Any) -> list[Found]:
    asked = tasks(peers, **more)
    if only_first:
        for task in asked[1:]:
            task.per_s = 0.0
    return _complete(perform(asked))


def _complete(found: list[Found]) -> list[Found]:
    """Everything that was said was delivered to everyone, once."""
    said = {one.name: one.sent for one in found if one.sent}
    for one in found:
        assert one.delivered == said, f"{one.name} has {one.delivered} of {said}"
    return found


def _rate(found: list[Found]) -> float:
    """How many messages a second were delivered to each, from the beginning to the last one."""
    return sum(one.sent for one in found) / max(one.last_delivered_s - one.began_s for one in found)


def _worst(found: list[Found], quantile: int) -> float:
    """This quantile at the peer where it is largest."""
    return max(one.ms[quantile] for one in found if one.longest_ms)


def _cores(what: str, found: list[Found]) -> Figure:
    took_s = max(one.last_delivered_s - one.began_s for one in found)
    return Figure(
        what=what, value=round(median(one.cpu_s for one in found) / took_s, 3), unit="cores", more_is_better=False
    )


def _at_most(what: str, value: float, unit: str, most: float | None) -> Figure:
    return Figure(what=what, value=round(value, 3), unit=unit, target=most, more_is_better=False)
