"""What all tests share: a level for each test, from the folder it stands in, and the slow things made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

# In the order they run, with the seconds one test may take, what it shares with others included.
LEVELS = {"tidy": 60, "kernel": 60, "scenarios": 60, "door": 60, "shard": 60, "spark": 300, "system": 300}


def level_of(path: Path) -> str:
    """The folder under tests/ names the level; what stands in tests/ itself is about the sources."""
    folder = path.relative_to(HERE).parts[0]
    return folder if folder in LEVELS else "tidy"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its level and run the fast levels first: a broken kernel shows before a broker is started."""
    rank = {level: number for number, level in enumerate(LEVELS)}
    items.sort(key=lambda item: rank[level_of(item.path)])
    for item in items:
        level = level_of(item.path)
        item.add_marker(level)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LEVELS[level]))
