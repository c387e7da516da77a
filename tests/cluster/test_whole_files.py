"""The class by which Spark writes a checkpoint into S3: a request a file, and what fails leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.s3 import Store
from tests.cluster.test_stores import run, settings_of

FILES = """
from py4j.protocol import Py4JJavaError
from precede.streaming.places import hadoop
jvm, configuration = hadoop._connected()
path = lambda name: jvm.org.apache.hadoop.fs.Path(f"{place_of}/{name}")
files = jvm.precede.WholeFiles(path(""), configuration)
def write(name, text, overwrite):
    stream = files.createAtomic(path(name), overwrite)
    stream.write(bytearray(text, "ascii"))
    return stream
"""
WRITES = """
write("new", "one", False).close()
write("again", "one", True).close()
write("again", "two", True).close()
write("cancelled", "one", False).cancel()
cancelled = write("again", "three", True)
cancelled.cancel()
cancelled.close()
"""
SEES = """
assert [(place / name).read() for name in ("new", "again")] == [b"one", b"two"]
assert not (place / "cancelled").exists()
first, second = write("raced", "one", False), write("raced", "two", False)
first.close()
try:
    second.close()
except Py4JJavaError as error:
    print(error.java_exception.getClass().getSimpleName())
assert (place / "raced").read() == b"one"
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as running:
        yield running


def test_a_file_is_written_by_one_request_and_a_cancelled_one_by_none(store: Store) -> None:
    settings = settings_of(store, "files")
    store.requests()
    run(FILES + WRITES, settings)
    assert store.requests() == {"PUT": 3}
    assert run(FILES + SEES, settings).strip() in ("FileAlreadyExistsException", "RemoteFileChangedException")
