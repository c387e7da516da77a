"""`precede bundle`: writes everything that a Spark cluster needs to run the job with spark-submit."""

import shutil
import stat
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Config, say
from precede.ingest.extras import need
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MAIN = '''\
"""What spark-submit starts: the command line of precede, as `main.py run --config precede.toml`."""

from precede.command_line import main

main()
'''
CONFIG = """\
# Settings of the job; docs/reference/settings.md explains each. spark-submit sends this file along with --files.
bootstrap = "kafka.example:9092"
checkpoint = "s3a://bucket/chats/checkpoint" # or a folder that every machine has mounted
delta = "s3a://bucket/chats/delta"
tasks = 4 # the number of cores that the executors have together; the first checkpoint fixes it

[spark]
"fs.s3a.endpoint.region" = "eu-central-1"
"""
SUBMIT = """\
#!/bin/sh
# Starts the job: ./submit.sh --master spark://host:7077, or ./submit.sh --master yarn --deploy-mode cluster
# More options of spark-submit may follow, such as --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=/opt/python/bin/python.
# On YARN a driver may wait for Kafka as long as patience_s says, and only failures of the last hour count as attempts.
set -eu
cd "$(dirname "$0")"
exec "${SPARK_HOME:+$SPARK_HOME/bin/}spark-submit" \\
    --name precede \\
    --conf spark.yarn.am.waitTime=40m \\
    --conf spark.yarn.am.attemptFailuresValidityInterval=1h \\
    --jars "$(echo jars/*.jar | tr ' ' ',')" \\
    --py-files precede.zip \\
    --files precede.toml \\
    "$@" main.py run --config precede.toml
"""

CHART = "chart"
"""The Helm chart in the package; in a working copy a link to deploy/chart."""


def bundle(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is absent or empty.")],
    config: Config = None,
) -> None:
    """Write what spark-submit needs into DIR: the package, the jars, main.py, a sample config and manifests.

    Edit precede.toml, unless you gave yours with --config, then start the job:

      precede bundle job/

      job/submit.sh --master spark://host:7077

      job/submit.sh --master yarn --deploy-mode cluster

    The Python of every worker needs the packages that precede depends on. docs/how-to/deploy.md has the rest.
    """
    need("spark", "precede bundle")
    from precede.streaming.spark import jars

    try:
        if directory.exists() and any(directory.iterdir()):
            raise Refused(f"The folder {directory} is not empty: name another one.")
        (directory / "jars").mkdir(parents=True)
        _zip(directory / "precede.zip")
        for jar in [*jars.ensure("spark", say=say), *jars.ensure("s3", say=say)]:
            shutil.copyfile(jar, directory / "jars" / jar.name)
        (directory / "main.py").write_text(MAIN, encoding="utf-8")
        text = CONFIG if config is None else config.read_text(encoding="utf-8")
        (directory / "precede.toml").write_text(text, encoding="utf-8")
        (directory / "submit.sh").write_text(SUBMIT, encoding="utf-8")
        (directory / "submit.sh").chmod(0o755)
        for name, content in _sources(files("precede") / CHART, CHART):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
    except OSError as error:
        raise Refused(f"The bundle cannot be written to {directory}: {error.strerror}.") from error
    say(f"The bundle is in {directory}: edit precede.toml, then run submit.sh with the master's address.")


def _zip(archive: Path) -> None:
    """Write the package as executors import it."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in sorted(_sources(files("precede"), "precede")):
            if name.startswith(f"precede/{CHART}/"):
                continue
            entry = zipfile.ZipInfo(name)  # without a time, so that equal sources make equal archives
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _sources(folder: "Traversable", name: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        inner = f"{name}/{one.name}"
        if one.name == "__pycache__":
            continue
        if one.is_dir():
            yield from _sources(one, inner)
        else:
            yield inner, one.read_bytes()
