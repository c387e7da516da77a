"""Segments over real sockets on loopback: what a runner drives, and what it says where the network does not work."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from pathlib import Path
from select import select
from typing import Any

import pytest

from precede.ingest.segment import address as addresses
from precede.ingest.segment.address import read_address
from precede.ingest.segment.sockets import SegmentSocket
from precede.udfs.errors import PrecedeError, Refused
from precede.udfs.peers.events import ViewChanged
from tests.door.segment_links import GROUP, free_port, linked, loopback_url


def test_what_one_says_is_delivered_to_another_over_the_socket() -> None:
    with linked() as here:
        here.open("ann")
        here.open("bob")
        here.create("ann")
        here.join("bob")
        id_ = here.say("ann")
        assert here.until_delivered("bob", id_)
        assert here.until_delivered("ann", id_)
        assert here.told["bob"].of(ViewChanged)[-1].members.keys() == {"ann", "bob"}


def test_large_records_come_through_in_parts() -> None:
    with linked() as here:
        here.open("ann")
        here.open("bob")
        here.create("ann")
        here.join("bob")
        assert here.until_delivered("bob", here.say("ann", b'"' + b"x" * 500_000 + b'"'))


def test_segments_at_one_address_with_other_keys_do_not_hear_each_other() -> None:
    with linked() as here:
        here.open("ann", key=b"a key of 16 bytes")
        here.open("eve", key=b"another 16 bytes!")
        here.open("bob", key=b"a key of 16 bytes")
        here.create("ann")
        here.join("bob")
        assert here.until_delivered("bob", here.say("ann"))
        assert here.told["eve"].events == []
        assert here.runner.counts(here.links["eve"])["forged"] > 0


def test_a_socket_hears_only_the_interface_that_it_joined_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked() as here:
        here.open("ann")  # this machine hears the address on loopback now
        joins = SegmentSocket(here.address)
        monkeypatch.setattr(SegmentSocket, "_join", lambda _self: None)
        joins_nothing = SegmentSocket(here.address)
        assert here.runner.wait_until(lambda _now_ms: joins.receive() is not None, 2)
        assert joins_nothing.receive() is None
        joins.close()
        joins_nothing.close()


def test_a_port_that_another_program_does_not_share_is_refused() -> None:
    port = free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", port))
        with pytest.raises(Refused, match=f"Port {port} of the segment .* is in use by a program that does not share"):
            SegmentSocket(read_address(f"udp://239.255.70.80:{port}%lo"))


@pytest.mark.parametrize(
    ("url", "number", "said"),
    [
        ("udp://[ff15::7080]:17080%lo", errno.EAFNOSUPPORT, "This machine has no IPv6: take an IPv4 address."),
        ("udp://239.255.70.80:17080%lo", errno.EMFILE, "No socket can be opened for .*: Too many open files."),
    ],
)
def test_a_system_that_gives_no_socket_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, url: str, number: int, said: str
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", refused)
    with pytest.raises(Refused, match=said):
        SegmentSocket(read_address(url))


def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(Refused, match=r"There is no network interface nix0 for .*: there are .*lo"):
        SegmentSocket(read_address("udp://239.255.70.80:17080%nix0"))


ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
far 00000000 0102000A 0003 0 0 100 00000000 0 0 0
near 00000000 0102000A 0003 0 0 20 00000000 0 0 0
lan 000000C0 00000000 0001 0 0 0 00FFFFFF 0 0 0
"""


def test_without_an_interface_it_is_that_of_the_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = tmp_path / "route"
    monkeypatch.setattr(addresses, "IPV4_ROUTES", routes)
    monkeypatch.setattr(addresses, "IPV6_ROUTES", tmp_path / "ipv6_route")
    monkeypatch.setattr(socket, "if_nametoindex", lambda _name: 1)
    address, ipv6 = read_address("udp://239.255.70.80:17080"), read_address("udp://[ff15::7080]:17080")
    for table in ("", ROUTES.replace("0003", "0203")):
        routes.write_text(table)
        with pytest.raises(Refused, match=r"No route of this machine leads to .*: name an interface, as in udp://239"):
            addresses.interface_of(address)
    routes.write_text(ROUTES)
    assert addresses.interface_of(address).name == "near"
    routes.write_text(ROUTES + "cast 000000E0 00000000 0001 0 0 0 000000F0 0 0 0\n")
    assert addresses.interface_of(address).name == "cast"
    with pytest.raises(Refused, match="No route of this machine leads to"):
        addresses.interface_of(ipv6)
    none, near = "0" * 32, "fe800000000000000000000000000001"
    (tmp_path / "ipv6_route").write_text(
        f"ff{none[2:]} 08 {none} 00 {none} 00000100 1 0 00000001 lan\n"
        f"{none} 00 {none} 00 {none} ffffffff 1 0 00200200 lo\n"
        f"{none} 00 {none} 00 {near} 00000400 1 0 00000003 near\n"
    )
    assert addresses.interface_of(ipv6).name == "near"


def test_an_interface_that_carries_only_small_packets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precede.ingest.segment.address.Interface.mtu", 1_400)
    with pytest.raises(Refused, match=r"carries packets of at most 1,400 bytes, and .* needs 1,480: raise its MTU"):
        SegmentSocket(read_address(loopback_url()))


def test_a_network_that_drops_multicast_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentSocket, "receive", lambda _self: None)
    with linked() as here, pytest.raises(Refused, match="came back: this network drops multicast") as refused:
        here.open("ann")
    assert "through Kafka" in str(refused.value)


