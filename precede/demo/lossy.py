"""A command of precede that loses datagrams as they arrive: the kernel drops them at the socket, by chance.

    python -m precede.demo.lossy 0.2 peer GROUP NAME ...

Alone because it is a program: the demo of peers and tests start it.

Networks of one machine lose nothing, so a demo or a test has to. The filter is a classic BPF program. Each receiver
draws its own fate for each datagram, as over radio.
"""

import ctypes
import socket
import struct
import sys
from ipaddress import ip_address

SO_ATTACH_FILTER = 26
LOAD_CHANCE = (0x20, 0, 0, 0xFFFFF000 + 56)
"""ld rand: 32 bits of chance."""
JUMP_IF_AT_LEAST = 0x35
PASS, DROP = (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)


def lose(receiver: socket.socket, share: float) -> None:
    """Lose this share of what arrives at a socket."""
    program = [LOAD_CHANCE, (JUMP_IF_AT_LEAST, 0, 1, min(int(share * 2**32), 2**32 - 1)), PASS, DROP]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))
    receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)


def lose_what_segments_receive(share: float) -> None:
    """From now on, each socket of this process that is bound to a multicast address loses this share."""
    bind = socket.socket.bind

    def bind_and_lose(self: socket.socket, address: tuple[object, ...]) -> None:
        bind(self, address)
        if self.type == socket.SOCK_DGRAM and ip_address(str(address[0]).partition("%")[0]).is_multicast:
            lose(self, share)

    socket.socket.bind = bind_and_lose  # type: ignore[method-assign, assignment]


def main() -> None:
    """Run the command."""
    share = float(sys.argv[1])
    if share:
        lose_what_segments_receive(share)
    sys.argv = ["precede", *sys.argv[2:]]
    from precede.command_line import main as precede

    precede()


if __name__ == "__main__":
    main()
