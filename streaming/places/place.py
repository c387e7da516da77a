"""A folder or a file, wherever it is: on this machine, or in a store that a URI names.

Nothing outside this room knows the difference. A place is only a name: nothing is opened until something is asked of
it. What goes wrong raises OSError, whose `strerror` is for a person.
"""

import os
import platform
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import unquote, urlparse

from precede.ingest.files import replace_file
from precede.udfs.errors import Refused

STORES = ("s3a", "hdfs", "abfss", "gs")
"""The schemes of URIs, beside `file`, which is a folder of this machine."""
URI = re.compile(rf"({'|'.join(STORES)})://[^\s/\0]+(/[^\0]*)?|file:/[^\0]*|hdfs:///[^\0]+")
WANTED = f"a folder, or a URI that begins with file:, {', '.join(f'{scheme}:' for scheme in STORES)}"


class Place(ABC):
    """A folder or a file; `str` is what a person calls it, and `/` a place below it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its name."""

    @property
    @abstractmethod
    def location(self) -> str:
        """What Spark and Delta call it, wherever they are asked."""

    @abstractmethod
    def __truediv__(self, name: str, /) -> "Place": ...

    @abstractmethod
    def sibling(self, name: str) -> "Place":
        """The place of this name beside it."""

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def names(self) -> list[str]:
        """The names of what is in this folder; none where it is absent."""

    @abstractmethod
    def files(self) -> list[str]:
        """The same without folders."""

    @abstractmethod
    def all_files(self) -> list[str]:
        """The files of this folder and those below it, each named from here on."""

    @abstractmethod
    def read(self) -> bytes: ...

    @abstractmethod
    def replace(self, content: bytes, *, durable: bool = True) -> None:
        """Replace the whole file: a crash leaves the old one or the new one; if `durable`, a power cut does, too."""

    @abstractmethod
    def create(self, content: bytes) -> bool:
        """Create the file, and its folder, unless it is there; of several that try at once, one is told True."""

    @abstractmethod
    def make_folder(self) -> None: ...

    @abstractmethod
    def remove(self) -> None:
        """Remove the file; one that is absent stays so."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove the folder with all that is in it; one that is absent stays so."""

    @abstractmethod
    def rename(self, to: "Place") -> None: ...

    @abstractmethod
    def keep_names(self) -> None:
        """Keep the names of the files in this folder across a power cut."""

    @abstractmethod
    def trouble(self) -> str | None:
        """Why it cannot be reached now, as a part of a sentence; None where it can."""


class LocalPlace(Place):
    """One on this machine, or on a volume that is mounted on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"LocalPlace({self.path})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalPlace) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    def __truediv__(self, name: str, /) -> "LocalPlace":
        return LocalPlace(self.path / name)

    def sibling(self, name: str) -> "LocalPlace":
        return LocalPlace(self.path.with_name(name))

    def exists(self) -> bool:
        return self.path.exists()

    def names(self) -> list[str]:
        try:
            return [one.name for one in self.path.iterdir()]
        except FileNotFoundError:
            return []

    def files(self) -> list[str]:
        return [name for name in self.names() if (self.path / name).is_file()]

    def all_files(self) -> list[str]:
        return [one.relative_to(self.path).as_posix() for one in self.path.rglob("*") if one.is_file()]

    def read(self) -> bytes:
        return self.path.read_bytes()

    def replace(self, content: bytes, *, durable: bool = True) -> None:
        replace_file(self.path, content, durable=durable)

    def create(self, content: bytes) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def make_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def remove_all(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.remove()

    def rename(self, to: Place) -> None:
        assert isinstance(to, LocalPlace)
        self.path.rename(to.path)

    def keep_names(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def trouble(self) -> str | None:
        return None


def is_place(text: str) -> bool:
    """Whether a setting can name a place: a folder, or a URI of a known scheme."""
    if not text or "\0" in text:
        return False
    return URI.fullmatch(text) is not None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) else True


def is_local(text: str) -> bool:
    """Whether the place is a folder of this machine."""
    return not text.startswith(tuple(f"{scheme}:" for scheme in STORES))


def at(text: str | os.PathLike[str]) -> Place:
    """The place of a setting."""
    text = os.fspath(text)
    if is_local(text):
        return LocalPlace(Path(unquote(urlparse(text).path) if text.startswith("file:/") else text))
    from precede.streaming.places.hadoop import HadoopPlace

    return HadoopPlace(text)


def make_writable(setting: str, folder: Place) -> None:
    """Create the folder where it is absent, and try to write into it."""
    probe = folder / f".precede-{platform.node()}-{os.getpid()}"
    try:
        folder.make_folder()
        probe.remove()
        creates_once = probe.create(b"one") and not probe.create(b"another")
        probe.remove()
    except OSError as error:
        raise Refused(f"The {setting} folder {folder} is not writable: {error.strerror}.") from error
    if not creates_once:
        raise Refused(
            f"The store of {folder} does not tell who creates a file first, so two jobs could write there at the same "
            "time; take one that knows conditional writes."
        )