def test_a_network_that_went_away_and_came_back_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked() as here:
        link = here.open("ann")
        here.open("bob")
        here.create("ann")
        here.join("bob")
        sends = socket.socket.sendto

        def down(*_: Any) -> int:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

        monkeypatch.setattr(socket.socket, "sendto", down)
        said = [here.say("ann") for _ in range(20)]
        assert here.runner.wait_until(lambda _now_ms: link.socket.trouble is not None, 5)
        time.sleep(0.2)
        assert here.told["bob"].delivered == []
        monkeypatch.setattr(socket.socket, "sendto", sends)
        assert here.until_delivered("bob", said[-1])
        assert here.told["bob"].delivered == said
        assert here.runner.counts(link)["not_sent_ENETUNREACH"] > 0
        assert link.socket.trouble is None


def test_an_interface_that_was_made_anew_is_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    one = SegmentSocket(read_address(loopback_url()))
    true_index = socket.if_nametoindex("lo")
    monkeypatch.setattr(SegmentSocket, "_join", lambda self: joined.append(self._interface.index))
    one.check()
    assert joined == []
    monkeypatch.setattr(socket, "if_nametoindex", lambda _name: true_index + 100)
    one.check()
    one.check()
    assert joined == [true_index + 100]
    one.close()


def test_threads_may_use_a_segment_at_once() -> None:
    with linked() as here:
        here.open("ann")
        here.open("bob")
        here.create("ann", order="fifo")
        here.join("bob")

        def speak(name: str) -> None:
            for _ in range(200):
                here.say(name)

        threads = [threading.Thread(target=speak, args=(name,)) for name in ("ann", "ann", "bob", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert here.runner.wait_until(
            lambda _now_ms: all(len(here.told[one].delivered) == 800 for one in here.told), 10
        )
        for told in here.told.values():
            ids = told.delivered
            assert len(set(ids)) == 800
            for name in here.links:
                assert [id_[2] for id_ in ids if id_[0] == name] == list(range(1, 401))


def test_a_thread_that_drives_is_relieved_when_it_stops() -> None:
    with linked() as here:
        here.open("ann")
        here.open("bob")
        here.create("ann")
        here.join("bob")
        for _ in range(3):
            id_ = here.say("ann")
            assert here.runner.drive(lambda id_=id_: id_ in here.told["bob"].delivered, 5)  # type: ignore[misc]
            assert id_ in here.told["bob"].delivered
            assert here.until_delivered("bob", here.say("ann")), "no one drives but the runner's own thread"


def test_only_one_thread_drives_at_a_time() -> None:
    with linked() as here:
        here.open("ann")
        done = threading.Event()
        first = threading.Thread(target=here.runner.drive, args=(done.is_set, 5))
        first.start()
        assert here.runner.wait_until(lambda _now_ms: here.runner._drives == 1, 5)
        assert not here.runner.drive(lambda: False, 0.001)
        done.set()
        first.join()


def test_an_error_in_the_thread_is_told_to_whoever_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked() as here:
        link = here.open("ann")

        def broken(_now_ms: float, **_more: bool) -> list[bytes]:
            raise RuntimeError("broken")

        monkeypatch.setattr(link.segment, "due", broken)
        with pytest.raises(PrecedeError, match=r"The segment has stopped because of an error .*RuntimeError: broken"):
            here.runner.wait_until(lambda _now_ms: False, 5)


def test_a_group_that_raises_is_counted_and_said_once_and_the_segment_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a fault of precede")

    with linked() as here:
        bob = here.open("bob")
        here.open("ann")
        here.create("ann")
        here.join("bob")
        monkeypatch.setattr(bob.segment.groups[GROUP], "take_all", broken)
        for _ in range(3):
            here.say("ann")
        assert here.runner.wait_until(lambda _now_ms: bob.counts().get("internal_error", 0) >= 3, 5)
        monkeypatch.undo()
        assert here.until_delivered("bob", here.say("bob"))
    said = [record for record in caplog.records if "an error of its own on the segment" in record.getMessage()]
    assert len(said) == 1
    assert said[0].exc_info is not None
    assert isinstance(said[0].exc_info[1], ZeroDivisionError)


def test_a_link_that_is_removed_just_before_the_thread_waits_for_it_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with linked() as here:
        here.open("ann")
        here.create("ann")
        gone = [here.open("bob")]

        def select_late(files: list[int], *more: Any) -> Any:
            if gone and gone[0].socket.fileno() in files:
                here.runner.remove(gone.pop())
            return select(files, *more)

        monkeypatch.setattr("precede.ingest.segment.runner.select.select", select_late)
        assert here.runner.wait_until(lambda _now_ms: not gone, 5)
        assert here.until_delivered("ann", here.say("ann"))


def test_a_closed_runner_says_so_and_leaves_no_thread_and_no_socket() -> None:
    before = threading.active_count()
    with linked() as here:
        link = here.open("ann")
    assert threading.active_count() == before
    assert link.socket.fileno() == -1
    here.runner.close()
    with pytest.raises(Refused, match="The segment is closed"), here.runner.use(link):
        pass


def test_garbage_sent_to_the_segment_is_counted_and_harms_nothing() -> None:
    with linked() as here:
        here.open("ann")
        here.open("bob")
        here.create("ann")
        here.join("bob")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            for size in (0, 1, 24, 1_400, 9_000):
                one.sendto(os.urandom(size), (here.address.host, here.address.port))
        assert here.until_delivered("bob", here.say("ann"))
        counts = here.runner.counts(here.links["bob"])
        assert counts["runt"] == 2
        assert counts["foreign"] == 3
        assert GROUP in here.links["bob"].segment.groups


def test_a_thread_that_waits_while_the_runner_is_closed_just_ends() -> None:
    with linked() as here:
        here.open("ann")
    here.runner._wait(0.01)  # all descriptors are closed
    assert here.runner.failure is None
