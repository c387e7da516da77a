"""A network of its own: places that hear each other over bridges, with links that can be cut.

    with Network() as network:
        network.bridge("segment")
        network.place("ann", segment="10.70.1.1")
        network.start("ann", ["precede", "peer", ...])
        network.cut("ann", "segment")

Each place is a network namespace. In it a link has the name of its bridge, so a peer names `segment` as its interface.
All namespaces belong to one process that is held by a pipe of this one, so they are gone when this one is, however it
ends. Nothing in them is connected to a network of the machine: no packet leaves. It needs iproute2 and util-linux, and
either the rights of root or user namespaces.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent.parent
HOLDER = "mount -t tmpfs none /run && echo held && exec cat"
PR_SET_PDEATHSIG = 1


@cache
def _ways() -> tuple[list[str], str]:
    """How a network is made here, or nothing and the reason why not."""
    reason = ""
    for way in ([], ["-U", "-r"]):
        command = ["unshare", *way, "-n", "-m", "sh", "-ec", "mount -t tmpfs none /run; ip netns add one; ip link"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except OSError:
            return [], "unshare, of util-linux, is not installed"
        if done.returncode == 0:
            return [*command[:1], *way, "-n", "-m"], ""
        reason = (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    return [], reason


def why_not() -> str:
    """Why there can be no network here, as one sentence; empty if there can be one."""
    _, reason = _ways()
    return reason and (
        f"This machine lets no test make a network of its own ({reason}), so all processes share loopback: install "
        "iproute2, and be root or allow user namespaces, to test on links that are cut."
    )


class Network:
    """Bridges, and places with links to them."""

    def __init__(self) -> None:
        way, reason = _ways()
        assert way, reason
        self._holder = subprocess.Popen(
            [*way, "sh", "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"held\n"
        owner = ["--user", "--preserve-credentials"] if "-U" in way else []
        where = f"--wd={HOME}"  # otherwise they begin in the root of the file system, and find no module of the tests
        self._enter = ["nsenter", "--target", str(self._holder.pid), *owner, "--net", "--mount", where]
        self._links: dict[tuple[str, str], str] = {}
        self._places: set[str] = set()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the namespaces go; what still runs in them keeps its own until it ends."""
        for pipe in (self._holder.stdin, self._holder.stdout):
            assert pipe is not None
            pipe.close()
        self._holder.wait(10)

    def bridge(self, name: str) -> None:
        """A segment, to which all links of this name lead; an own address lets no datagram of its own appear on it."""
        self._do(
            f"ip link add {name} type bridge mcast_snooping 0",
            f"ip link set {name} addrgenmode none",
            f"ip link set {name} up",
        )

    def place(self, name: str, **addresses: str) -> None:
        """A place with a link to each of these bridges, under an IPv4 address with 24 bits of network."""
        self._places.add(name)
        self._do(f"ip netns add {name}", f"ip -n {name} link set lo up")
        for bridge, address in addresses.items():
            link = self._links[name, bridge] = f"v{len(self._links)}"
            self._do(
                f"ip link add {link} type veth peer name {bridge} netns {name}",
                f"ip link set {link} addrgenmode none",
                f"ip link set {link} master {bridge}",
                f"ip link set {link} up",
                f"ip -n {name} addr add {address}/24 dev {bridge}",
                f"ip -n {name} addr add fd00::{address.replace('.', ':')}/64 dev {bridge} nodad",
                f"ip -n {name} link set {bridge} up",
            )

    def split(self, one: str, other: str) -> None:
        """Two bridges that are one segment, by a link between them; `cut(one, other)` parts them."""
        self._links[one, other] = f"w{len(self._links)}"
        link, end = self._links[one, other], f"x{len(self._links)}"
        self._do(
            f"ip link add {link} type veth peer name {end}",
            f"ip link set {link} addrgenmode none",
            f"ip link set {end} addrgenmode none",
            f"ip link set {link} master {one}",
            f"ip link set {end} master {other}",
            f"ip link set {link} up",
            f"ip link set {end} up",
        )

    def cut(self, place: str, bridge: str) -> None:
        """Take the bridge's side of a link down: what is sent is lost, and no one is told."""
        self._do(f"ip link set {self._links[place, bridge]} down")

    def heal(self, place: str, bridge: str) -> None:
        """Bring it back."""
        self._do(f"ip link set {self._links[place, bridge]} up")

    def command(self, place: str, command: list[str]) -> list[str]:
        """The command that runs this one in a place."""
        assert place in self._places
        return [*self._enter, "ip", "netns", "exec", place, *command]

    def _do(self, *lines: str) -> None:
        command = [*self._enter, "sh", "-exc", "\n".join(lines)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def end_with_parent() -> None:
    """Called by a child: it is killed when the thread that started it ends, so that nothing outlives a killed test."""
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
