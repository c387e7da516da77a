"""The Spark session: its jars, its settings as measured, and its log files."""

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from precede.streaming.places import hadoop, place, store_options
from precede.streaming.settings import Settings, check_tokens_on_cluster
from precede.streaming.spark import jars
from precede.streaming.spark.jars import Say
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER_POOL = "order"
HISTORY_POOL = "history"

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {logs}/spark.log
appender.file.filePattern = {logs}/spark.%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 4
"""

# The order query gets cores first; history gets the rest, and a share when both wait.
POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="order"><schedulingMode>FIFO</schedulingMode><weight>1000</weight><minShare>1000</minShare></pool>
  <pool name="history"><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""

FIXED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",  # a second attempt would only run the same kernel twice
    "spark.scheduler.mode": "FAIR",
    "spark.sql.adaptive.enabled": "false",  # replanning each micro-batch costs more than it saves
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # The default doubles the time of a batch in a folder, and its requests in a store. Both write, then rename.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # There is no receiver for these reports, and a reader of states without a query would fail without one.
    "spark.sql.streaming.stateStore.coordinatorReportSnapshotUploadLag": "false",
    "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",  # each keeps what it changed, so a hundred is a lot of disk
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # no order waits for Spark's time
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # The queries and Delta's own work generate more classes than the hundred that Spark caches by default: each batch
    # would compile some of them again, and the JVM would never be warm.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true",  # or a null turns integers into floats
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # A worker's memory grows by several times the bytes that it gets at once; Spark's default is four times as large.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    # Spark's default pattern does not match a client's private key, which is among the options of a source.
    "spark.redaction.regex": f"(?i){store_options.SECRET}",
    "spark.driver.maxResultSize": "0",  # with a limit, a batch of large records could fail for ever
    "spark.python.worker.faulthandler.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",  # the logs are small; the default of fifty tasks is slower
    "spark.ui.showConsoleProgress": "false",
}

IN_STORES = {
    # A file with a checksum beside each file would double the requests; stores check what they are sent.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Hadoop's own way of writing files asks a store many things that are not needed here.
    "spark.hadoop.fs.s3a.performance.flags": "create,mkdir,delete",
    "spark.hadoop.fs.s3a.directory.marker.retention": "keep",
}
"""Where the checkpoint is in a store."""

IN_S3 = {
    # Spark's own classes write a file and rename it, which takes seven requests, and eleven where it must be new.
    "spark.sql.streaming.checkpointFileManagerClass": jars.WHOLE_FILES_CLASS,
}
"""Where the checkpoint is in an S3 store."""


def start(settings: Settings, jar_files: Sequence[Path], logs: Path, name: str = "precede") -> "SparkSession":
    """A new session, or the one that this process has already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    running, values = _gateway(settings, jar_files, logs, name)
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    conf = SparkConf(_jvm=running.jvm).setAppName(name).setAll(list(values.items()))
    if is_submitted() and conf.get("spark.log.level") is None:
        conf.set("spark.log.level", "WARN")  # on standard error, where the job's own sentences are too
    master = str(conf.get("spark.master"))
    if not master.startswith("local"):
        check_tokens_on_cluster(settings)
    elif conf.get("spark.sql.shuffle.partitions") is None:
        conf.set("spark.sql.shuffle.partitions", str(_cores(master)))
    if conf.get("spark.sql.shuffle.partitions") is None:
        raise Refused(
            f"The setting tasks must be set where Spark runs on a cluster ({master}): to the number "
            "of cores that the job has there; the checkpoint fixes it."
        )
    with _keep_ctrl_c_handler():
        return SparkSession(SparkContext(conf=conf, gateway=running))


def _gateway(settings: Settings, jar_files: Sequence[Path], logs: Path, name: str) -> tuple[Any, dict[str, str]]:
    """The JVM, started where this process has none yet, and Spark's configuration."""
    # Spark starts its Python workers with this interpreter; another one might lack the kernel.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _put_package_on_path()
    logs.mkdir(parents=True, exist_ok=True)
    if not is_submitted():
        _log_python_to_file(logs)

    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    values = configuration(settings, jar_files, logs)
    with SparkContext._lock:
        running = SparkContext._gateway
        if running is None:
            # What starts the JVM stands in the list of processes; the context gets everything.
            conf = SparkConf().setAppName(name).setAll(list(store_options.without_secrets(values).items()))
            with (logs / "spark-console.log").open("ab") as console:
                running = launch_gateway(conf, {"stdout": console, "stderr": console})  # type: ignore[no-untyped-call]
            # The context takes this one, however it is started.
            SparkContext._gateway, SparkContext._jvm = running, running.jvm
    return running, values


def reach_stores(settings: Settings, spark: "SparkSession | None" = None, say: Say | None = None) -> None:
    """Make places in stores readable: as this session does, or by starting the JVM in which Spark will run."""
    if spark is not None:
        hadoop.connect_through(spark)
        return
    if say is not None:
        say("Starting Java, to reach the stores of checkpoint and delta.")
    running, values = _gateway(settings, jars_for(settings, say), logs_folder(settings), "precede")
    hadoop.connect(running.jvm, values)


