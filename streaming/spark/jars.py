"""The jars that Spark and the broker need in addition to those in pyspark: fetched and checked once. They need Java.

`ivy.xml` names them, the Ivy inside pyspark fetches them (so only Java is needed), and `jars.sha256` has their
checksums. One jar is compiled instead, by the Scala compiler inside pyspark: the class by which Spark writes a
checkpoint into an S3 store, a request a file; `WholeFiles.scala` says why. Each configuration has a folder, by default
under ~/.cache/precede/jars; PRECEDE_JARS sets another place. PRECEDE_IVYSETTINGS names an ivysettings.xml, for networks
that need a mirror.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from precede.ingest.files import locked
from precede.udfs.errors import Refused

Configuration = Literal["spark", "s3", "broker", "hdfs"]
Say = Callable[[str], object]

# Read as resources, because Spark may ship this package to a cluster inside a zip.
DECLARED = files("precede.streaming.spark") / "ivy.xml"
CHECKSUMS = files("precede.streaming.spark") / "jars.sha256"


class Listed(NamedTuple):
    """An Ivy file, and the checksums of all that it brings. Benchmarks have lists of their own."""

    declared: Traversable
    checksums: Traversable


# Ivy sets no time limits: without these it would hang for ever in a network that drops packets.
JAVA_TIMEOUTS = ["-Dsun.net.client.defaultConnectTimeout=15000", "-Dsun.net.client.defaultReadTimeout=60000"]


def default_home() -> Path:
    """Where jars are kept unless a caller names another folder."""
    if moved := os.environ.get("PRECEDE_JARS"):
        return Path(moved).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "precede" / "jars"


def own() -> Listed:
    """The jars of precede itself."""
    return Listed(DECLARED, CHECKSUMS)


def expected(configuration: str, listed: Listed | None = None) -> dict[str, str]:
    """The name of every jar of a configuration, with its SHA-256."""
    lines = (line.split() for line in (listed or own()).checksums.read_text().splitlines())
    names = ((path.partition("/"), checksum) for checksum, path in lines)
    return {name: checksum for (folder, _, name), checksum in names if folder == configuration}


def ensure(
    configuration: str, *, home: Path | None = None, say: Say | None = None, listed: Listed | None = None
) -> list[Path]:
    """The jars of a configuration, complete on disk; missing or damaged ones are fetched, and `say` reports that."""
    home, listed = home or default_home(), listed or own()
    folder = home / configuration
    wanted = expected(configuration, listed)
    if missing_or_damaged(folder, wanted):
        with lock_home(home, say):
            # The process that held the lock before may have fetched them in the meantime.
            if missing := missing_or_damaged(folder, wanted):
                fetch(configuration, folder, listed, missing, say)
    own_jars = [ensure_whole_files(folder, ivy().parent, say)] if configuration == "s3" else []
    return [*(folder / name for name in wanted), *own_jars]


def lacking(configuration: str, *, home: Path | None = None) -> tuple[Path, int]:
    """The folder of a configuration, and how many of its jars a start has to fetch, or to compile."""
    folder = (home or default_home()) / configuration
    missing = len(missing_or_damaged(folder, expected(configuration)))
    own_jar = folder / whole_files_jar(ivy().parent) if configuration == "s3" else None
    return folder, missing + (own_jar is not None and not own_jar.exists())


def missing_or_damaged(folder: Path, wanted: dict[str, str]) -> list[str]:
    """The jars that are missing or have another checksum than they must."""
    return [name for name, checksum in wanted.items() if checksum_of(folder / name) != checksum]


def checksum_of(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@contextmanager
def lock_home(home: Path, say: Say | None) -> Iterator[None]:
    """Let one process at a time fetch into a home; the lock ends with the process."""

    def tell() -> None:
        if say:
            say(f"Waiting for another process that fetches jars into {home}")

    with ExitStack() as stack:
        try:
            home.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(home / "lock", tell=tell))
        except OSError as problem:
            reason = problem.strerror or problem
            raise Refused(
                f"The jars cannot be kept in {home} ({reason}): set PRECEDE_JARS to a folder of yours."
            ) from None
        yield


def fetch(configuration: str, folder: Path, listed: Listed, missing: list[str], say: Say | None) -> None:
    """Fetch into a temporary folder, check, then move each jar into its place, so that no reader sees half a jar."""
    wanted = expected(configuration, listed)
    if say:
        say(f"Fetching {len(wanted)} jars for the {configuration}, once, into {folder}")
    # Ivy's own cache is kept after a failure, so that a second try continues where the first one stopped.
    cache = folder.parent / "ivy-cache"
    fresh = folder.parent / f"{configuration}.part"
    shutil.rmtree(fresh, ignore_errors=True)
    retrieve(configuration, cache, fresh, listed, say)
    wrong = [name for name in missing if checksum_of(fresh / name) != wanted[name]]
    if not wrong:
        folder.mkdir(exist_ok=True)
        for name in missing:
            (fresh / name).replace(folder / name)
    shutil.rmtree(fresh)
    shutil.rmtree(cache)
    if wrong:
        raise Refused(
            f"{wrong[0]} was fetched, but it is not the file that precede was tested with (its SHA-256 differs): "
            "look at the mirror or proxy between here and the Maven repository, then try again."
        )


def retrieve(configuration: str, cache: Path, target: Path, listed: Listed, say: Say | None) -> None:
    """Run Ivy: resolve the Ivy file for one configuration and put its jars into the target folder."""
    command = [java(), *JAVA_TIMEOUTS, "-jar", str(ivy()), "-confs", configuration, "-types", "jar", "bundle"]
    command += ["-cache", str(cache), "-retrieve", f"{target}/[artifact]-[revision].[ext]"]
    if settings := os.environ.get("PRECEDE_IVYSETTINGS"):
        if not Path(settings).is_file():
            raise Refused(f"PRECEDE_IVYSETTINGS names {settings}, which is not a file.")
        command += ["-settings", settings]
    problems: deque[str] = deque(maxlen=1000)
    with (
        as_file(listed.declared) as declared,
        subprocess.Popen(
            [*command, "-ivy", str(declared)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        try:
            assert process.stdout is not None
            report_progress(process.stdout, problems, len(expected(configuration, listed)), say)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise Refused(
            f"The jars for the {configuration} could not be fetched ({first_problem(problems)}): check the network and "
            "try again, or set PRECEDE_IVYSETTINGS to an ivysettings.xml that names a mirror you can reach."
        )


def report_progress(lines: Iterator[str], kept: deque[str], total: int, say: Say | None) -> None:
    """Turn Ivy's output into progress messages, and keep it in case Ivy fails."""
    found = fetched = 0
    for line in lines:
        kept.append(line)
        if match := re.match(r"\s*found \S+#(\S+);(\S+) in", line):
            found += 1
            news = f"Looking up {match[1]} {match[2]} ({found} of about {total})"
        elif match := re.match(r"\s*\[SUCCESSFUL \] \S+#\S+;(\S+)!(\S+)\.jar", line):
            fetched += 1
            news = f"Fetched {match[2]}-{match[1]}.jar ({fetched} of {total})"
        else:
            continue
        if say:
            say(news)


