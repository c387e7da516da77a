"""One peer as a process, for the benchmarks: it says so much in a second, and notes when each message came.

    python -m bench.segment.speaker '{"url": ..., "name": ..., ...}'

It prints `ready` once it is in the group with all others, waits for a line that names the time to begin, prints how
much it has said, waits for a line with how much all have said, and prints what it found as JSON. Times are those of the
monotonic clock, which all processes of a machine share.
"""

import gc
import sys
from array import array
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from typing import Any

import msgspec

import precede
from precede.demo.lossy import lose_what_segments_receive
from precede.udfs.errors import Refused
from precede.udfs.peers.broadcast import Broadcast
from precede.udfs.peers.events import Delivered
from precede.udfs.records.messages import Message
from tests.segments.network import end_with_parent

GROUP = "bench"
STEP_S = 0.001
START_S_MAX = 60.0
DATA = b'"data":"'
STAMP_BYTES = 20


class Task(msgspec.Struct, kw_only=True):
    """What one process is to do."""

    url: str
    name: str
    peers: int
    per_s: float = 0.0
    seconds: float = 0.0
    record_bytes: int = 125
    order: str = "fifo"
    loss: float = 0.0
    key: str | None = None
    """The file of a private key, if records are signed."""
    segment_key: str | None = "the key of the benchmarks"
    keys: dict[str, str] = {}
    """The public key of each member, where records are signed."""
    wait_s: float = 10.0
    """How long to wait for what others said, after the last own message."""
    is_first: bool = False
    burst: bool = False
    """Whether to send as fast as it is taken, for `seconds`."""
    at_most_s: float = 1e9
    """When to stop, even if there is more to say."""


class Found(msgspec.Struct, kw_only=True):
    """What one process saw."""

    name: str
    sent: int
    delivered: dict[str, int]
    """Messages by sender, the own ones included."""
    ms: list[float]
    """How long each message of the others took: the quantiles of QUANTILES."""
    began_s: float
    last_sent_s: float
    last_delivered_s: float
    longest_ms: float
    refused: int
    """How often a message had to wait until the others could follow."""
    cpu_s: float
    counts: dict[str, int]
    frames: int
    repairs: int
    asked: int


QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Speaker:
    """One process of the benchmark: a program that opens a `precede.Segment`, and speaks and listens by its `Peer`."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task = task
        self.times = array("d")
        self.delivered: dict[str, int] = {}
        self.last_s = 0.0
        key = None
        if task.segment_key is not None:
            key = folder / "segment.key"
            key.write_text(task.segment_key.encode().hex())
            key.chmod(0o600)
        self.segment = precede.Segment(task.url, task.name, segment_key=key, key=task.key, state=folder / "state")
        self.peer = self._enter()

    def _enter(self) -> precede.Peer:
        """Create the group or join it, and wait until all are in it."""
        segment, task = self.segment, self.task
        until = monotonic() + START_S_MAX
        if task.is_first:
            more: dict[str, Any] = {"keys": task.keys} if task.keys else {}
            peer = segment.create(GROUP, order=task.order, **more)
        else:
            while GROUP not in [one.group for one in segment.discover(wait_s=0.02)]:
                assert monotonic() < until, f"no group was offered to {task.name}"
            peer = segment.join(GROUP)
        while len(peer.members) != task.peers:
            assert monotonic() < until, f"{task.name} sees {peer.members}"
            self._listen(peer, 0.02)
        return peer

    @property
    def broadcast(self) -> Broadcast:
        """What is below it, for its counts."""
        return self.segment._process._segment.broadcast

    def _listen(self, peer: precede.Peer, seconds: float) -> None:
        """Note when each message came, for this time."""
        until = monotonic() + seconds
        delivered, times, own = self.delivered, self.times, self.task.name
        while True:
            events = peer.next_events(max(0.0, until - monotonic()))
            now_s = monotonic()
            for event in events:
                if not isinstance(event, Delivered) or not isinstance(event.record, Message):
                    continue
                self.last_s = now_s
                sender = event.record.sender
                if sender != own:
                    at = event.value.find(DATA) + len(DATA)
                    times.append(now_s - int(event.value[at : at + STAMP_BYTES]) / 1e9)
                delivered[sender] = delivered.get(sender, 0) + 1
            if now_s >= until:
                return

    def talk(self, begin_s: float) -> tuple[int, int, float]:
        """Say what is to be said, from this time on; returns how much, how often it had to wait, and when it ended."""
        task, peer = self.task, self.peer
        count = 10**9 if task.burst else int(task.per_s * task.seconds)
        padding = "x" * max(0, task.record_bytes - self._frame_bytes() - STAMP_BYTES)
        sent = refused = 0
        while (left_s := begin_s - monotonic()) > 0:
            self._listen(peer, min(0.01, left_s))
        last_s = begin_s
        until = begin_s + (task.seconds if task.burst else task.at_most_s)
        while sent < count and monotonic() < until:
            due = count if task.burst else min(count, int((monotonic() - begin_s) * task.per_s) + 1)
            try:
                for _ in range(min(due - sent, 64)):
                    # the time at which it was due, so that waiting for the others counts
                    said_s = monotonic() if task.burst else begin_s + sent / task.per_s
                    peer.send(f"{int(said_s * 1e9):0{STAMP_BYTES}}{padding}")
                    sent += 1
                    last_s = monotonic()
            except Refused:
                refused += 1
            self._listen(peer, STEP_S)
        return sent, refused, last_s

    def _frame_bytes(self) -> int:
        """How many bytes a record has beside its data."""
        id_ = {"group": GROUP, "sender": self.task.name, "epoch": 10**9, "seq": 10**4}
        return len(msgspec.json.encode(id_)) + len(b',"data":""')

    def finish(self, expected: int) -> None:
        """Wait until all that was said is here."""
        until = monotonic() + self.task.wait_s
        while sum(self.delivered.values()) < expected and monotonic() < until:
            self._listen(self.peer, 0.02)


def main() -> None:
    end_with_parent()
    task = msgspec.json.decode(sys.argv[1], type=Task)
    if task.loss:
        lose_what_segments_receive(task.loss)
    with TemporaryDirectory(prefix="precede-bench-") as folder:
        perform(task, Path(folder))


def perform(task: Task, folder: Path) -> None:
    """What the processes do together, told line by line."""
    speaker = Speaker(task, folder)
    print("ready", flush=True)
    begin_s = float(sys.stdin.readline())
    gc.collect()
    before_s = process_time()
    before = speaker.segment.counts()
    broadcast = speaker.broadcast
    frames, repairs, asked = broadcast.sending.sent_frames, broadcast.repairing.sent, broadcast.asking.entries_sent
    sent, refused, last_sent_s = speaker.talk(begin_s)
    print(sent, flush=True)
    expected = int(sys.stdin.readline())
    speaker.finish(expected)
    counts = {name: count - before.get(name, 0) for name, count in speaker.segment.counts().items()}
    took = sorted(1_000 * one for one in speaker.times)
    found = Found(
        name=task.name,
        sent=sent,
        delivered=speaker.delivered,
        ms=[round(took[int(len(took) * share)], 3) if took else 0.0 for share in QUANTILES],
        began_s=begin_s,
        last_sent_s=last_sent_s,
        last_delivered_s=speaker.last_s,
        longest_ms=round(took[-1], 3) if took else 0.0,
        refused=refused,
        cpu_s=round(process_time() - before_s, 3),
        counts={name: count for name, count in counts.items() if count},
        frames=broadcast.sending.sent_frames - frames,
        repairs=broadcast.repairing.sent - repairs,
        asked=broadcast.asking.entries_sent - asked,
    )
    print(msgspec.json.encode(found).decode(), flush=True)
    sys.stdin.readline()  # others may still need a frame of this process
    speaker.segment.close()


if __name__ == "__main__":
    main()
