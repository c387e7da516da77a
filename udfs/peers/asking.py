"""Asks for missing frames: after a random delay, so that one of those who miss a frame asks for all of them.

Who hears another one ask for the same puts its own question off. This happens OTHERS_MAX times at most, because the
other one may be a liar whose questions are not answered. A question is repeated until the frame is there or has to be
given up; the requests for frames of one origin are paid from what was heard of that origin (streams.py).
"""

from heapq import heappop, heappush
from itertools import count

from precede.udfs.peers.frames import (
    BUNDLE_BYTES_MAX,
    FRAME,
    PADDING,
    REQUEST,
    REQUEST_ENTRY,
    Chance,
    frame_bytes,
    write_request,
)
from precede.udfs.peers.streams import AMPLIFICATION, CREDIT_BYTES_MAX, MissingFrame, OriginStream, Streams

NOTICE_MS = 3.0
SPREAD_MS = 10.0
"""A gap is asked for NOTICE_MS plus up to SPREAD_MS after it was noticed."""
AGAIN_MS = (25.0, 50.0)
AGAIN_SOON_MAX = 5
"""So often the question is repeated after AGAIN_MS, then after twice as long each time, up to AGAIN_MS_MAX."""
AGAIN_MS_MAX = 500.0
OTHERS_MAX = 2
ROUND_MAX = 256
"""How many entries one round of requests has."""
ROUND_MS = 5.0
"""The pause between two full rounds."""
WANTED_MAX = 2_048
"""How many frames of one origin are asked for at the same time; the rest follows as these come."""
WANTED_IN_ALL_MAX = 16_384
WANTED_SURELY = 128
"""So many frames of an origin are asked for even if those of others are beyond WANTED_IN_ALL_MAX."""
GIVE_UP_MS = 30_000.0
GIVE_UP_ASKED = 8
"""A frame that its origin no longer keeps is given up after so many questions; no one else has answered either."""
NO_CREDIT_MS = 100.0
HOPELESS = 256
"""If so many frames of an origin were asked for and none came, HOPELESS_FRAMES are asked for each NO_CREDIT_MS."""
HOPELESS_FRAMES = 8
DATAGRAM_COST = 60
"""What a request has beside its entries."""
REPAIR_COST = 60
"""What a repair has beside the body of the frame."""
ANSWERED_SHARE = 0.6
"""The share of what this peer says that others may be expected to hear and to count for it."""


