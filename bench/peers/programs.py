"""The Java programs of the other engines: their jars are fetched like precede's own, then java/ is compiled."""

import os
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from precede.streaming.spark import jars
from precede.streaming.spark.jars import java

LISTED = jars.Listed(files("bench.peers") / "ivy.xml", files("bench.peers") / "jars.sha256")
CONFIGURATIONS = ("compiler", "kafka-streams", "flink")
SOURCES = Path(__file__).with_name("java")
HEAP = "-Xmx1g"


def program(main: str, configuration: str, classes: Path, say: jars.Say, *, opens: Sequence[str] = ()) -> list[str]:
    """The command that runs `main`, without its arguments. Compiles it into the folder if that has not been done."""
    needed = fetched(configuration, say)
    if not (classes / "peers" / f"{main}.class").exists():
        compiled(main, needed, classes, say)
    classpath = os.pathsep.join(map(str, (classes, *needed)))
    return [java(), HEAP, *opens, "-cp", classpath, f"peers.{main}"]


def fetched(configuration: str, say: jars.Say) -> list[Path]:
    return jars.ensure(configuration, home=jars.default_home() / "peers", say=say, listed=LISTED)


def compiled(main: str, needed: Sequence[Path], classes: Path, say: jars.Say) -> None:
    """Compile by a compiler that is a jar, so that a Java without javac is enough."""
    (compiler,) = fetched("compiler", say)
    command = [java(), "-jar", str(compiler), "-nowarn", "-source", "17", "-target", "17", "-d", str(classes)]
    command += ["-cp", os.pathsep.join(map(str, needed)), str(SOURCES / "Group.java"), str(SOURCES / f"{main}.java")]
    subprocess.run(command, check=True)


def pin() -> None:
    """Write the checksums again after a change of ivy.xml."""
    jars.pin(LISTED, CONFIGURATIONS)
