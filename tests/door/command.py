"""Shared by the tests of the command line: runs the command as a user does, and builds raw records for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def precede(
    *arguments: str | Path,
    given: bytes = b"",
    variables: dict[str, str] | None = None,
    seconds: float = 50,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[bytes]:
    """Run `precede` in its own process."""
    command = [sys.executable, "-m", "precede", *map(str, arguments)]
    environment = os.environ | (variables or {})
    return subprocess.run(
        command, input=given, capture_output=True, cwd=cwd, env=environment, timeout=seconds, check=False
    )


def raw(sender: str, seq: int, *after: list[Any], group: str = "g", data: str = "null") -> bytes:
    """One raw record, written without spaces; `data` is its JSON text."""
    head = json.dumps({"group": group, "sender": sender, "seq": seq, "after": after}, separators=(",", ":"))
    return f'{head[:-1]},"data":{data}}}'.encode()


def lines(text: bytes) -> list[Any]:
    """Each line, decoded from JSON."""
    return [json.loads(line) for line in text.splitlines()]


def ids(text: bytes) -> list[tuple[str, int]]:
    """(sender, seq) of each ordered record."""
    return [(record["sender"], record["seq"]) for record in lines(text)]
