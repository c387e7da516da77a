"""Opens the files of a Delta table with Arrow's own file system."""

from pathlib import Path
from typing import Any


def files_of(table: Path | str) -> Any:
    """For `filesystem=` of deltalake's readers, whose own is written in Python.

    Arrow's threads close files long after the reading is over. To close a Python file they need the interpreter's
    lock. If the program is just ending, Python ends these threads instead, and C++ then aborts the program.
    """
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    return SubTreeFileSystem(str(Path(table).absolute()), LocalFileSystem())
