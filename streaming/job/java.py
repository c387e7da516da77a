"""Finds Java. Spark, the broker and the fetching of jars all use the same one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from precede.udfs.errors import Refused

OLDEST = 17
HOW = (
    f"install Java {OLDEST} or newer (for example: apt install openjdk-17-jre-headless) or set JAVA_HOME to where it is"
)


def java() -> str:
    """The command that starts Java, as Spark's own scripts choose it: JAVA_HOME first, then PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    try:
        shown = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        where = f"JAVA_HOME is {home}, but {command} does not run" if home else "there is no java on PATH"
        raise Refused(f"Java is missing: {where}; {HOW}.") from None
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < OLDEST:
        raise Refused(f"Java is too old: {command} is version {version[1] if version else 'unknown'}; {HOW}.")
    return command
