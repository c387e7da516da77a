"""The law of threads: each is watched, goes on after what passes, and what does not pass is said and shows in health.

There is one way to start a thread that does so, `Monitor` (ingest/service/monitor.py). Whatever starts another one
stands here, with the reason why it need not be watched, or who watches it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("udfs", "ingest", "streaming", "precede")
STARTERS = frozenset({"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"})

OTHERS = {
    "ingest/service/monitor.py": "this is the thread of a monitor",
    "ingest/service/page_server.py": "the server goes on after an error of one request; where it ends, /live fails",
    "ingest/kafka/token_endpoint.py": "the server goes on after an error of one request; who gets no token says so",
    "ingest/segment/runner.py": "segments go on after errors; what ends the runner is raised to each who uses a link",
    "streaming/process/loop.py": "the watch of the job sees that it ended, says why, and starts the loop again",
    "precede/local/child.py": "the guard is a program of its own, and ends with the command that it guards",
    "precede/demo/peers.py": "it reads what a process says; the demo looks whether both go on",
    "precede/peer/handing_over.py": "calls of the application: what one raises is said, and the next one is made",
    "precede/peer/conversation.py": "it reads the input once; what it raises, the command raises",
    "precede/reading/ordered_topic.py": "it ends what is closed, and nothing waits for it",
}


def test_every_thread_is_a_monitor_or_stands_here_with_a_reason() -> None:
    assert {path for path, _ in _starts()} == OTHERS.keys()


def test_no_class_is_a_thread_of_its_own() -> None:
    found = [
        f"{path}: {node.name}"
        for path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(_name(base) in STARTERS for base in node.bases)
    ]
    assert found == []


def test_a_thread_of_our_own_has_a_name() -> None:
    """A person who looks at a stuck process sees what it is."""
    unnamed = {path for path, call in _starts() if not any(word.arg == "name" for word in call.keywords)}
    assert unnamed <= {"precede/local/child.py"}, "the guard imports nothing, and has no one to show it to"


def _starts() -> Iterator[tuple[str, ast.Call]]:
    """The calls of product code that make a thread."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in STARTERS and not _is_of_java(node.func):
                yield path, node


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not any(parent.is_symlink() for parent in _parents(file)):
                yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def _parents(file: Path) -> Iterator[Path]:
    for parent in file.parents:
        if parent == ROOT:
            return
        yield parent


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_of_java(node: ast.expr) -> bool:
    """Whether it is a class of the JVM, such as `gateway.jvm.java.lang.Thread`."""
    return "jvm" in ast.unparse(node)
