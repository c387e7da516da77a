"""The address of a segment, `udp://239.255.70.80:17080%eth0`: an IP multicast address, a port, and an interface.

Without `%` and a name it is the interface that this machine's routes choose, as Linux tells of them. IPv6 stands in
brackets: `udp://[ff15::7080]:17080%eth0`.
"""

import re
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from precede.udfs.errors import Refused

DEFAULT_URL = "udp://239.255.70.80:17080"
_URL = re.compile(r"udp://(?P<host>\[[^\[\]%/]*\]|[^\[\]:%/]*):(?P<port>[0-9]{1,5})(%(?P<interface>[^\s%/,]{1,15}))?")
_WANTED = f"write it as {DEFAULT_URL}%eth0, or with an IPv6 address as udp://[ff15::7080]:17080%eth0"


class SegmentAddress(NamedTuple):
    """Where the peers of a segment speak."""

    host: str
    port: int
    interface: str | None
    """The interface that was named; None for the one of the route."""

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    @property
    def name(self) -> str:
        """What all its peers call the segment, whatever their interfaces are called."""
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return f"udp://{host}:{self.port}"

    def __str__(self) -> str:
        return self.name if self.interface is None else f"{self.name}%{self.interface}"


def read_address(url: str) -> SegmentAddress:
    """Read the address of one segment. Raises Refused."""
    found = _URL.fullmatch(url)
    if found is None:
        raise Refused(f"{url!r} is not the address of a segment: {_WANTED}.")
    try:
        host: IPv4Address | IPv6Address = ip_address(found["host"].strip("[]"))
    except ValueError:
        raise Refused(f"{found['host']} in {url!r} is not an IP address: {_WANTED}.") from None
    if (host.version == 6) != found["host"].startswith("["):
        raise Refused(f"{url!r} is not the address of a segment, as only IPv6 stands in brackets: {_WANTED}.")
    if not host.is_multicast:
        raise Refused(
            f"{host} in {url!r} is not a multicast address: take one from 239.0.0.0 to 239.255.255.255, or ff15::/16."
        )
    port = int(found["port"])
    if not 1 <= port <= 65_535:
        raise Refused(f"The port in {url!r} is {port}, but must lie between 1 and 65535.")
    return SegmentAddress(str(host), port, found["interface"])


def read_addresses(text: str) -> list[SegmentAddress]:
    """Read the addresses of one or more segments, with commas between them. Raises Refused."""
    found = [read_address(url.strip()) for url in text.split(",")]
    twice = next((one for at, one in enumerate(found) if one in found[:at]), None)
    if twice is not None:
        raise Refused(f"The segment {twice} is named twice: name it once.")
    return found


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
