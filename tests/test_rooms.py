"""The rooms of the kernel, and that no two modules import each other: what is imported for its types counts, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("precede", "streaming", "ingest", "udfs")

# The rooms of udfs/ from the lowest to the highest. A file may import from its own room and from lower ones.
DIRECTION = (
    {"limits", "codes", "errors", "partitioner", "rules"},
    {"records"},
    {"engine", "orders.relation"},
    {"release"},
    {"orders"},
    {"passing_time"},
    {"holdback"},
    {"member", "peers", "sizes", "state_log"},
    {"steps"},
    {"shard"},
)


def module_of(path: Path) -> str:
    """What a file is called in an import."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "precede":
        parts = ("precede", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """All modules of the package; a folder that is linked into another counts where it stands."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            linked = any(parent.is_symlink() for parent in path.parents if parent != ROOT)
            if not linked and "__pycache__" not in path.parts:
                found[module_of(path)] = path
    return found


MODULES = modules()


def imported_by(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, also those under TYPE_CHECKING; not those inside functions."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                if inner in MODULES:
                    yield inner
                elif node.module in MODULES:
                    yield node.module
        pending += ast.iter_child_nodes(node)


IMPORTS = {module: sorted({name for name in imported_by(path) if name != module}) for module, path in MODULES.items()}


def cycles(imports: dict[str, list[str]]) -> list[list[str]]:
    """The groups of modules that reach each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root, names in imports.items():
        if root in number:
            continue
        walk = [(root, iter(names))]
        number[root] = lowest[root] = len(number)
        stack.append(root)
        while walk:
            module, following = walk[-1]
            inner = next(following, None)
            if inner is None:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[module])
                if lowest[module] == number[module]:
                    at = stack.index(module)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
            elif inner not in number:
                number[inner] = lowest[inner] = len(number)
                stack.append(inner)
                walk.append((inner, iter(imports[inner])))
            elif inner in stack:
                lowest[module] = min(lowest[module], number[inner])
    return found


# The rooms of streaming/ in the same way.
ROOMS_OF_THE_JOB = (
    {"places"},
    {"raw_partitions", "faults", "settings"},
    {"order"},
    {"history"},
    {"monitoring"},
    {"job"},
    {"spark", "process"},
)


def room_of(module: str) -> int | None:
    """The number of the room of a module of udfs/; a module that is named itself may stand in a room of its own."""
    inner = module.removeprefix("precede.udfs.")
    for names in (inner, inner.partition(".")[0]):
        for number, room in enumerate(DIRECTION):
            if names in room:
                return number
    return None


KERNEL = [module for module in MODULES if module.startswith("precede.udfs.")]


def test_every_module_of_the_kernel_has_its_room() -> None:
    assert [module for module in KERNEL if room_of(module) is None] == []


@pytest.mark.parametrize("module", KERNEL)
def test_inside_the_kernel_imports_point_down(module: str) -> None:
    room = room_of(module)
    assert room is not None
    above = [name for name in IMPORTS[module] if name in KERNEL and (room_of(name) or 0) > room]
    assert not above, f"{module} imports {', '.join(above)} from a room above its own"


JOB = [module for module in MODULES if module.startswith("precede.streaming.")]


def job_room_of(module: str) -> tuple[int, str]:
    """The number of the room of a module of streaming/, and its name."""
    name = module.split(".")[2]
    return next(number for number, room in enumerate(ROOMS_OF_THE_JOB) if name in room), name


@pytest.mark.parametrize("module", JOB)
def test_inside_the_job_imports_point_down_and_the_engines_do_not_know_each_other(module: str) -> None:
    number, room = job_room_of(module)
    others = [(name, job_room_of(name)) for name in IMPORTS[module] if name in JOB]
    wrong = [name for name, (above, other) in others if above > number or (above == number == 6 and other != room)]
    assert not wrong, f"{module} imports {', '.join(wrong)}"


def test_no_modules_import_each_other_not_even_for_types() -> None:
    assert cycles(IMPORTS) == []


def test_a_circle_of_imports_is_found_and_a_chain_is_none() -> None:
    assert cycles({"a": ["b"], "b": ["c"], "c": []}) == []
    assert cycles({"a": ["b", "c"], "b": ["c"], "c": ["b"], "d": ["a"]}) == [["b", "c"]]


# ── deep modules, and one name for one thing ──────────────────────────────────────────────────────────────────────

SMALL = 60
"""A module with fewer lines that one other imports says on top why it stands alone."""

BY_NAME = re.compile(r"precede\.(commands\.\w+|udfs\.orders\.\w+|__main__)")
"""A command and an order each have a file of their own, by whose name they are found."""

STILL_TWO: set[str] = set()
"""Names that more than one class has: to be mended, and no new one comes."""

STILL_SMALL: set[str] = set()
"""Modules without a reason on top: to be mended, and no new one comes."""


def importers() -> dict[str, set[str]]:
    """Who imports each module, also inside a function."""
    found: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named = {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{one.name}" for one in node.names}
                named = full & MODULES.keys() or {str(node.module)}
            else:
                continue
            for name in named & MODULES.keys():
                found[name].add(module)
    return found


def test_a_small_module_that_one_other_imports_says_why_it_stands_alone() -> None:
    who = importers()
    alone = set()
    for module, path in MODULES.items():
        text = path.read_text()
        is_small = len(text.splitlines()) < SMALL and len(who[module]) <= 1 and path.name != "__init__.py"
        if (
            is_small
            and not BY_NAME.fullmatch(module)
            and "Alone because" not in (ast.get_docstring(ast.parse(text)) or "")
        ):
            alone.add(module)
    assert alone <= STILL_SMALL, "put it where it is used, or say on top: Alone because ..."


def test_one_public_class_name_means_one_class() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1 and name not in STILL_TWO} == {}
