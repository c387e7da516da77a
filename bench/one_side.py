"""One of the two trees of `python -m bench beside`: measures on request, with the packages of its own tree.

Run as a file, with the tree as PYTHONPATH. It uses only names that are in the same place in every commit:
`precede.Holdback`, and from that tree's benchmarks Stage, order_query.measure_order and exactly_once.measure_precede. A
line of standard input is a request, [what, how many messages]; a line of standard output is its result, in messages per
second.
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
"""After this many records the kernel's lists are cleared, as in the stream."""


class Tree:
    """The tree that this process imports from."""

    def __init__(self, tree: Path, messages: Path) -> None:
        import precede

        home = Path(precede.__file__ or "").resolve()
        assert home.is_relative_to(tree.resolve()), f"precede was found in {home.parent}, not in {tree}"
        self.lines = messages.read_bytes().splitlines()
        self.keys = [json.loads(line)["group"].encode() for line in self.lines]
        self._stage: Any = None

    @cached_property
    def topic(self) -> Any:
        """A raw topic with the messages; starts the broker and Spark."""
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
        """Messages per second of processor time, through the kernel alone."""
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
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output, such as Spark's, is no answer
    tree = Tree(Path(sys.argv[1]), Path(sys.argv[2]))
    try:
        for question in sys.stdin:
            print(json.dumps(tree.measure(*json.loads(question))), file=answers, flush=True)
    finally:
        tree.close()


if __name__ == "__main__":
    main()
