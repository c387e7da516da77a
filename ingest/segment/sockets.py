"""The one place that opens the socket of a segment, and that knows what networks do to it.

A socket hears only what is sent to its group on its interface. What it sends goes out of that interface, comes back to
all sockets of this machine, and passes no router. A network that goes away makes sending fail for a while: the
datagram is lost, as on the way, and counted. An interface that was removed and is there again is joined again.
"""

import errno
import socket
import struct

from precede.ingest.segment.address import SegmentAddress, interface_of
from precede.udfs.errors import Refused

BUFFER_BYTES = 4 * 1024 * 1024
DATAGRAM_BYTES_MAX = 2_048
"""More than any datagram of a segment; what is longer is cut, and dropped as not one of them."""
PACKET_BYTES_MAX = 1_452 + 28
"""What an interface must carry: the largest datagram, with the headers of IPv4 and UDP."""
IPV6_MORE_BYTES = 20

# Names that Python's socket module lacks; the numbers are Linux's.
SO_RCVBUFFORCE, SO_SNDBUFFORCE, SO_MEMINFO = 33, 32, 55
MEMINFO_DROPS = 8
IP_MTU_DISCOVER, IP_MULTICAST_ALL, PMTUDISC_DO = 10, 49, 2
IPV6_MTU_DISCOVER, IPV6_MULTICAST_ALL = 23, 29


class SegmentSocket:
    """The socket of one process on one segment. Sending and receiving never block and never raise."""

    def __init__(self, address: SegmentAddress) -> None:
        self.address = address
        self.counts: dict[str, int] = {}
        """Datagrams and bytes received and sent, and what could not be sent, by the system's name of the error."""
        self.received = self.received_bytes = self.sent = self.sent_bytes = 0
        self.trouble: str | None = None
        """Why nothing can be sent at the moment, as far as is known."""
        self._interface = interface_of(address)
        self._level = socket.IPPROTO_IPV6 if address.is_ipv6 else socket.IPPROTO_IP
        try:
            self._socket = socket.socket(socket.AF_INET6 if address.is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
        except OSError as error:
            if address.is_ipv6 and error.errno == errno.EAFNOSUPPORT:
                raise Refused("This machine has no IPv6: take an IPv4 address.") from error
            raise Refused(f"No socket can be opened for the segment {address}: {error.strerror}.") from error
        try:
            self._check_size()
            self._open()
        except BaseException:
            self._socket.close()
            raise

    @property
    def interface(self) -> str:
        return self._interface.name

    def _check_size(self) -> None:
        needs = PACKET_BYTES_MAX + (IPV6_MORE_BYTES if self.address.is_ipv6 else 0)
        mtu = self._interface.mtu
        if mtu is not None and mtu < needs:
            raise Refused(
                f"The interface {self.interface} carries packets of at most {mtu:,} bytes, and the"
                f" segment {self.address} needs {needs:,}: raise its MTU, or name another interface."
            )

    def _open(self) -> None:
        one, own = self._socket, self.address
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for forced, asked in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                one.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)  # only an administrator may
            except OSError:
                one.setsockopt(socket.SOL_SOCKET, asked, BUFFER_BYTES)
        if own.is_ipv6:
            one.setsockopt(self._level, socket.IPV6_V6ONLY, 1)
            one.setsockopt(self._level, socket.IPV6_MULTICAST_HOPS, 1)
            one.setsockopt(self._level, socket.IPV6_MULTICAST_LOOP, 1)
            one.setsockopt(self._level, IPV6_MTU_DISCOVER, PMTUDISC_DO)
            one.setsockopt(self._level, IPV6_MULTICAST_ALL, 0)
        else:
            one.setsockopt(self._level, socket.IP_MULTICAST_TTL, 1)
            one.setsockopt(self._level, socket.IP_MULTICAST_LOOP, 1)
            one.setsockopt(self._level, IP_MTU_DISCOVER, PMTUDISC_DO)
            one.setsockopt(self._level, IP_MULTICAST_ALL, 0)  # or it hears what others joined on other interfaces
        try:
            one.bind(self._target)
        except OSError as error:
            raise Refused(_why_not_bound(own, error)) from error
        try:
            self._join()
        except OSError as error:
            raise Refused(
                f"The segment {own} cannot be joined on the interface {self.interface}: {error.strerror}. Check that it"
                " is up, can do multicast and has an address, or name another one."
            ) from error

    @property
    def _target(self) -> tuple[str, int] | tuple[str, int, int, int]:
        own = self.address
        return (own.host, own.port, 0, self._interface.index) if own.is_ipv6 else (own.host, own.port)

    def _join(self) -> None:
        index = self._interface.index
        if self.address.is_ipv6:
            group = socket.inet_pton(socket.AF_INET6, self.address.host)
            self._socket.setsockopt(self._level, socket.IPV6_MULTICAST_IF, index)
            self._socket.setsockopt(self._level, socket.IPV6_JOIN_GROUP, group + struct.pack("@i", index))
            return
        # On loopback the system finds no address to send from by itself; elsewhere it may change.
        own = socket.inet_aton("127.0.0.1") if self._interface.is_loopback else bytes(4)
        group = socket.inet_aton(self.address.host)
        self._socket.setsockopt(self._level, socket.IP_MULTICAST_IF, bytes(4) + own + struct.pack("@i", index))
        self._socket.setsockopt(self._level, socket.IP_ADD_MEMBERSHIP, group + own + struct.pack("@i", index))

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """The next datagram, if one is there."""
        try:
            datagram = self._socket.recv(DATAGRAM_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError as error:  # the interface went down, or a router answered what was sent before
            self._count(error)
            return None
        self.received += 1
        self.received_bytes += len(datagram)
        return datagram

    def send(self, datagram: bytes) -> None:
        """Send to all; what cannot be sent is lost."""
        try:
            self._socket.sendto(datagram, self._target)
        except OSError as error:
            self._count(error)
            return
        self.trouble = None
        self.sent += 1
        self.sent_bytes += len(datagram)

    def check(self) -> None:
        """To be called now and then: joins again where the interface was removed and is there again."""
        try:
            index = socket.if_nametoindex(self.interface)
        except OSError as error:
            self._count(error)
            return
        if index == self._interface.index:
            return
        self._interface.index = index
        try:
            self._join()
        except OSError as error:
            self._count(error)
            self._interface.index = 0  # try again

    def dropped(self) -> int:
        """How many datagrams the system dropped because this process did not take them in time."""
        try:
            told = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (MEMINFO_DROPS + 1))
        except OSError:
            return 0
        found: int = struct.unpack_from("@I", told, 4 * MEMINFO_DROPS)[0]
        return found

    def close(self) -> None:
        """Leave the segment."""
        self._socket.close()

    def _count(self, error: OSError) -> None:
        name = errno.errorcode.get(error.errno or 0, "unknown")
        self.counts[name] = self.counts.get(name, 0) + 1
        self.trouble = error.strerror


def _why_not_bound(address: SegmentAddress, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {address.port} of the segment {address} is in use by a program that does not share it: end that"
            " program, or choose another port for all peers of the segment."
        )
    if error.errno == errno.EACCES:
        return f"The system does not allow port {address.port} of the segment {address}: choose one from 1024 on."
    return f"The segment {address} cannot be opened: {error.strerror}."