def first_problem(lines: deque[str]) -> str:
    """The first problem in Ivy's output; later ones only follow from it."""
    telling = re.compile(
        r"Host .* not found|[Ss]erver access [Ee]rror|unresolved dependency|FAILED|Exception|not found"
    )
    problem = next((line for line in lines if telling.search(line)), lines[-1] if lines else "Java said nothing")
    return " ".join(problem.split())


def ivy() -> Path:
    """The jar of Ivy inside pyspark, found without importing pyspark, which is slow."""
    spec = find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in Path(place, "jars").glob("ivy-*.jar"):
            return jar
    raise Refused("pyspark with its jars is not installed here: pip install 'precede[broker]', or 'precede[spark]'.")


# ── Java ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

OLDEST_JAVA = 17
HOW_TO_GET_JAVA = (
    f"install Java {OLDEST_JAVA} or newer (for example: apt install openjdk-17-jre-headless) or set JAVA_HOME to where "
    "it is"
)


def java() -> str:
    """The command that starts Java, as Spark's own scripts choose it: JAVA_HOME first, then PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    try:
        shown = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        where = f"JAVA_HOME is {home}, but {command} does not run" if home else "there is no java on PATH"
        raise Refused(f"Java is missing: {where}; {HOW_TO_GET_JAVA}.") from None
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < OLDEST_JAVA:
        found = version[1] if version else "unknown"
        raise Refused(f"Java is too old: {command} is version {found}; {HOW_TO_GET_JAVA}.")
    return command


# ── what writes checkpoints into S3 ───────────────────────────────────────────────────────────────────────────────────

WHOLE_FILES_CLASS = "precede.WholeFiles"
WHOLE_FILES = files("precede.streaming.spark") / "WholeFiles.scala"
COMPILE_S_MAX = 180
REASON_LENGTH_MAX = 300


def whole_files_jar(spark_jars: Path) -> str:
    """Another one for another source, and for another version of Spark."""
    versions = sorted(jar.name for jar in spark_jars.glob("spark-sql_*.jar"))
    return f"precede-{hashlib.sha256(WHOLE_FILES.read_bytes() + repr(versions).encode()).hexdigest()[:12]}.jar"


def ensure_whole_files(folder: Path, spark_jars: Path, say: Callable[[str], object] | None = None) -> Path:
    """The jar in this folder; it is compiled where it is not there yet."""
    jar = folder / whole_files_jar(spark_jars)
    if not jar.exists():
        if say:
            say(f"Compiling what writes checkpoints into S3, once, into {folder}")
        try:
            _compile_whole_files(jar, spark_jars)
        except OSError as error:
            raise Refused(
                f"The jars cannot be kept in {folder} ({error.strerror}): set PRECEDE_JARS to a folder of yours."
            ) from error
    return jar


def _compile_whole_files(jar: Path, spark_jars: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jar.parent) as scratch, as_file(WHOLE_FILES) as source:
        classes, fresh = Path(scratch, "classes"), Path(scratch, jar.name)
        classes.mkdir()
        # The compiler takes the class path of its own process, which has all that Spark has.
        compiler = [java(), "-cp", f"{spark_jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
        command = [*compiler, "-d", str(classes), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_S_MAX)
        if done.returncode != 0:
            reason = " ".join((done.stdout + done.stderr).split())[-REASON_LENGTH_MAX:]
            compiler_of = f"the Scala compiler in {spark_jars}"
            raise Refused(f"{WHOLE_FILES.name} could not be compiled with {compiler_of}: {reason}.")
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as packed:
            for one in sorted(classes.rglob("*.class")):
                packed.writestr(zipfile.ZipInfo(one.relative_to(classes).as_posix()), one.read_bytes())
        fresh.replace(jar)


def pin(listed: Listed, configurations: Iterable[str]) -> None:
    """Write the checksums again after a change of the Ivy file; for maintainers of precede."""
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for configuration in configurations:
            target = Path(scratch, configuration)
            retrieve(configuration, Path(scratch, "cache"), target, listed, print)
            lines += [f"{checksum_of(jar)}  {configuration}/{jar.name}\n" for jar in sorted(target.iterdir())]
    with as_file(listed.checksums) as checksums:
        checksums.write_text("".join(lines))


def main() -> None:
    """`python -m precede.streaming.spark.jars [spark] [s3] [broker]` fetches jars in advance, such as into an image."""
    asked = sys.argv[1:] or ["spark", "broker"]
    try:
        for word in asked:
            match word:
                case "spark" | "s3" | "broker" | "hdfs":
                    jars = ensure(word, say=print)
                    print(f"{len(jars)} jars of {word} are in {jars[0].parent}")  # noqa: T201 (this is a command)
                case "pin":
                    pin(own(), get_args(Configuration))
                case _:
                    raise Refused(f"{word} is neither pin nor one of {', '.join(get_args(Configuration))}.")
    except Refused as refusal:
        sys.exit(str(refusal))


if __name__ == "__main__":
    main()
