"""The table `[spark]` in a real session: Hadoop has the values, and the list of processes has no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_tidy import ROOT

SECRET = "wJalrXUtnFEMI"

START = """
import os, sys
from pathlib import Path
from precede.streaming.spark import jars, session
from precede.streaming import settings
found = settings.load({}, {}, sys.argv[1], reaches_kafka=False)
spark = session.start(found, jars.ensure("spark"), Path(sys.argv[2]))
hadoop = spark.sparkContext._jsc.hadoopConfiguration()
print(hadoop.get("fs.s3a.secret.key"), hadoop.get("fs.s3a.endpoint"), spark.conf.get("spark.executor.cores"))
for folder in Path("/proc").glob("[0-9]*"):
    try:
        line = (folder / "cmdline").read_bytes().decode(errors="replace").replace(chr(0), " ")
    except OSError:
        continue
    is_java = line.partition(" ")[0].endswith("java")
    if is_java and "org.apache.spark.deploy.SparkSubmit" in line and sys.argv[1] in line:
        print("JVM", line)
spark.stop()
"""


def test_hadoop_has_the_values_and_the_list_of_processes_has_no_secret(tmp_path: Path, spark_jars: list[Path]) -> None:
    assert spark_jars
    config = tmp_path / "precede.toml"
    # The name of the file is in the command line of the JVM, which tells it from others.
    config.write_text(
        f'master = "local[1]"\n[spark]\nfs.s3a.secret.key = "{SECRET}"\nfs.s3a.endpoint = "http://127.0.0.1:9"\n'
        f'"spark.executor.cores" = 1\n"spark.precede.mark" = "{config}"\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", START, str(config), str(tmp_path / "logs")],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values, *processes = done.stdout.splitlines()
    assert values == f"{SECRET} http://127.0.0.1:9 1"
    assert processes
    assert "fs.s3a.endpoint" in processes[0]
    assert SECRET not in done.stdout.partition("\n")[2]
