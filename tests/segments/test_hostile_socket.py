"""Hostile datagrams over a real socket: counted by code, bounded in memory and in answers, good traffic unharmed."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from random import Random, randrange

import psutil
import pytest

from precede.gateway.log_kernel import id_of
from precede.ingest.segment.address import SegmentAddress, read_address
from precede.ingest.segment.link import Link, open_link
from precede.ingest.segment.runner import SegmentRunner
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.events import Delivered, Event, Joined, Offered, RecordRefused
from precede.udfs.peers.fragments import HEAD
from precede.udfs.peers.frames import (
    ANNOUNCEMENT,
    DATA,
    FRAGMENT,
    FRAGMENT_BYTES,
    HEARTBEAT,
    REPAIR,
    REQUEST,
    Codec,
    frame_bytes,
    make_origin,
    segment_number,
    write_heartbeat,
    write_repair,
    write_request,
)
from precede.udfs.peers.notes import Announcement, InLog, JoinAnswer, RefusedByLog, encode
from precede.udfs.peers.repairing import STORE_BYTES_MAX
from precede.udfs.records.messages import Id, Message
from tests.segments.players import until

KEY = b"the key of this segment"
GROUP = "G"
CASES = 200_000 if os.environ.get("PRECEDE_EXPLORE") else 6_000
PER_BATCH = 30
GROWTH_BYTES_MAX = 64 * 1024 * 1024
"""What is forged without a key is kept like what is said: as much at each peer, and its frames."""


class Told:
    """What one peer was told, as far as the test asks for it."""

    def __init__(self) -> None:
        self.kinds: set[type[Event]] = set()
        self.delivered: set[Id] = set()
        self.refused: set[Id | None] = set()

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.kinds.add(type(event))
            if isinstance(event, Delivered) and isinstance(event.record, Message):
                self.delivered.add(id_of(event.record))
            elif isinstance(event, RecordRefused):
                self.refused.add(event.id)


class Members:
    """Three processes' worth of peers on loopback, driven by one runner, all in one group."""

    def __init__(self, key: bytes | None) -> None:
        url = f"udp://239.255.70.90:{randrange(19_000, 20_000)}%lo"
        self.address = read_address(url)
        self.has_key = key is not None
        self.runner = SegmentRunner()
        self.told: dict[str, Told] = {}
        self.links: dict[str, Link] = {}
        for name in ("ann", "bob", "cem"):
            told = self.told[name] = Told()
            self.links[name] = open_link(self.address, name, told.take, key=key)
            self.runner.add(self.links[name])
        with self.runner.use(self.links["ann"]) as now_ms:
            self.links["ann"].segment.create(GROUP, {"order": "fifo"}, now_ms)
        for name in ("bob", "cem"):
            until(lambda name=name: self.has(name, Offered), 10, str)  # type: ignore[misc]
            with self.runner.use(self.links[name]) as now_ms:
                self.links[name].segment.join(GROUP, now_ms)
        until(lambda: all(self.has(name, Joined) for name in self.links), 10, str)
        self.said: list[Id] = []

    def has(self, name: str, kind: type[Event]) -> bool:
        return kind in self.told[name].kinds

    def say(self) -> None:
        """Each says something."""
        for link in self.links.values():
            with self.runner.use(link) as now_ms:
                self.said.append(link.segment.send(GROUP, b'"%d"' % len(self.said), now_ms=now_ms))

    def unknown(self, name: str) -> set[Id]:
        """What was said and is neither delivered to one of them, nor refused there, nor held."""
        told = self.told[name]
        with self.runner.use(self.links[name]):
            held = {(one.sender, one.epoch, one.seq) for one in self.links[name].segment.held(GROUP)}
        return set(self.said) - told.delivered - told.refused - held

    def is_settled(self) -> bool:
        """With a key all have all. Without one, a forged record can take a name or a seq, and that is told."""
        if self.has_key:
            return all(told.delivered == set(self.said) for told in self.told.values())
        return not any(map(self.unknown, self.links))

    def why(self) -> str:
        """What is missing where, and what was counted."""
        missing = {name: sorted(self.unknown(name))[:5] for name in self.links}
        return f"missing {missing}, counted {self.counts()}"

    def counts(self) -> dict[str, int]:
        """What was counted, over all of them."""
        found: dict[str, int] = {}
        for link in self.links.values():
            for name, count in self.runner.counts(link).items():
                found[name] = found.get(name, 0) + count
        return found


@pytest.fixture(params=[KEY, None], ids=["with a key", "without a key"])
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    found = Members(request.param)
    yield found
    found.runner.close()


