"""Places in a store, through Hadoop's FileSystem in the JVM: one way for every scheme, with Spark's own credentials.

The JVM is there before Spark starts (`session.launch`), so that files can be read, and a start refused, before that.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precede.streaming.places.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE_AT_CLOSE = ("s3a://", "gs://")
"""Schemes under which a file appears when it is written to its end, and not before. Others are written under another
name first, and then renamed."""
CREATE_IF_ABSENT = "fs.option.create.conditional.overwrite"
ASKED_ONCE = {
    "fs.s3a.attempts.maximum": "0",
    "fs.s3a.retry.limit": "0",
    "fs.s3a.retry.throttle.limit": "0",
    "fs.s3a.connection.establish.timeout": "5s",
    "fs.s3a.connection.request.timeout": "20s",
    "fs.azure.io.retry.max.retries": "0",
    "fs.gs.http.max.retry": "0",
    "ipc.client.connect.max.retries": "0",
    "ipc.client.connect.max.retries.on.timeouts": "0",
    "ipc.client.connect.timeout": "5000",
}
"""For a client that does not try again what failed."""

_DENIED = PermissionError, errno.EACCES, "the store rejected the credentials, or they do not allow this"
_KINDS: dict[str, tuple[type[OSError], int, str]] = {
    "FileNotFoundException": (FileNotFoundError, errno.ENOENT, "it does not exist"),
    "UnknownStoreException": (OSError, errno.EIO, "its bucket or container does not exist"),
    "UnknownHostException": (OSError, errno.EIO, "its host is not known"),
    "AccessDeniedException": _DENIED,
    "AccessControlException": _DENIED,
    "NoAuthWithAWSException": (PermissionError, errno.EACCES, "no credentials for this store were given"),
    "UnsupportedFileSystemException": (OSError, errno.EIO, "the jar that reaches such stores is not there"),
    "ClassNotFoundException": (OSError, errno.EIO, "the jar that reaches such stores is not there"),
    # Another number would make these kinds of errors that say that the JVM has ended.
    "AWSServiceThrottledException": (OSError, errno.EIO, "it asks for fewer requests"),
    "ConnectException": (OSError, errno.EIO, "it takes no connections"),
    "HttpHostConnectException": (OSError, errno.EIO, "it takes no connections"),
    "ConnectTimeoutException": (OSError, errno.EIO, "it does not answer"),
    "ApiCallTimeoutException": (OSError, errno.EIO, "it does not answer"),
    "SocketTimeoutException": (OSError, errno.EIO, "it does not answer"),
    # Of several who create a file, these are told that another one was first.
    "FileAlreadyExistsException": (FileExistsError, errno.EEXIST, "it exists"),
    "RemoteFileChangedException": (FileExistsError, errno.EEXIST, "it exists"),
}
TEXT_LENGTH_MAX = 200


class _Connection:
    """A JVM, and the configuration by which Hadoop reaches the stores."""

    jvm: Any = None
    configuration: Any = None


def connect(jvm: Any, values: Mapping[str, str]) -> None:
    """Reach stores through this JVM; `values` are Spark's, where those that begin with `spark.hadoop.` are Hadoop's."""
    conf = jvm.org.apache.spark.SparkConf(True)
    for name, value in values.items():
        conf.set(name, value)
    _Connection.configuration = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(conf)
    _Connection.jvm = jvm


def connect_through(spark: "SparkSession") -> None:
    """Reach stores as this session does."""
    context: Any = spark.sparkContext
    _Connection.jvm, _Connection.configuration = context._jvm, context._jsc.hadoopConfiguration()


def _connected() -> tuple[Any, Any]:
    """The JVM and Hadoop's configuration."""
    if _Connection.jvm is None:
        raise RuntimeError("A store is reached through the JVM, which has not been started: call session.reach_stores.")
    return _Connection.jvm, _Connection.configuration


