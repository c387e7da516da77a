"""The networks that tests make: places hear each other, a cut is silent and heals, and a filter loses its share."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from precede.demo.lossy import lose
from tests.segments.network import Network, why_not

GROUP, PORT = "239.255.70.80", 17_080

LISTEN = f"""
import socket, struct, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("{GROUP}", {PORT}))
index = socket.if_nametoindex("segment")
member = struct.pack("4s4si", socket.inet_aton("{GROUP}"), bytes(4), index)
receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
print("listening", flush=True)
while True:
    print(receiver.recv(2000).decode(), flush=True)
"""
SAY = f"""
import socket, struct, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
way = struct.pack("4s4si", bytes(4), bytes(4), socket.if_nametoindex("segment"))
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, way)
sender.sendto(sys.argv[1].encode(), ("{GROUP}", {PORT}))
"""


@pytest.fixture
def network() -> Iterator[Network]:
    if sentence := why_not():
        pytest.skip(sentence)
    with Network() as network:
        yield network


def say(network: Network, place: str, text: str) -> None:
    subprocess.run(network.command(place, [sys.executable, "-c", SAY, text]), check=True)


def test_a_cut_link_loses_in_silence_and_heals(network: Network) -> None:
    network.bridge("segment")
    network.place("ann", segment="10.70.1.1")
    network.place("bob", segment="10.70.1.2")
    command = network.command("bob", [sys.executable, "-c", LISTEN])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        say(network, "ann", "before")
        network.cut("bob", "segment")
        say(network, "ann", "while it is cut")
        network.heal("bob", "segment")
        say(network, "ann", "after")
        assert [listener.stdout.readline() for _ in range(2)] == ["before\n", "after\n"]
        listener.kill()


def test_nothing_in_a_network_leads_out_of_it(network: Network) -> None:
    network.bridge("segment")
    network.place("ann", segment="10.70.1.1")
    routes = subprocess.run(network.command("ann", ["ip", "route"]), capture_output=True, text=True, check=True)
    assert routes.stdout.split()[:3] == ["10.70.1.0/24", "dev", "segment"]
    assert len(routes.stdout.splitlines()) == 1
    links = subprocess.run(network.command("ann", ["ip", "-br", "link"]), capture_output=True, text=True, check=True)
    assert [line.split()[0].partition("@")[0] for line in links.stdout.splitlines()] == ["lo", "segment"]


def test_a_network_ends_with_the_process_that_made_it() -> None:
    if sentence := why_not():
        pytest.skip(sentence)
    program = "from tests.segments.network import Network; print(Network()._holder.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        holder = int(maker.stdout.readline())
        maker.kill()
    until = time.monotonic() + 10
    while psutil.pid_exists(holder) and psutil.Process(holder).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_filter_loses_its_share() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        lose(receiver, 0.2)
        arrived = 0
        for _ in range(100):
            for _ in range(50):
                sender.sendto(b"x", receiver.getsockname())
            while True:
                try:
                    receiver.recv(10)
                except BlockingIOError:
                    break
                arrived += 1
    assert 0.76 < arrived / 5_000 < 0.84
