"""The jar with the class by which Spark writes a checkpoint into an S3 store, a request a file.

`WholeFiles.scala` says why. The Scala compiler inside pyspark compiles it, once and in seconds, which needs only Java.
"""

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

from precede.streaming.job.java import java
from precede.udfs.errors import Refused

CLASS = "precede.WholeFiles"
SOURCE = files("precede.streaming.job") / "WholeFiles.scala"
COMPILE_S_MAX = 180
REASON_LENGTH_MAX = 300


def jar_name(spark_jars: Path) -> str:
    """Another one for another source, and for another version of Spark."""
    versions = sorted(jar.name for jar in spark_jars.glob("spark-sql_*.jar"))
    return f"precede-{hashlib.sha256(SOURCE.read_bytes() + repr(versions).encode()).hexdigest()[:12]}.jar"


def ensure(folder: Path, spark_jars: Path, say: Callable[[str], object] | None = None) -> Path:
    """The jar in this folder; it is compiled where it is not there yet."""
    jar = folder / jar_name(spark_jars)
    if not jar.exists():
        if say:
            say(f"Compiling what writes checkpoints into S3, once, into {folder}")
        try:
            _compile(jar, spark_jars)
        except OSError as error:
            raise Refused(
                f"The jars cannot be kept in {folder} ({error.strerror}): set PRECEDE_JARS to a folder of yours."
            ) from error
    return jar


def _compile(jar: Path, spark_jars: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jar.parent) as scratch, as_file(SOURCE) as source:
        classes, fresh = Path(scratch, "classes"), Path(scratch, jar.name)
        classes.mkdir()
        # The compiler takes the class path of its own process, which has all that Spark has.
        compiler = [java(), "-cp", f"{spark_jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
        command = [*compiler, "-d", str(classes), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_S_MAX)
        if done.returncode != 0:
            reason = " ".join((done.stdout + done.stderr).split())[-REASON_LENGTH_MAX:]
            raise Refused(f"{SOURCE.name} could not be compiled with the Scala compiler in {spark_jars}: {reason}.")
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as packed:
            for one in sorted(classes.rglob("*.class")):
                packed.writestr(zipfile.ZipInfo(one.relative_to(classes).as_posix()), one.read_bytes())
        fresh.replace(jar)
