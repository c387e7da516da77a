"""How the files of a Delta table are read here: by Arrow's own file system."""

from pathlib import Path
from typing import Any


def files_of(table: Path | str) -> Any:
    """For `filesystem=` of deltalake's readers, whose own is written in Python.

    Arrow's threads close files when the reading is long over. To close one of Python's they ask for the interpreter's
    lock, and where the program is just ending they are ended instead, which C++ takes for a reason to abort it.
    """
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    return SubTreeFileSystem(str(Path(table).absolute()), LocalFileSystem())
