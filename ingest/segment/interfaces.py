"""The network interfaces and routes of this machine, as Linux tells of them."""

import socket
import struct
from ipaddress import IPv4Address
from pathlib import Path

from precede.ingest.segment.address import SegmentAddress
from precede.udfs.errors import Refused

INTERFACES = Path("/sys/class/net")
IPV4_ROUTES = Path("/proc/net/route")
IPV6_ROUTES = Path("/proc/net/ipv6_route")
IS_LOOPBACK = 0x8
ROUTE_IS_UP, ROUTE_REJECTS = 0x1, 0x200


class Interface:
    """One interface. What it is asked may change, because networks come and go."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index

    @property
    def is_loopback(self) -> bool:
        return bool(int(self._told("flags") or "0", 16) & IS_LOOPBACK)

    @property
    def mtu(self) -> int | None:
        """The largest packet, in bytes; None if the system does not tell."""
        told = self._told("mtu")
        return int(told) if told else None

    def _told(self, what: str) -> str:
        try:
            return (INTERFACES / self.name / what).read_text(encoding="ascii").strip()
        except OSError:
            return ""


def interface_names() -> list[str]:
    """The names of all interfaces."""
    return [name for _, name in socket.if_nameindex()]


def interface_of(address: SegmentAddress) -> Interface:
    """The interface that an address names, else the one of the route to it. Raises Refused."""
    name = address.interface or _routed(address)
    names = ", ".join(interface_names())
    if name is None:
        raise Refused(
            f"No route of this machine leads to the segment {address}: name an interface, as in"
            f" {address.name}%{interface_names()[-1]}; there are {names}."
        )
    try:
        return Interface(name, socket.if_nametoindex(name))
    except OSError:
        raise Refused(f"There is no network interface {name} for the segment {address}: there are {names}.") from None


def _routed(address: SegmentAddress) -> str | None:
    """The interface of the narrowest route to an IPv4 address; for IPv6, where each interface has one, the default."""
    routes = _ipv6_defaults() if address.is_ipv6 else _ipv4_routes(int(IPv4Address(address.host)))
    return min(routes)[1] if routes else None


def _ipv4_routes(target: int) -> list[tuple[tuple[int, int], str]]:
    """The routes to an address, the best one the least."""
    found = []
    for row in _rows(IPV4_ROUTES)[1:]:
        destination, mask = (struct.unpack(">I", struct.pack("=I", int(row[at], 16)))[0] for at in (1, 7))
        if target & mask == destination and _is_usable(row[3]):
            found.append(((-mask, int(row[6])), row[0]))
    return found


def _ipv6_defaults() -> list[tuple[tuple[int, int], str]]:
    return [
        ((0, int(row[5], 16)), row[9])
        for row in _rows(IPV6_ROUTES)
        if int(row[0], 16) == 0 and row[1] == "00" and _is_usable(row[8])
    ]


def _is_usable(flags: str) -> bool:
    return int(flags, 16) & (ROUTE_IS_UP | ROUTE_REJECTS) == ROUTE_IS_UP


def _rows(table: Path) -> list[list[str]]:
    try:
        return [line.split() for line in table.read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
