"""A peer of the demo: `precede peer --json` as a process that loses datagrams, driven line by line."""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from precede.demo.peer_watch import WatchedPeer
from precede.udfs.records.messages import Id

END_S_MAX = 10.0


class PeerProcess:
    """Tells what it was told into a `WatchedPeer`; it ends with this process, because its input does."""

    def __init__(
        self, watched: WatchedPeer, group: str, url: str, loss: float, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.watched = watched
        self.ids: dict[str, Id] = {}
        """The ids of the own messages, by their text."""
        self.log = folder / f"{watched.name}.log"
        state = str(folder / f"{watched.name}.state")
        arguments = [group, watched.name, "--segment", url, "--state", state, "--order", "s_b", "--json", "--leave"]
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "precede.demo.lossy", str(loss), "peer", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env=dict(environment),
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
            )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_in(self) -> bool:
        """Whether its own view has it."""
        return self.watched.name in self.watched.members

    def say(self, text: str, after: list[Id]) -> None:
        """Say something, perhaps as an answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"data": text, "after": after}) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it leave, and end it if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._reader.join(END_S_MAX)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        watched = self.watched
        match event["event"]:
            case "delivered":
                record = event["record"]
                id_ = record["sender"], record.get("epoch", 0), record["seq"]
                if record["sender"] == watched.name:
                    self.ids[record["data"]] = id_
                watched.delivered[id_] = record["data"]
                watched.longest_ms = max(watched.longest_ms, event["waited_ms"])
            case "held":
                watched.held += 1
            case "view":
                watched.members = event["members"]
