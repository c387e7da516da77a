"""The address of a segment: `udp://239.255.70.80:17080%eth0`, an IP multicast address, a port, and an interface.

Without `%` and a name it is the interface that this machine's routes choose. IPv6 stands in brackets:
`udp://[ff15::7080]:17080%eth0`.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
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
