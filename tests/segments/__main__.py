"""The stories of peers, again and again: `make test-segments ARGS="--seeds 5 causal lamport"`.

Each order but `total`, which needs the log, is played with each seed, with the log and without it.
The first story that fails stops the run, and its folder stays.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from shutil import rmtree

from tests.segments.network import why_not
from tests.segments.story import Plan, play

ORDERS = ("causal", "causal_p2p", "s_b", "fifo", "lamport", "two_clock", "object")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.segments", description=__doc__)
    parser.add_argument("orders", nargs="*", choices=[*ORDERS, []], default=[], help="all by default")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds for each order (2)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seconds", type=float, default=40, help="how long they talk (40)")
    parser.add_argument("--loss", type=float, default=0.2, help="the share of datagrams that each receiver loses (0.2)")
    asked = parser.parse_args()
    if sentence := why_not():
        print(sentence)
    for seed in range(asked.first, asked.first + asked.seeds):
        for order in asked.orders or ORDERS:
            folder = Path(tempfile.mkdtemp(prefix="precede-story-"))
            print(f"\n{order}, seed {seed}, in {folder}", flush=True)
            begun = time.monotonic()
            try:
                for has_log in (True, False):
                    print("with the log" if has_log else "without the log", flush=True)
                    (folder / str(has_log)).mkdir()
                    plan = Plan(order, seed, asked.seconds, asked.loss, has_log=has_log)
                    play(folder / str(has_log), plan, say=lambda words: print(words, flush=True))
            except AssertionError as error:
                print(f"Failed: {error}\nIts logs are in {folder}.")
                return 1
            print(f"passed in {time.monotonic() - begun:.0f} s")
            rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