def is_submitted() -> bool:
    """Whether spark-submit has started this process, and the JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def jars_for(settings: Settings, say: Say | None = None) -> list[Path]:
    """The jars that Spark needs for these settings; spark-submit has brought its own."""
    if is_submitted():
        return []
    home = settings.jars_home
    return [jar for name in settings.jar_configurations for jar in jars.ensure(name, home=home, say=say)]


def logs_folder(settings: Settings) -> Path:
    """Where Spark's files are that no restart needs: its log, and the warehouse that nothing is in."""
    return Path(tempfile.mkdtemp(prefix="precede-")) if is_submitted() else settings.logs


def where_logs_are(settings: Settings) -> str:
    """As a part of a sentence."""
    return "on standard error" if is_submitted() else f"in {settings.logs}"


@contextmanager
def _keep_ctrl_c_handler() -> Iterator[None]:
    """Undo that PySpark handles Ctrl-C: it would end the process, but a job stops between two batches."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def configuration(settings: Settings, jar_files: Sequence[Path], logs: Path) -> dict[str, str]:
    """Spark's whole configuration, for this session or for one that is started by hand."""
    log4j, pools = logs / "log4j2.properties", logs / "pools.xml"
    log4j.write_text(LOG4J.format(logs=logs.absolute().as_posix()), encoding="utf-8")
    pools.write_text(POOLS, encoding="utf-8")
    values = dict(FIXED)
    if not is_submitted():  # else they are spark-submit's, and the log is where the cluster's is
        values["spark.jars"] = ",".join(str(jar.absolute()) for jar in jar_files)
        values["spark.driver.memory"] = settings.memory
        values["spark.driver.extraJavaOptions"] = f'"-Dlog4j2.configurationFile={log4j.absolute().as_uri()}"'
    values["spark.scheduler.allocation.file"] = pools.absolute().as_uri()
    values["spark.sql.warehouse.dir"] = (logs / "warehouse").absolute().as_uri()  # the default is the working directory
    values["spark.ui.enabled"] = str(settings.ui).lower()
    if settings.tasks:
        values["spark.sql.shuffle.partitions"] = str(settings.tasks)
    if not place.is_local(settings.checkpoint):
        values |= IN_STORES
    if settings.checkpoint.startswith("s3a:"):
        values |= IN_S3
    master = settings.master or (None if is_submitted() else "local[*]")
    if master:
        values["spark.master"] = master
        if master.startswith("local"):
            values["spark.driver.host"] = values["spark.driver.bindAddress"] = "127.0.0.1"
            if not settings.tasks:
                values["spark.sql.shuffle.partitions"] = str(_cores(master))
    return store_options.added(values, settings.spark)


def _cores(master: str) -> int:
    asked = master.removeprefix("local").strip("[]").split(",")[0]
    if asked == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(asked or 1)


def _put_package_on_path() -> None:
    """Let workers on this machine import the same package as this process."""
    package = find_spec("precede")
    assert package is not None
    assert package.origin is not None
    home = str(Path(package.origin).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([home, *filter(None, paths)])


def _log_python_to_file(logs: Path) -> None:
    """Write PySpark's Python log into a file too."""
    from pyspark.logger import PySparkLogger

    handler = logging.FileHandler(logs / "python.log", delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("py4j", "pyspark")]
    # These must be of PySpark's own class, or logging an error of a plan raises another error.
    loggers += [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    for logger in loggers:
        logger.handlers[:] = [handler]
        logger.propagate = False
    warnings.filterwarnings("ignore", module="pyspark")


# ── where the JVM is told to end ──────────────────────────────────────────────────────────────────────────────────────

HOOK_PRIORITY = 1000
HOOK_S_MAX = 60


def stop_first(stopping: threading.Event) -> Callable[[], None]:
    """When the JVM is told to end, set `stopping`, and let it wait until the returned function is called.

    Cluster managers tell the driver's JVM to end, and the job is to stop between two batches first.

    Hadoop runs its hooks one after the other, those of a higher priority first. Spark's own, which ends the context, is
    one of them.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = SparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    manager = gateway.jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    seconds = gateway.jvm.java.util.concurrent.TimeUnit.SECONDS
    hook = _ShutdownHook(stopping)
    thread = gateway.jvm.java.lang.Thread(hook)  # Java asks for its hash, for example
    manager.addShutdownHook(thread, HOOK_PRIORITY, HOOK_S_MAX, seconds)

    def end() -> None:
        hook.ended.set()
        with suppress(Py4JError, OSError):  # the JVM is just ending, or has ended
            manager.removeShutdownHook(thread)

    return end


class _ShutdownHook:
    """What the JVM runs before it ends."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self.ended = threading.Event()

    def run(self) -> None:
        self._stopping.set()
        self.ended.wait(HOOK_S_MAX)

    class Java:
        """Says to py4j what this is in Java."""

        implements = ("java.lang.Runnable",)
