"""`python -m tests.faults [WORDS ...]`: plays the crash matrix, or the cases whose name has one of the words.

Each case plays on a real broker, with the job as a separate process, and ends with the judge.
"""

import argparse
import signal
import sys
import tempfile
import time
import traceback
from contextlib import closing, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from precede.local.embedded_broker import Broker
from precede.streaming.settings import Settings
from precede.streaming.spark import jars, session
from precede.streaming.spark.spark_query import SPARK_ENDED
from tests.faults.cases import CASES, Case
from tests.faults.judge import judge
from tests.faults.scene import Scene


def play(case: Case, scene: Scene) -> list[str]:
    """What went wrong; empty if the fault was reached and everything holds."""
    try:
        case(scene)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other cases go on)
        traceback.print_exc()
        return [f"not reached, or not as it must be: {error}"]
    finally:
        if scene.broker.process is None or scene.broker.process.poll() is not None:
            scene.broker.kill()
            scene.broker.start()
    try:
        scene.finish()
        return judge(scene.stream, scene.folder, scene.spark)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other cases go on)
        traceback.print_exc()
        return [f"no way back: {error}"]


def main() -> int:
    """Play the cases, seed by seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="The crash matrix of the stream.")
    parser.add_argument("words", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=3, help="how often each is played, with different seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--away", type=float, default=60.0, help="seconds of a stopped broker or a slow worker")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it and its jobs, like Ctrl-C
    chosen = {name: case for name, case in CASES.items() if not asked.words or any(w in name for w in asked.words)}
    if asked.list or not chosen:
        print(*(chosen or CASES), sep="\n")
        return 0 if chosen else 2
    table = Table("case", "seed", "seconds", "what was found")
    failed, interrupted = 0, False
    with tempfile.TemporaryDirectory(prefix="precede-faults-") as home, Broker(data=Path(home, "broker")) as broker:
        spark = session.start(Settings(tasks=2), jars.ensure("spark"), Path(home, "logs"))
        try:
            for name, seed in ((name, asked.seed + more) for name in chosen for more in range(asked.seeds)):
                began = time.monotonic()
                folder = Path(tempfile.mkdtemp(dir=home))
                with closing(Scene(broker, spark, folder, name, seed, asked.away)) as scene:
                    problems = play(chosen[name], scene)
                failed += bool(problems)
                found = "; ".join(problems[:3]) or "each position once, in order, as replayed, in Delta"
                print(f"{name}, seed {seed}: {found}", file=sys.stderr, flush=True)
                table.add_row(name, str(seed), f"{time.monotonic() - began:.0f}", found)
        except KeyboardInterrupt:
            print("Interrupted: the case that was played and those after it have no verdict.", file=sys.stderr)
            interrupted = True
        with suppress(*SPARK_ENDED):  # the interrupt may have ended all processes
            spark.stop()
    Console(width=max(120, Console().width)).print(table)
    print(f"{failed} of {table.row_count} failed" if failed else f"all {table.row_count} that were played hold")
    return 1 if failed or interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
