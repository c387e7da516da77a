"""`precede replay` against a plain loop of json.loads and json.dumps over the same lines.

Each side is one computing thread, so processor time is measured: it excludes other load on the machine.
"""

import gc
import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench import traffic
from bench.figures import Figure, Report, by_turns, ratio
from bench.stage import Stage
from precede.udfs.holdback import OWN_KEY, Holdback

PLAIN = """\
import json, sys
with open(sys.argv[1]) as lines:
    for line in lines:
        sys.stdout.write(json.dumps(json.loads(line)) + "\\n")
"""
CHAIN_S_MAX = 1.0


def run(stage: Stage, quick: bool) -> Report:
    """Both as separate processes, then both loops in this one; and a chain that arrives backwards."""
    count, groups, length, repeats = (2_000, 10, 1_000, 1) if quick else (200_000, 1_000, 100_000, 7)
    lines = [value for _, value in traffic.whole(groups, count)]
    path = stage.folder / "messages.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    processes = by_turns(
        {
            "precede replay": partial(_process, count, path, ["-m", "precede", "replay"]),
            "json loop": partial(_process, count, path, ["-c", PLAIN]),
        },
        repeats,
    )
    loops = by_turns({"kernel": partial(_kernel, lines), "json loop": partial(_json, lines)}, repeats)
    backwards = [value for _, value in reversed(traffic.chain(length))]
    chain_s = by_turns({"kernel": lambda: length / _kernel(backwards)}, repeats)["kernel"]
    return Report(
        "replay",
        f"{count:,} s_b messages of {groups:,} groups, 30 % out of order",
        [
            ratio("precede replay, whole process", processes, "precede replay", "json loop", target=1.0),
            ratio("the kernel alone, in one process", loops, "kernel", "json loop", target=1.0),
            Figure(
                what=f"a chain of {length:,} arriving backwards",
                value=round(sorted(chain_s)[len(chain_s) // 2], 3),
                unit="s",
                target=CHAIN_S_MAX,
                more_is_better=False,
            ),
        ],
    )


def _process(count: int, path: Path, command: list[str]) -> float:
    """Messages per second of processor time, from start to end of a process that writes to a file."""
    with path.with_suffix(".out").open("wb") as out:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command, str(path)], stdout=out, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    with path.with_suffix(".out").open("rb") as out:
        assert sum(1 for _ in out) == count, "not every message came out"
    return count / took_s


def _kernel(lines: list[bytes]) -> float:
    holdback = Holdback()
    receive = holdback.receive
    delivered = 0
    gc.disable()  # like `precede replay` and the stream
    began = time.process_time()
    for number, line in enumerate(lines):
        receive(line, OWN_KEY, 0, number, 0)
        if number % 100 == 0:
            delivered += len(holdback.ordered)
            holdback.clear()
    took_s = time.process_time() - began
    gc.enable()
    assert delivered + len(holdback.ordered) == len(lines), "not every message came out"
    return len(lines) / took_s


def _json(lines: list[bytes]) -> float:
    texts = [line.decode() for line in lines]
    written = 0
    gc.disable()
    began = time.process_time()
    for text in texts:
        written += len(json.dumps(json.loads(text)))
    took_s = time.process_time() - began
    gc.enable()
    return len(texts) / took_s
