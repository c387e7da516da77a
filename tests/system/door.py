"""A proxy in front of a broker that can drop one kind of request or its answer, or make every answer slow."""

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

from precede.local.embedded_broker import HOST, free_port

END_TXN = 26
"""Kafka's request number for committing or aborting a transaction."""


class Door:
    """Passes clients through to the broker; nothing is dropped until a request is chosen."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.behind = free_port()
        """Where the broker will be."""
        self.kept: list[bool] = []
        """For each request without an answer, whether the broker received it."""
        self.slow_s = 0.0
        """How long each answer takes longer, while this is set."""
        self._keep: tuple[int, bool] | None = None

    def __enter__(self) -> "Door":
        threading.Thread(target=self._open, daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._listener.close()

    def keep(self, request: int, *, forward: bool) -> None:
        """Drop the answer to the next request of this kind, and perhaps the request too, then all of its connection."""
        self._keep = request, forward

    def _open(self) -> None:
        while True:
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                outside = socket.create_connection((HOST, self.behind))
            except OSError:
                inside.close()  # the broker has not started yet
                continue
            mute = threading.Event()
            threading.Thread(target=self._requests, args=(inside, outside, mute), daemon=True).start()
            threading.Thread(target=self._answers, args=(outside, inside, mute), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, mute: threading.Event) -> None:
        with suppress(OSError), client, broker, client.makefile("rb") as read:
            while size := read.read(4):
                request = read.read(int.from_bytes(size))
                if self._keep is not None and int.from_bytes(request[:2]) == self._keep[0]:
                    (_, forward), self._keep = self._keep, None
                    mute.set()
                    self.kept.append(forward)
                    if not forward:
                        continue
                broker.sendall(size + request)

    def _answers(self, broker: socket.socket, client: socket.socket, mute: threading.Event) -> None:
        with suppress(OSError), broker, client:
            while answer := broker.recv(65536):
                if self.slow_s:
                    time.sleep(self.slow_s)
                if not mute.is_set():
                    client.sendall(answer)
