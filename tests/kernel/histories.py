"""The vectors of the protocols, from the file beside this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def vectors(protocol: str) -> list[dict[str, Any]]:
    """The vectors of one protocol."""
    every = json.loads((Path(__file__).parent / "vectors.json").read_text())
    return [one for one in every if one["proto"] == protocol]
