"""Peers on a simulated medium: what recovery, synchronising and discovering cost, beside what the documents print.

The medium loses each datagram for each receiver by chance and delays it by 0.1 to 0.6 ms. One seed decides, so a figure
is the same on every machine.
"""

from collections.abc import Iterator

import msgspec

from bench.figures import Figure, Lookup
from precede.udfs.errors import Refused
from precede.udfs.peers.frames import DATA, KIND_NAMES, Codec
from precede.udfs.peers.synchronising import Synchroniser
from precede.udfs.records.wire import encode_message
from tests.kernel.broadcasting import Broadcasters
from tests.kernel.medium import Medium, Weather
from tests.kernel.segments import GROUP, KEY, Segments

LOSSES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3)
REPAIRS_MAX, REPAIRS_MANY_MAX = 2.5, 5.0
RECOVERY_MS_MAX = 500.0
ROUNDS = 40
ACKNOWLEDGEMENT = encode_message(GROUP, "member-1", 1, 1, data={"ack": ["member-2", 1, 1]}, time=1)
"""A record as a member would send it if each acknowledged each message to all."""


def recovery(quick: bool) -> tuple[list[Figure], Lookup]:
    """How soon everybody has everything after the last message, and what the repairs cost, against loss."""
    seconds = 0.2 if quick else 1.0
    rows: list[list[str]] = []
    figures: list[Figure] = []
    for loss in LOSSES:
        took_ms, per_lost, entries, more_bytes = _recover(8, loss, 500, seconds)
        rows.append([f"{loss:.0%}", f"{took_ms:.0f} ms", f"{per_lost:.2f}", f"{entries:.2f}", f"{more_bytes:.2f}"])
        if loss == 0.2:
            figures += [
                _at_most("simulated, 8 peers, 20 % loss: all there after the last", took_ms, "ms", RECOVERY_MS_MAX),
                _at_most("simulated, 8 peers, 20 % loss: repairs a lost frame", per_lost, "", REPAIRS_MAX),
            ]
    took_ms, per_lost, entries, more_bytes = _recover(20 if quick else 100, 0.2, 4, 0.5)
    rows.append(["20 %, 100 peers", f"{took_ms:.0f} ms", f"{per_lost:.2f}", f"{entries:.2f}", f"{more_bytes:.2f}"])
    figures.append(_at_most("simulated, 100 peers, 20 % loss: repairs a lost frame", per_lost, "", REPAIRS_MANY_MAX))
    columns = ["loss", "all there after", "repairs a lost frame", "requests a lost frame", "bytes sent a byte said"]
    return figures, Lookup("Recovery, simulated: 8 peers, 500 messages/s each", columns, rows)


def _recover(peers: int, loss: float, per_s: float, seconds: float) -> tuple[float, float, float, float]:
    group = Broadcasters(peers, weather=Weather(loss=loss))
    names = list(group.medium.nodes)
    group.talk(names, per_second=per_s, seconds=seconds)
    group.medium.run(seconds * 1_000)
    took_ms = group.medium.run_until(group.all_have_all, 5_000)
    frames = sum(peer.sending.sent_frames for peer in group.peers)
    lost = max(1.0, frames * (1 - (1 - loss) ** (peers - 1)))
    repairs = sum(peer.repairing.sent for peer in group.peers)
    entries = sum(peer.asking.entries_sent for peer in group.peers)
    said = sum(map(len, group.sent))
    return took_ms, repairs / lost, entries / lost, _sent_bytes(group.medium) / said


def acknowledging(quick: bool) -> Lookup:
    """Traffic of one sequence by clocks, beside a scheme in which each member acknowledges each message to all."""
    rows: list[list[str]] = []
    for members, per_s in ((2, 20), (4, 100)) if quick else ((2, 20), (4, 20), (8, 20), (16, 20), (8, 200), (8, 1_000)):
        ours = _lamport(members, per_s)
        plain = _acknowledged(members, per_s)
        both = (f"{each:,.1f} · {size:,.0f}" for each, size in (ours, plain))
        rows.append([str(members), str(per_s), *both, f"{plain[1] / ours[1]:.1f}"])
    columns = [
        *(
            "members",
            "messages/s of each",
            "frames · bytes a message",
            "with acknowledgements to all",
            "times the bytes",
        )
    ]
    return Lookup("One sequence by clocks (lamport), simulated", columns, rows)


