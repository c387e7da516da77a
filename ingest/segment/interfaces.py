"""The network interfaces of this machine, as the system tells of them."""

import errno
import fcntl
import socket
import struct

from precede.ingest.segment.address import SegmentAddress
from precede.udfs.errors import Refused

IFREQ = struct.Struct("16s24x")
IFREQ_INT = struct.Struct("16xi")
SIOCGIFADDR, SIOCGIFFLAGS, SIOCGIFMTU = 0x8915, 0x8913, 0x8921
IFF_UP, IFF_LOOPBACK = 0x1, 0x8


class Interface:
    """One interface. What is asked is answered anew each time, because networks come and go."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index

    @property
    def is_up(self) -> bool:
        return bool(self._flags & IFF_UP)

    @property
    def is_loopback(self) -> bool:
        return bool(self._flags & IFF_LOOPBACK)

    @property
    def mtu(self) -> int:
        """The largest packet, in bytes."""
        found: int = IFREQ_INT.unpack_from(_ask(self.name, SIOCGIFMTU))[0]
        return found

    @property
    def address(self) -> str | None:
        """Its IPv4 address."""
        try:
            return socket.inet_ntoa(_ask(self.name, SIOCGIFADDR)[20:24])
        except OSError:
            return None

    @property
    def _flags(self) -> int:
        found: int = struct.unpack_from("16xH", _ask(self.name, SIOCGIFFLAGS))[0]
        return found


def _ask(name: str, request: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return fcntl.ioctl(asking.fileno(), request, IFREQ.pack(name.encode()))


def names() -> list[str]:
    """The names of all interfaces."""
    return [name for _, name in socket.if_nameindex()]


def interface_of(address: SegmentAddress) -> Interface:
    """The interface that an address names, else the one that the routes choose for it. Raises Refused."""
    name = address.interface or _routed(address)
    try:
        return Interface(name, socket.if_nametoindex(name))
    except OSError:
        raise Refused(
            f"There is no network interface {name} for the segment {address}: there are {', '.join(names())}."
        ) from None


def _routed(address: SegmentAddress) -> str:
    """The interface over which this machine would send to the address; nothing is sent to find out."""
    family = socket.AF_INET6 if address.is_ipv6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((address.host, address.port))
            own = asking.getsockname()
    except OSError as error:
        raise Refused(
            f"No route of this machine leads to the segment {address}"
            f" ({errno.errorcode.get(error.errno or 0, 'no error number')}): name an interface, as in"
            f" {address.name}%{names()[-1]}; there are {', '.join(names())}."
        ) from error
    if address.is_ipv6:
        found = next((name for name, text in _ipv6_addresses() if text == _packed(own[0])), None)
    else:
        found = next((name for name in names() if Interface(name, 0).address == own[0]), None)
    if found is None:
        raise Refused(
            f"It cannot be told which interface leads to the segment {address}: name one, as in"
            f" {address.name}%{names()[-1]}; there are {', '.join(names())}."
        )
    return found


def _packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, text.partition("%")[0])


def _ipv6_addresses() -> list[tuple[str, bytes]]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as table:  # noqa: PTH123 (no file of ours)
            rows = [line.split() for line in table]
    except OSError:
        return []
    return [(row[5], bytes.fromhex(row[0])) for row in rows]
