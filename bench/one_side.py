"""One of the two trees of `python -m bench beside`: measures what it is asked, with the packages of its own tree.

Run as a file, with the tree as PYTHONPATH. It uses only what every commit has had in one place: `precede.Holdback`, and
of that tree's own benchmarks Stage, order_query.measure_order and exactly_once.measure_precede. A line of standard
input is a question, [what, how many messages], a line of standard output the answer, in messages a second.
"""

import gc
import json
import os
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import Any

BATCH = 100
"""After so many records the kernel's lists are emptied, as the stream does."""


class Tree:
    """The tree that this process has its packages from."""

    def __init__(self, tree: Path, messages: Path) -> None:
        import precede

        home = Path(precede.__file__ or "").resolve()
        assert home.is_relative_to(tree.resolve()), f"precede was found in {home.parent}, not in {tree}"
        self.lines = messages.read_bytes().splitlines()
        self.keys = [json.loads(line)["group"].encode() for line in self.lines]
        self._stage: Any = None

    @cached_property
    def topic(self) -> Any:
        """A raw topic with the messages in it; broker and Spark begin with it."""
        from bench.stage import Stage

        self._stage = Stage()
        settings = self._stage.settings()
        self._stage.send(settings, list(zip(self.keys, self.lines, strict=True)))
        return settings

    def measure(self, what: str, count: int) -> float:
        assert count == len(self.lines)
        if what == "kernel":
            return self._kernel()
        topic = self.topic
        if what == "order-query":
            from bench import order_query

            return float(order_query.measure_order(self._stage, topic, count))
        from bench import exactly_once

        return float(exactly_once.measure_precede(self._stage, topic, count))

    def _kernel(self) -> float:
        """Messages a second of processor time, through the kernel alone."""
        from precede import Holdback

        holdback = Holdback()
        receive = holdback.receive
        delivered = 0
        gc.collect()
        gc.disable()
        began = time.process_time()
        for number, line in enumerate(self.lines):
            receive(line, self.keys[number], 0, number, 0)
            if number % BATCH == 0:
                delivered += len(holdback.ordered)
                holdback.clear()
        took_s = time.process_time() - began
        gc.enable()
        assert delivered + len(holdback.ordered) == len(self.lines), "not every message came out"
        return len(self.lines) / took_s

    def close(self) -> None:
        if self._stage is not None:
            self._stage.__exit__(None, None, None)


def main() -> None:
    """Answer until nothing more is asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed, by Spark too, is no answer
    tree = Tree(Path(sys.argv[1]), Path(sys.argv[2]))
    try:
        for question in sys.stdin:
            print(json.dumps(tree.measure(*json.loads(question))), file=answers, flush=True)
    finally:
        tree.close()


if __name__ == "__main__":
    main()