class HadoopPlace(Place):
    """One that a URI names."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"HadoopPlace({self.uri})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HadoopPlace) and self.uri == other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    @property
    def location(self) -> str:
        return self.uri

    def __truediv__(self, name: str, /) -> "HadoopPlace":
        return HadoopPlace(f"{self.uri}/{name}")

    def sibling(self, name: str) -> "HadoopPlace":
        return HadoopPlace(f"{self.uri.rpartition('/')[0]}/{name}")

    def exists(self) -> bool:
        with self._opened() as (files, path, _):
            return bool(files.exists(path))

    def names(self) -> list[str]:
        return [name for name, _ in self._listed()]

    def files(self) -> list[str]:
        return [name for name, is_file in self._listed() if is_file]

    def _listed(self) -> list[tuple[str, bool]]:
        try:
            with self._opened() as (files, path, _):
                return [(one.getPath().getName(), bool(one.isFile())) for one in files.listStatus(path)]
        except FileNotFoundError:
            return []

    def all_files(self) -> list[str]:
        try:
            with self._opened() as (files, path, _):
                above = len(str(files.makeQualified(path).toUri().getPath())) + 1
                found, listed = list[str](), files.listFiles(path, True)
                while listed.hasNext():
                    found.append(str(listed.next().getPath().toUri().getPath())[above:])
                return found
        except FileNotFoundError:
            return []

    def read(self) -> bytes:
        with self._opened() as (files, path, jvm):
            stream = files.open(path)
            try:
                return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def replace(self, content: bytes, *, durable: bool = True) -> None:
        """Replace the whole file; what a store has taken survives a power cut, whatever `durable` says."""
        del durable
        with self._opened() as (files, path, jvm):
            if self.uri.startswith(WHOLE_AT_CLOSE):
                _write(files.create(path, True), content)
                return
            new = self.sibling(f"{self.name}.new")
            new_path = jvm.org.apache.hadoop.fs.Path(new.uri)
            _write(files.create(new_path, True), content)
            options = jvm.java.lang.reflect.Array.newInstance(_class(jvm, "org.apache.hadoop.fs.Options$Rename"), 1)
            options[0] = jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE
            jvm.org.apache.hadoop.fs.FileContext.getFileContext(path.toUri(), files.getConf()).rename(
                new_path, path, options
            )

    def create(self, content: bytes) -> bool:
        try:
            with self._opened() as (files, path, _):
                if self.uri.startswith("s3a://"):
                    stream = files.createFile(path).opt(CREATE_IF_ABSENT, "true").build()
                else:
                    stream = files.create(path, False)
                _write(stream, content)
        except FileExistsError:
            # Where an answer was lost, the client may have asked twice, and be beaten by itself.
            return self.read() == content
        return True

    def make_folder(self) -> None:
        with self._opened() as (files, path, _):
            files.mkdirs(path)

    def remove(self) -> None:
        with self._opened() as (files, path, _):
            files.delete(path, False)

    def remove_all(self) -> None:
        with self._opened() as (files, path, _):
            files.delete(path, True)
            if files.exists(path):
                raise OSError(errno.ENOTEMPTY, f"{self.uri} could not be removed as a whole")

    def rename(self, to: Place) -> None:
        assert isinstance(to, HadoopPlace)
        with self._opened() as (files, path, jvm):
            if not files.rename(path, jvm.org.apache.hadoop.fs.Path(to.uri)):
                raise OSError(errno.EIO, f"{self.uri} could not be renamed to {to.uri}")

    def keep_names(self) -> None:
        """A store keeps what it has taken."""

    def trouble(self) -> str | None:
        """Asked once, by a client of its own."""
        try:
            with self._as_os_errors() as (jvm, configuration, path):
                once = jvm.org.apache.hadoop.conf.Configuration(configuration)
                for name, value in ASKED_ONCE.items():
                    once.set(name, value)
                files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), once)
                try:
                    files.exists(path)
                finally:
                    files.close()
        except OSError as error:
            return error.strerror
        return None

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any, Any]]:
        """The file system, the path in it, and the JVM."""
        with self._as_os_errors() as (jvm, configuration, path):
            yield path.getFileSystem(configuration), path, jvm

    @contextmanager
    def _as_os_errors(self) -> Iterator[tuple[Any, Any, Any]]:
        """The JVM, Hadoop's configuration and the path; what Java raises becomes an OSError."""
        from py4j.protocol import Py4JJavaError, Py4JNetworkError

        jvm, configuration = _connected()
        try:
            yield jvm, configuration, jvm.org.apache.hadoop.fs.Path(self.uri)
        except Py4JJavaError as error:
            raise _as_os_error(error.java_exception, self.uri) from error
        except Py4JNetworkError as error:
            raise ConnectionError(errno.EPIPE, f"the JVM through which {self.uri} is reached has ended") from error


def _write(stream: Any, content: bytes) -> None:
    try:
        stream.write(bytearray(content))
    except BaseException:
        # Closing publishes what was written, which would be half a file.
        if hasattr(stream, "abort"):
            stream.abort()
        raise
    stream.close()


def _class(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name)


def _as_os_error(error: Any, uri: str) -> OSError:
    """The first cause of a known kind in a plain sentence; otherwise what the outermost says. It names the place."""
    cause = error
    while cause is not None:
        kind = str(cause.getClass().getSimpleName())
        if kind in _KINDS:
            of, number, text = _KINDS[kind]
            if _lacks_bucket(cause):
                of, number, text = _KINDS["UnknownStoreException"]
            return of(number, text, uri)
        cause = cause.getCause()
    text = str(error.getMessage() or error.getClass().getSimpleName()).strip().splitlines()[0]
    return OSError(errno.EIO, text[:TEXT_LENGTH_MAX].rstrip(".: "), uri)


def _lacks_bucket(error: Any) -> bool:
    return "NoSuchBucket" in str(error.getMessage())
