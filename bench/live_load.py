"""A process that reads live and prints how late the records of bench/load.py came; live.py starts it.

Both processes are on one machine, where the clock that only counts is one for all processes.
"""

import gc
import sys
import time

import msgspec

from bench.load import PATIENCE_S, Times
from precede.ingest.live.reader import LiveReader


class _Made(msgspec.Struct):
    data: int
    """When it was sent, in nanoseconds."""


def main() -> None:
    """Read so many records; print the times of those that were sent after the warm-up."""
    bootstrap, ordered_topic, progress_topic = sys.argv[1:4]
    per_s, warm_s, seconds = map(int, sys.argv[4:7])
    reader = LiveReader(bootstrap, ordered_topic=ordered_topic, progress_topic=progress_topic)
    read = msgspec.json.Decoder(_Made).decode
    total, count, first_ns, live = per_s * (warm_s + seconds), 0, 0, 0
    took_ms: list[float] = []
    last = time.monotonic()
    gc.freeze()
    while count < total:
        outputs = reader.poll_all(0.5)
        now = time.perf_counter_ns()
        for _, value, _, _ in outputs:
            at = read(value).data
            first_ns = first_ns or at
            if at >= first_ns + warm_s * 10**9:
                took_ms.append((now - at) / 1e6)
                live += reader.is_live
        count += len(outputs)
        if outputs:
            last = time.monotonic()
        elif time.monotonic() - last > PATIENCE_S:
            raise SystemExit(f"only {count:,} of {total:,} records came")
    assert live == len(took_ms), f"{len(took_ms) - live} of {len(took_ms)} records were not delivered live"
    reader.close()
    took_ms.sort()
    times = Times(took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100], len(took_ms))
    sys.stdout.buffer.write(msgspec.json.encode(times))


if __name__ == "__main__":
    main()
