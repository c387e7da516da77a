"""Two jobs of the engine process, each with half of the raw partitions: `python -m bench.peers.two_jobs`.

Its environment is that of one job; it ends with both.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from bench.stage import PARTITIONS
from precede.streaming.raw_partitions import as_text


def main() -> int:
    """Run both until they are stopped; the first exit status that is not 0."""
    half = PARTITIONS // 2
    jobs = [_start(as_text(some)) for some in (range(half), range(half, PARTITIONS))]

    def stop(*_: object) -> None:
        for one in jobs:
            one.terminate()

    signal.signal(signal.SIGTERM, stop)
    return max(one.wait() for one in jobs)


def _start(partitions: str) -> "subprocess.Popen[bytes]":
    cache = Path(os.environ["PRECEDE_CACHE"]).with_name(f"cache-{partitions}")
    own = {"PRECEDE_RAW_PARTITIONS": partitions, "PRECEDE_CACHE": str(cache)}
    return subprocess.Popen([sys.executable, "-m", "precede", "run"], env=os.environ | own)


if __name__ == "__main__":
    sys.exit(main())
