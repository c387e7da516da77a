"""A way to a store that can be shut: new connections are refused then, and those that were open are cut."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
PIECE_BYTES = 65_536


class Gate:
    """Passes everything on to a port of this machine while it is open."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._serve()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shut()

    def shut(self) -> None:
        for one in [self._listener, *self._connections]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._connections.clear()

    def open(self) -> None:
        self._listener = socket.create_server((HOST, self.port))
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it is shut
            while True:
                client, _ = listener.accept()
                store = socket.create_connection((HOST, self._behind))
                self._connections |= {client, store}
                for one, other in ((client, store), (store, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(PIECE_BYTES):
                other.sendall(piece)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
