"""Checks the kernel's tests: breaks the kernel in a copy, one small thing at a time, and sees whether tests fail.

    make test-mutations ARGS="--count 50 --seed 7 --only group"

Each mutation swaps a comparison, an `and`, a sign, a number or a truth value, or drops a statement. A mutation that no
test detects is printed with its line: either the change makes no difference, or a test is missing. A detected mutation
takes some seconds, an undetected one a minute. The tests first run on the unchanged copy: if they failed there, every
mutation would seem detected.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = ("udfs", "tests", "precede", "streaming", "ingest", "bench", "docs", "pyproject.toml", "CONTRIBUTING.md")
NOT_THE_KERNEL = {"shard.py", "__init__.py"}
SECONDS_MAX = 240  # also detects a mutation that makes the kernel run for ever
SLOW = "not 100_000 and not 50_000 and not however_long and not hypothesis"

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


class Mutation(NamedTuple):
    """The `number`th possible mutation in a file."""

    path: Path
    number: int


class Breaker(ast.NodeTransformer):
    """Counts the possible mutations in a file, and applies one."""

    def __init__(self, target: int = -1) -> None:
        self.target = target
        self.count = 0
        self.said = ""

    def _hit(self, node: ast.AST, what: str) -> bool:
        hit = self.count == self.target
        self.count += 1
        if hit:
            self.said = f"line {getattr(node, 'lineno', 0)}: {what}"
        return hit

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for at, operator in enumerate(node.ops):
            swapped = SWAPS.get(type(operator))
            if swapped is not None and self._hit(node, f"{ast.unparse(node)}: {swapped.__name__}"):
                node.ops[at] = swapped()  # type: ignore[call-overload]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._hit(node, f"{ast.unparse(node)}: and for or"):
            node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        swapped = SWAPS.get(type(node.op))
        if swapped is not None and self._hit(node, f"{ast.unparse(node)}: {swapped.__name__}"):
            node.op = swapped()  # type: ignore[assignment]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._hit(node, f"{ast.unparse(node)}: without the not"):
            return node.operand
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._hit(node, f"{node.value} turned round"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int) and self._hit(node, f"{node.value} + 1"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def _left_out(self, node: ast.stmt) -> ast.AST:
        self.generic_visit(node)
        if self._hit(node, f"left out: {ast.unparse(node)}"):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self._left_out(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._left_out(node)

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        return self._left_out(node)

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return self._left_out(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._left_out(node) if isinstance(node.targets[0], ast.Attribute) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node  # annotations are the wire types; tests/kernel/test_wire.py checks them


def mutations(only: str) -> Iterator[Mutation]:
    """All mutations, or those in files whose name contains `only`."""
    for path in sorted((ROOT / "udfs").rglob("*.py")):
        if path.name in NOT_THE_KERNEL or only not in path.name:
            continue
        counter = Breaker()
        counter.visit(ast.parse(path.read_text()))
        yield from (Mutation(path.relative_to(ROOT), number) for number in range(counter.count))


def noticed(mutation: Mutation, copy: Path) -> tuple[bool, str]:
    """Whether the tests fail with this mutation, and its description."""
    path = copy / mutation.path
    source = path.read_text()
    breaker = Breaker(mutation.number)
    path.write_text(ast.unparse(ast.fix_missing_locations(breaker.visit(ast.parse(source)))))
    try:
        return run(copy).returncode != 0, breaker.said
    except subprocess.TimeoutExpired:
        return True, breaker.said
    finally:
        path.write_text(source)


def run(copy: Path) -> subprocess.CompletedProcess[str]:
    """The tests of the kernel, in the copy alone, up to the first that fails."""
    tests = ["tests/scenarios", "tests/kernel"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", SLOW, *tests]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=copy, env=alone, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def main() -> int:
    """Try some mutations and print which were not detected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=30, help="how many to try, drawn by the seed; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only files whose name contains this")
    chosen = parser.parse_args()
    found = list(mutations(chosen.only))
    random.Random(chosen.seed).shuffle(found)
    tried = found[: chosen.count] if chosen.count else found
    print(f"{len(found)} mutations, {len(tried)} of them tried")
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        unbroken = run(copy)
        if unbroken.returncode != 0:
            print(f"The tests fail without any mutation:\n{unbroken.stdout}")
            return 2
        for mutation in tried:
            began = time.monotonic()
            caught, what = noticed(mutation, copy)
            unnoticed += not caught
            word = "noticed" if caught else "UNNOTICED"
            print(f"{word:9} {time.monotonic() - began:5.1f} s  {mutation.path.as_posix()} {what}", flush=True)
    print(f"{unnoticed} of {len(tried)} unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