def _lamport(members: int, per_s: int) -> tuple[float, float]:
    names = [f"member-{number}" for number in range(members)]
    segments = Segments(*names)
    segments.together(*names, order="lamport")
    segments.run(2_000)
    sent = _sent_bytes(segments.medium)
    overheard: list[bytes] = []
    segments.medium.overheard = overheard
    count = _say_by_turns(segments, names, per_s)
    total = sum(amount for amount, _ in _by_kind(overheard).values())
    assert all(len(segments.delivered(name)) == count for name in names)
    return total / count, (_sent_bytes(segments.medium) - sent) / count


def _say_by_turns(segments: Segments, names: list[str], per_s: int) -> int:
    """Each says ROUNDS short things; then all is delivered everywhere."""
    for _ in range(ROUNDS):
        for name in names:
            segments.say(name, "x" * 40)
            segments.run(1_000 / per_s / len(names))
    segments.run(500)
    return ROUNDS * len(names)


def _acknowledged(members: int, per_s: int) -> tuple[float, float]:
    group = Broadcasters(members)
    names = list(group.medium.nodes)
    message = encode_message(GROUP, "member-1", 1, 1, data="x" * 40, time=1)
    for name in names:
        listens = group.medium.nodes[name]

        def acknowledge(arrivals: list[tuple[bytes, int, bytes]], now_ms: float, name: str = name) -> None:
            for _, _, payload in arrivals:
                if payload == message:
                    group.peer(name).send(DATA, ACKNOWLEDGEMENT, now_ms)
                    group.medium.poke(name)

        listens.on_arrival = acknowledge
    group.medium.run(2_000)
    sent = _sent_bytes(group.medium)
    overheard: list[bytes] = []
    group.medium.overheard = overheard
    for _ in range(ROUNDS):
        for name in names:
            group.say(name, message)
            group.medium.run(group.medium.now_ms + 1_000 / per_s / members)
    group.medium.run(group.medium.now_ms + 500)
    count = ROUNDS * members
    return sum(amount for amount, _ in _by_kind(overheard).values()) / count, (_sent_bytes(group.medium) - sent) / count


def synchronising(quick: bool) -> Lookup:
    """MSP: what a newcomer costs against members and history, and how large a request is that says what is here."""
    rows: list[list[str]] = []
    sizes = ((2, 100), (4, 500)) if quick else ((2, 100), (2, 1_000), (2, 10_000), (8, 1_000), (32, 1_000))
    for members, history in sizes:
        requests, pages, said, took_ms = _newcomer(members, history)
        runs, ids, full = _request_bytes(history)
        cost = f"{took_ms:,.0f} ms", f"{requests:,}", f"{pages:,}", f"{pages / said:.2f}"
        rows.append([str(members), f"{history:,}", *cost, f"{runs:,}", f"{ids:,}", f"{full:,}"])
    columns = [
        *(
            "members",
            "history",
            "synced after",
            "bytes of requests",
            "bytes of pages",
            "bytes of pages a byte of history",
        ),
        *("a later request, by runs", "by a list of full ids", "by the list of messages, as printed"),
    ]
    return Lookup("A newcomer synchronises (MSP), simulated", columns, rows)


def _newcomer(members: int, history: int) -> tuple[int, int, int, float]:
    names = [f"member-{number}" for number in range(members)]
    segments = Segments(*names)
    segments.together(*names, order="s_b")
    for number in range(history):
        while True:
            try:
                segments.say(names[number % members], "x" * 40)
                break
            except Refused:
                segments.run(10)
        if number % 50 == 49:
            segments.run(20)
    segments.run(2_000)
    kept = segments[names[0]].groups[GROUP].sync_schedule.kept
    said = sum(len(value) for _, value in kept.messages.items())
    segments.start("newcomer")
    segments.until(lambda: segments.is_offered("newcomer"))
    overheard: list[bytes] = []
    segments.medium.overheard = overheard
    begun_ms = segments.medium.now_ms
    segments.join("newcomer")
    segments.until(lambda: segments.synced("newcomer"), 60_000)
    took_ms = segments.medium.now_ms - begun_ms
    assert len(segments.delivered("newcomer")) == history
    by_kind = _by_kind(overheard)
    pages = by_kind["page"][1] + by_kind["fragment"][1]
    return by_kind["sync"][1], pages, said, took_ms


def _request_bytes(history: int) -> tuple[int, int, int]:
    """The request of a member that has this history of four senders, in three forms."""
    keeps = Synchroniser("ann", 1, GROUP)
    for number in range(history):
        id_ = (f"member-{number % 4}", 1, number // 4 + 1)
        keeps.kept.store(id_, encode_message(GROUP, *id_, after=[], data="x" * 40))
    encode, messages = msgspec.msgpack.encode, keeps.kept.messages
    return len(encode(keeps.ask())), len(encode(list(messages))), len(encode(list(messages.items())))


def discovering(quick: bool) -> Lookup:
    """GJLP: what it costs that one process asks all others what they are in, against processes and groups."""
    rows: list[list[str]] = []
    for processes, groups in ((2, 1), (4, 4)) if quick else ((2, 1), (8, 1), (16, 1), (4, 20)):
        answers, size, took_ms = _discover(processes, groups)
        rows.append([str(processes), str(groups), str(answers), f"{size:,}", f"{took_ms:.0f} ms"])
    columns = ["processes", "groups, all in all", "announcements", "bytes", "all offered after"]
    return Lookup("A process discovers the groups (GJLP), simulated", columns, rows)


def _discover(processes: int, groups: int) -> tuple[int, int, float]:
    names = [f"member-{number}" for number in range(processes)]
    segments = Segments(*names)
    segments.run(500)
    for number in range(groups):
        group = f"{GROUP}{number}"
        segments[names[0]].create(group, {"order": "s_b"}, segments.medium.now_ms)
        segments.medium.poke(names[0])
        for name in names[1:]:
            segments.until(lambda name=name, group=group: group in segments.offers(name))  # type: ignore[misc]
            segments[name].join(group, segments.medium.now_ms)
            segments.medium.poke(name)
    segments.run(25_000)
    overheard: list[bytes] = []
    segments.medium.overheard = overheard
    begun_ms = segments.medium.now_ms
    segments.start("newcomer")
    segments.until(lambda: len(segments.offers("newcomer")) == groups)
    took_ms = segments.medium.now_ms - begun_ms
    segments.run(500)
    by_kind = _by_kind(overheard)
    return by_kind["announcement"][0], by_kind["announcement"][1] + by_kind["fragment"][1], took_ms


def lookups(quick: bool) -> Iterator[Lookup]:
    """All tables that have no target."""
    yield acknowledging(quick)
    yield synchronising(quick)
    yield discovering(quick)


def _by_kind(datagrams: list[bytes]) -> dict[str, tuple[int, int]]:
    """How many frames of each kind there are, and how many bytes."""
    codec = Codec(7, KEY)
    found: dict[str, tuple[int, int]] = dict.fromkeys(KIND_NAMES.values(), (0, 0))
    for datagram in datagrams:
        for kind, _, body in codec.decode(datagram)[1]:
            amount, size = found[KIND_NAMES[kind]]
            found[KIND_NAMES[kind]] = amount + 1, size + len(body)
    return found


def _sent_bytes(medium: Medium) -> int:
    return sum(node.sent_bytes for node in medium.nodes.values())


def _at_most(what: str, value: float, unit: str, most: float) -> Figure:
    return Figure(what=what, value=round(value, 2), unit=unit, target=most, more_is_better=False)