class Asking:
    """The questions of one peer."""

    def __init__(self, streams: Streams, chance: Chance) -> None:
        self._streams = streams
        self._chance = chance
        self._due: list[tuple[float, int, OriginStream, list[int]]] = []
        self._ties = count()
        self._wanted = 0
        """How many frames are being asked for, as an upper bound that `_ask` corrects."""
        self._said = 0.0
        """How many bytes of repairs others will grant this peer, as far as it can tell."""
        self._next_round_ms = 0.0
        self.entries_sent = 0
        self.frames_asked = 0
        self.given_up = 0

    def say(self, size: int) -> None:
        """A datagram of this size goes out: others will repair more for it."""
        self._said = min(self._said + AMPLIFICATION * ANSWERED_SHARE * size, CREDIT_BYTES_MAX)

    def notice(self, stream: OriginStream, now_ms: float) -> None:
        """Ask for the gaps of a stream that were not known before."""
        if stream.noticed >= stream.highest:
            return
        in_all = max(WANTED_IN_ALL_MAX - self._wanted, WANTED_SURELY - len(stream.wanted))
        room = min(WANTED_MAX - len(stream.wanted), in_all)
        if room <= 0:
            return
        due_ms = now_ms + NOTICE_MS + self._chance.uniform(0, SPREAD_MS)
        seqs: list[int] = []
        for low, high in stream.runs.gaps(stream.noticed + 1, stream.highest):
            high = min(high, low + room - len(seqs) - 1)
            seqs += range(low, high + 1)
            if len(seqs) >= room:
                stream.noticed = high
                break
        else:
            stream.noticed = stream.highest
        seqs = [seq for seq in seqs if seq not in stream.wanted]
        for seq in seqs:
            stream.wanted[seq] = MissingFrame(now_ms, due_ms)
        self._wanted += len(seqs)
        if seqs:
            heappush(self._due, (due_ms, next(self._ties), stream, seqs))

    def others_ask(self, origin: bytes, first: int, last: int, now_ms: float) -> None:
        """Somebody else asked for these frames."""
        stream = self._streams.get(origin)
        if stream is None or not stream.wanted:
            return
        seqs = range(first, last + 1) if last - first < len(stream.wanted) else list(stream.wanted)
        pause_ms = self._chance.uniform(*AGAIN_MS)
        for seq in seqs:
            wanted = stream.wanted.get(seq)
            if wanted is not None and first <= seq <= last and wanted.others < OTHERS_MAX:
                wanted.others += 1
                wanted.due_ms = max(wanted.due_ms, now_ms + pause_ms)

    def deadline_ms(self) -> float | None:
        return max(self._due[0][0], self._next_round_ms) if self._due else None

    def due(self, now_ms: float) -> list[list[bytes]]:
        """The requests that are due now, as the frames of one datagram each."""
        if now_ms < self._next_round_ms:
            return []
        batches: dict[bytes, tuple[OriginStream, list[int]]] = {}
        while self._due and self._due[0][0] <= now_ms:
            _, _, stream, seqs = heappop(self._due)
            if self._streams.get(stream.origin) is stream:
                batches.setdefault(stream.origin, (stream, []))[1].extend(seqs)
            else:
                self._wanted -= len(stream.wanted)  # it was forgotten
                stream.wanted.clear()
        entries: list[tuple[bytes, int, int]] = []
        expected = 0.0
        for stream, seqs in batches.values():
            if len(entries) >= ROUND_MAX:
                self._next_round_ms = now_ms + ROUND_MS
                heappush(self._due, (self._next_round_ms, next(self._ties), stream, seqs))
                continue
            asked = self._ask(stream, seqs, now_ms)
            ranges = _ranges(asked)
            entries += [(stream.origin, first, last) for first, last in ranges]
            expected += self._pay(stream, len(ranges), len(asked))
            self.frames_asked += len(asked)
            self.notice(stream, now_ms)
        self.entries_sent += len(entries)
        return self._datagrams(entries, expected)

    def _ask(self, stream: OriginStream, seqs: list[int], now_ms: float) -> list[int]:
        """Which of these to ask for now; all that are still missing are put off to their next time."""
        asked: list[int] = []
        later: list[int] = []
        # The same frame may be due twice, where it was denied by its origin and claimed again.
        missing = sorted({seq for seq in seqs if seq in stream.wanted})
        self._wanted -= len(seqs) - len(missing)
        most = ROUND_MAX
        if stream.unanswered >= HOPELESS:
            most = HOPELESS_FRAMES if stream.next_try_ms <= now_ms else 0
        for seq in missing:
            wanted = stream.wanted[seq]
            if wanted.due_ms > now_ms:
                later.append(seq)
            elif self._is_lost(stream, seq, wanted, now_ms):
                self._give_up(stream, seq)
            elif stream.ask_credit < DATAGRAM_COST + REQUEST_ENTRY.size or len(asked) >= most:
                wanted.due_ms = now_ms + (AGAIN_MS[0] if most == ROUND_MAX else NO_CREDIT_MS)
                later.append(seq)
            else:
                asked.append(seq)
                stream.unanswered += 1
                wanted.asked += 1
                wanted.others = 0
        if asked:
            stream.next_try_ms = now_ms + NO_CREDIT_MS
            pause_ms = self._pause_ms(stream.wanted[asked[0]].asked)
            for seq in asked:
                stream.wanted[seq].due_ms = now_ms + pause_ms
            heappush(self._due, (now_ms + pause_ms, next(self._ties), stream, asked))
        if later:
            due_ms = min(stream.wanted[seq].due_ms for seq in later)
            heappush(self._due, (due_ms, next(self._ties), stream, later))
        return asked

    def _pay(self, stream: OriginStream, entries: int, frames: int) -> float:
        """Charge an origin for the questions about it; returns for how many bytes of repairs that is enough."""
        stream.ask_credit -= min(stream.ask_credit, DATAGRAM_COST + entries * REQUEST_ENTRY.size)
        padding = min(stream.ask_credit, frames * (stream.mean_bytes + REPAIR_COST) / (AMPLIFICATION * ANSWERED_SHARE))
        stream.ask_credit -= padding
        return padding * AMPLIFICATION * ANSWERED_SHARE

    def _pause_ms(self, asked: int) -> float:
        pause_ms = self._chance.uniform(*AGAIN_MS)
        return min(pause_ms * 2.0 ** max(0, asked - AGAIN_SOON_MAX), AGAIN_MS_MAX)

    def _is_lost(self, stream: OriginStream, seq: int, wanted: MissingFrame, now_ms: float) -> bool:
        if seq < stream.first_kept and wanted.asked >= GIVE_UP_ASKED:
            return True
        return wanted.since_ms + GIVE_UP_MS <= now_ms

    def _give_up(self, stream: OriginStream, seq: int) -> None:
        """Wait for this frame no longer; what it carried has to come by synchronising."""
        del stream.wanted[seq]
        stream.runs.add(seq)
        self._wanted -= 1
        self.given_up += 1

    def _datagrams(self, entries: list[tuple[bytes, int, int]], expected: float) -> list[list[bytes]]:
        """Requests, and so much padding that those who repair may send what is asked for."""
        per_datagram = (BUNDLE_BYTES_MAX - 100) // REQUEST_ENTRY.size
        parts = [entries[at : at + per_datagram] for at in range(0, len(entries), per_datagram)]
        datagrams = [[frame_bytes(REQUEST, 0, write_request(part))] for part in parts]
        earning = AMPLIFICATION * ANSWERED_SHARE
        short = expected - self._said - earning * sum(len(frames[0]) for frames in datagrams)
        self._said = max(0.0, self._said - expected)
        for frames in datagrams:
            room = BUNDLE_BYTES_MAX - 36 - len(frames[0]) - FRAME.size
            padding = min(int(short / earning), room)
            if padding > 0:
                frames.append(frame_bytes(PADDING, 0, bytes(padding)))
                short -= earning * padding
        return datagrams


def _ranges(seqs: list[int]) -> list[tuple[int, int]]:
    """Growing numbers as (first, last)."""
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] + 1 == seq:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges
