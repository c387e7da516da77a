"""A member under clocks in a hostile log: the kernel judges its records, among those that attackers plant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import json

from precede.ingest.producer import Publisher
from precede.ingest.sender_state import KnownSender, Memory, SenderState
from precede.member import background
from precede.member.background import HeartbeatTask
from precede.member.publishing import MemberPublisher
from precede.udfs.errors import AccessDenied, Refused, Unconfirmed, Unreachable
from precede.udfs.holdback import Holdback
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.signatures import sign
from tests.signing import private, public, publics

WINDOW = 100


class Log(Publisher):
    """A log in memory, and the kernel behind it."""

    def __init__(self) -> None:
        self.kernel = Holdback()
        self.values: list[bytes] = []

    def publish(self, group: str, value: bytes) -> None:
        self.values.append(value)
        self.kernel.receive(value, group.encode(), 0, len(self.values) - 1, 0)

    def flush(self, check: object = None) -> None:
        pass

    @property
    def refused(self) -> list[str]:
        return [json.decode(letter)["code"] for letter in self.kernel.dead]

    def plant(self, by: str | None = None, **fields: Any) -> None:
        value = json.encode({"group": "g", **fields})
        self.publish("g", value if by is None else sign(value, private(by)))


class Ann:
    """The member ann with its clock. It reads the raw log to its end at each turn, and delivered records only when
    `deliver` is called."""

    def __init__(self, tmp_path: Path, *, keys: bool, order: str = "lamport", **options: Any) -> None:
        self.log = Log()
        named = {"keys": publics("ann", "bob", "precede")} if keys else {}
        created = {"order": order, "window": WINDOW, **named, **options}
        self.log.plant(kind="create", options=created, members=["ann", "bob"])
        key: Ed25519PrivateKey | None = private("ann") if keys else None
        state = SenderState(tmp_path / "state.json", Memory())
        self.publisher = MemberPublisher(state, KnownSender("log", "g", "ann"), self.log, key)
        self.heartbeats = HeartbeatTask(self.publisher, "raw", lambda: None, lambda: self.log, heartbeat_s=1e9)
        self.read_without_data = self.handed = 0
        self.deliver()

    def turn(self) -> None:
        new, self.read_without_data = self.log.values[self.read_without_data :], len(self.log.values)
        self.heartbeats.take([LogRecord(value, b"g", 0, 0, 0) for value in new], self.log)

    def deliver(self) -> None:
        new, self.handed = self.log.kernel.ordered[self.handed :], len(self.log.kernel.ordered)
        for record in new:
            self.publisher.observe(json.decode(record))


@pytest.fixture
def ann(tmp_path: Path) -> Callable[..., Ann]:
    return lambda **options: Ann(tmp_path, **options)


both = pytest.mark.parametrize("order", ["lamport", "two_clock"])


@both
def test_forged_records_do_not_move_the_clock_of_a_group_with_keys(ann: Callable[..., Ann], order: str) -> None:
    member = ann(keys=True, order=order)
    for time in (WINDOW, 2 * WINDOW, 3 * WINDOW):
        member.log.plant(sender="bob", seq=1, time=time)
        member.log.plant("mallory", sender="bob", seq=1, time=time)
        member.log.plant("mallory", kind="join", sender="bob", epoch=1, time=time, key=public("mallory"))
        member.turn()
    assert member.publisher.speaker.time < WINDOW
    member.publisher.send(b'"hello"', [], None, None)
    assert member.log.refused == ["forged"] * 9


@both
def test_what_is_signed_by_who_says_it_is_heard_at_once(ann: Callable[..., Ann], order: str) -> None:
    member = ann(keys=True, order=order)
    member.log.plant("bob", sender="bob", seq=1, time=40, clock_ms=0)
    member.turn()
    assert 41 <= json.decode(member.log.values[-1])["time"] <= member.publisher.speaker.time < 45
    assert member.log.refused == []


def test_the_key_that_a_join_brings_is_heard_before_the_join_is_delivered_here(ann: Callable[..., Ann]) -> None:
    member = ann(keys=True)
    member.log.plant("precede", kind="join", sender="cem", time=1, key=public("cem"))
    member.log.plant("cem", sender="cem", seq=1, time=7)
    member.log.plant("bob", kind="join", sender="bob", epoch=1, time=1, key=public("bob2"))
    member.log.plant("bob2", sender="bob", epoch=1, seq=1, time=9)
    member.turn()
    assert member.publisher.speaker.time in (10, 11)
    assert member.log.refused == []


@both
@pytest.mark.parametrize("keys", [True, False])
def test_whatever_a_member_lies_about_time_nobody_elses_word_is_refused_for_it(
    ann: Callable[..., Ann], order: str, keys: bool
) -> None:
    """Bob may sign, but his records here are refused for other reasons, so they have no effect in the group."""
    member = ann(keys=keys, order=order)
    bob = "bob" if keys else None
    member.log.plant(bob, sender="bob", seq=1, time=1, clock_ms=0)
    for time in range(1, 20):
        member.log.plant(bob, sender="bob", seq=1, time=time * WINDOW, clock_ms=0)
        if time % 3:
            continue  # three at once advance the clock further than the group accepts in one step
        member.turn()
        if time % 2 == 0:
            member.publisher.send(b"null", [], None, None)
    assert WINDOW < member.publisher.speaker.time <= 20 * WINDOW
    assert {json.decode(letter)["sender"] for letter in member.log.kernel.dead} == {"bob"}


@pytest.mark.parametrize("time", [WINDOW + 1, 2**53])
def test_a_time_beyond_the_groups_own_window_is_not_followed(ann: Callable[..., Ann], time: int) -> None:
    member = ann(keys=False)
    member.log.plant(sender="bob", seq=1, time=time)
    member.turn()
    assert member.publisher.speaker.time < 5
    assert member.log.refused == ["clock_poison"]


def test_a_time_at_the_edge_of_the_window_is_answered_in_as_many_steps_as_it_takes(ann: Callable[..., Ann]) -> None:
    member = ann(keys=False, window=10)
    member.turn()
    for seq, time in ((1, 10), (2, 20), (3, 30)):
        member.log.plant(sender="bob", seq=seq, time=time)
    for _ in range(5):
        member.turn()
    assert 31 <= member.publisher.speaker.time < 35
    assert member.log.refused == []
    assert [json.decode(record)["seq"] for record in member.log.kernel.ordered[1:]] == [1, 2, 3]


@pytest.mark.parametrize("value", [b"", b"{}", b'{"group":"h","sender":"bob","seq":1,"time":9}', b'{"time":1e2}'])
def test_what_the_kernel_does_not_take_for_a_record_of_the_group_is_not_heard(
    ann: Callable[..., Ann], value: bytes
) -> None:
    member = ann(keys=False)
    member.publisher.hear(value)
    assert member.publisher.speaker.time == 1


class Quiet:
    """A reader of a topic in which nothing is."""

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        return {0: 0}

    def topic_id(self, topic: str) -> str | None:
        return topic

    def assign(self, topic: str, offsets: dict[int, int]) -> None:
        pass

    def read(self, timeout_s: float) -> list[LogRecord]:
        sleep(0.01)
        return []

    def at_end(self) -> bool:
        return True

    def close(self) -> None:
        pass


def test_a_client_that_cannot_be_made_for_a_moment_ends_no_heartbeats(
    ann: Callable[..., Ann], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the function that gives tokens fails once."""
    monkeypatch.setattr(background, "RETRY_S", 0.05)
    member, failures = ann(keys=False), [Unreachable("no token"), AccessDenied("no right"), OSError("no file")]

    def open_reader() -> Quiet:
        if failures:
            raise failures.pop()
        return Quiet()

    beats = HeartbeatTask(member.publisher, "raw", open_reader, lambda: member.log, heartbeat_s=0.05)
    beats.monitor.start()
    deadline = monotonic() + 10.0
    while len(member.log.values) < 4 and monotonic() < deadline:
        sleep(0.02)
    beats.monitor.stop()
    assert [json.decode(value).get("kind") for value in member.log.values[1:4]] == ["heartbeat"] * 3


def test_what_could_not_be_stored_leaves_no_trace_in_what_is_said_next(tmp_path: Path) -> None:
    log = Log()
    log.plant(kind="create", options={"order": "causal_p2p"}, members=["ann", "bob", "cem"])
    publisher = MemberPublisher(
        SenderState(tmp_path / "state.json", Memory()), KnownSender("log", "g", "ann"), log, None
    )
    for record in log.kernel.ordered:
        publisher.observe(json.decode(record))
    (tmp_path / "state.json.new").mkdir()
    with pytest.raises(Refused, match="cannot be written"):
        publisher.send(b'"lost"', [], ["bob"], None)
    (tmp_path / "state.json.new").rmdir()
    assert publisher.send(b'"one"', [], ["cem"], None) == ("ann", 0, 1)
    assert publisher.send(b'"two"', [], ["bob"], None) == ("ann", 0, 2)
    said = [json.decode(value) for value in log.values[1:]]
    assert [record["sent"] for record in said] == [{}, {"cem": [["ann", 0, 1]]}]


def test_a_seq_that_may_be_in_the_log_is_not_freed_by_a_later_refusal(tmp_path: Path) -> None:
    class Failing(Log):
        errors: list[Exception] = []  # noqa: RUF012

        def flush(self, check: object = None) -> None:
            if self.errors:
                raise self.errors.pop(0)

    log = Failing()
    publisher = MemberPublisher(
        SenderState(tmp_path / "state.json", Memory()), KnownSender("log", "g", "ann"), log, None
    )
    log.errors = [Unconfirmed("no answer"), AccessDenied("no right any more")]
    with pytest.raises(Unconfirmed):
        publisher.send(b'"one"', [], None, None)
    with pytest.raises(AccessDenied):
        publisher.retry()
    assert publisher.outbox == [("ann", 0, 1)]
    assert publisher.send(b'"two"', [], None, None) == ("ann", 0, 2)
    assert [json.decode(value)["data"] for value in log.values] == ["one", "one", "one", "two"]


def test_a_new_epoch_begins_with_a_time_that_the_group_takes(ann: Callable[..., Ann]) -> None:
    member = ann(keys=False)
    member.publisher.speaker.stamps.time = 10 * WINDOW  # as an older version kept it
    member.publisher.begin_epoch(1)
    member.publisher.join(brings_key=False)
    assert member.log.refused == []