class Attacker:
    """Hears what is sent on the segment, and sends what it likes."""

    def __init__(self, address: SegmentAddress) -> None:
        self.target = address.host, address.port
        self.codec = Codec(segment_number(address.name))
        self.chance = Random(8)
        self.sent_bytes = 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.target)
        self.socket.setsockopt(
            socket.IPPROTO_IP,
            socket.IP_ADD_MEMBERSHIP,
            socket.inet_aton(address.host) + socket.inet_aton("127.0.0.1") + struct.pack("@i", 1),
        )
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        self.socket.setblocking(False)
        self.heard: list[bytes] = []

    def listen(self) -> None:
        """Keep some of what is there."""
        while True:
            try:
                datagram = self.socket.recv(65_536)
            except BlockingIOError:
                return
            if len(self.heard) < 2_000:
                self.heard.append(datagram)

    def send(self, datagram: bytes) -> None:
        self.sent_bytes += len(datagram)
        self.socket.sendto(datagram, self.target)

    def changed(self) -> bytes:
        """An honest datagram as it was, or with some bytes changed, cut off, or noise."""
        chance = self.chance
        if chance.random() < 0.1:
            return chance.randbytes(chance.randrange(1, 3_000))
        datagram = bytearray(chance.choice(self.heard))
        for _ in range(chance.randrange(4)):
            datagram[chance.randrange(len(datagram))] = chance.randrange(256)
        return bytes(datagram[: chance.randrange(1, len(datagram) + 1)] if chance.random() < 0.2 else datagram)

    def forged(self, victim: bytes) -> bytes:
        """A datagram by the rules, of an origin of its own, that claims or asks for something."""
        chance = self.chance
        origin = make_origin(chance.choice([b"one same", chance.randbytes(8)]), 1)
        seq = chance.randrange(1, 10**6)
        frames = [
            frame_bytes(DATA, seq, b"\x01G" + chance.choice([b"{", b'{"group":"G"}', b'{"group":"H","sender":"e"}'])),
            frame_bytes(REPAIR, seq, write_repair(victim, DATA, b"\x01Gforged")),
            frame_bytes(REQUEST, 0, write_request([(victim, 1, 300)])),
            frame_bytes(HEARTBEAT, 10**9, write_heartbeat(1, [])),
            frame_bytes(ANNOUNCEMENT, seq, self.announced()),
            frame_bytes(FRAGMENT, seq, HEAD.pack(DATA, 0, 300, chance.getrandbits(32)) + bytes(FRAGMENT_BYTES)),
        ]
        return self.codec.encode(origin, [chance.choice(frames)])

    def announced(self) -> bytes:
        """What processes say of themselves and of groups, and what only gateways may say, from one that is none."""
        name = f"eve {self.chance.randrange(1_000)}"
        note = self.chance.choice(
            [
                Announcement(name, False, True, []),
                Announcement(
                    name, False, False, [GroupInfo(name, b'{"group":"H","kind":"create"}', {name: (1, False)})]
                ),
                JoinAnswer(GROUP, "ann", 1, name, 10**15),
                InLog(GROUP, name, b"{}", [("ann", 1, 10**6)]),
                RefusedByLog(GROUP, ("ann", 1, 1), "fenced", "It is not."),
            ]
        )
        return encode(note)


@pytest.mark.timeout(1_200)
def test_hostile_datagrams_are_counted_and_harm_no_one(members: Members) -> None:
    attacker = Attacker(members.address)
    for _ in range(20):
        members.say()
        time.sleep(0.01)
    attacker.listen()
    assert attacker.heard
    before, memory = members.counts(), psutil.Process().memory_info().rss
    victim = members.links["ann"].segment.broadcast.origin
    honest_bytes = 0
    for number in range(CASES // PER_BATCH):
        for _ in range(PER_BATCH):
            attacker.send(attacker.changed() if attacker.chance.random() < 0.6 else attacker.forged(victim))
        if number % 4 == 0:
            members.say()
            honest_bytes += 3 * 150
        time.sleep(0.005)
        attacker.listen()
    until(members.is_settled, 120, members.why, every_s=1)
    found = {name: count - before.get(name, 0) for name, count in members.counts().items()}
    refused = {"forged"} if members.has_key else {"bad_body", "unknown_kind", "not_from_log", "bad_create"}
    assert {"runt", "foreign", "other_segment", "truncated", "copies"} | refused <= {
        name for name, count in found.items() if count
    } | ({"truncated"} if "forged" in refused else set())
    most = GROWTH_BYTES_MAX if members.has_key else len(members.links) * (GROWTH_BYTES_MAX + STORE_BYTES_MAX)
    assert psutil.Process().memory_info().rss - memory < most + 500 * len(members.said)
    assert found["sent_bytes"] <= 10 * attacker.sent_bytes + 10 * honest_bytes + 100_000
    attacker.socket.close()
