"""The files that commands read and write, opened without a buffer so that a pipe is never kept waiting."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from precede.command_options import WrongUse


def open_input(file: str, files: ExitStack) -> int:
    """The descriptor of the file with that name, or of standard input for `-`."""
    if file == "-" and sys.stdin is None:
        raise WrongUse("Standard input is closed, so - cannot be read.")
    if file == "-":
        return sys.stdin.fileno()
    try:
        return files.enter_context(Path(file).open("rb", buffering=0)).fileno()
    except OSError as error:
        raise WrongUse(f"The file {file} cannot be read: {error.strerror}.") from error


def open_output(path: Path, source: int, files: ExitStack) -> int:
    """Open a file for writing, but never the one that is being read, because opening would empty it."""
    try:
        if path.is_file() and os.path.samestat(path.stat(), os.fstat(source)):
            raise WrongUse(f"{path} is the file that is read; write to another file.")
        return files.enter_context(path.open("wb", buffering=0)).fileno()
    except OSError as error:
        raise WrongUse(f"The file {path} cannot be written: {error.strerror}.") from error


def write_all(file: int, text: bytes) -> None:
    """Write all of it: one system call may write only a part."""
    view = memoryview(text)
    while view:
        view = view[os.write(file, view) :]
