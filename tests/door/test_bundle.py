"""`precede bundle`: all that spark-submit needs, in one folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from precede.commands.bundle import MAIN
from precede.streaming.spark import jars
from tests.door.command import ROOT, precede


@pytest.fixture
def no_fetching(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two jars that need no network."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("spark", "s3"):
        (shelf / f"{name}.jar").write_bytes(name.encode())
    monkeypatch.setattr(jars, "ensure", lambda configuration, **_: [shelf / f"{configuration}.jar"])


def test_a_bundle_has_all_that_spark_submit_needs(no_fetching: None, tmp_path: Path) -> None:
    from precede.commands.bundle import bundle

    bundle(tmp_path / "job")
    made = tmp_path / "job"
    parts = ["chart", "jars", "main.py", "precede.toml", "precede.zip", "submit.sh"]
    assert sorted(path.name for path in made.iterdir()) == parts
    assert sorted(path.name for path in (made / "jars").iterdir()) == ["s3.jar", "spark.jar"]
    chart = ROOT / "deploy" / "chart"
    shipped = {path.relative_to(chart): path.read_bytes() for path in chart.rglob("*") if path.is_file()}
    copied = {path.relative_to(made / "chart"): path for path in (made / "chart").rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in copied.items()} == shipped
    assert os.access(made / "submit.sh", os.X_OK)


def test_the_package_in_a_bundle_can_be_imported_whole(no_fetching: None, tmp_path: Path) -> None:
    from precede.commands.bundle import bundle

    bundle(tmp_path / "job")
    archive = tmp_path / "job" / "precede.zip"
    assert not any("__pycache__" in name or "chart" in name for name in zipfile.ZipFile(archive).namelist())
    program = "import sys; sys.argv[1:] = ['run', '--help']; import runpy; runpy.run_path('main.py')"
    environment = os.environ | {"PYTHONPATH": str(archive), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "job",
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "--config" in done.stdout, done.stderr
    where = "import precede.streaming.spark.engine as one; print(one.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", where], cwd="/", env=environment, check=False, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(archive)), done.stderr


def test_a_driver_on_yarn_may_wait_for_kafka_as_long_as_the_job_does_and_options_that_follow_win(
    no_fetching: None, tmp_path: Path
) -> None:
    from precede.commands.bundle import bundle
    from precede.streaming.settings import Settings

    bundle(tmp_path / "job")
    spark_submit = tmp_path / "bin" / "spark-submit"
    spark_submit.parent.mkdir()
    spark_submit.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    spark_submit.chmod(0o755)
    words = [str(tmp_path / "job" / "submit.sh"), "--conf", "spark.yarn.am.waitTime=1h"]
    done = subprocess.run(
        words, env=os.environ | {"SPARK_HOME": str(tmp_path)}, check=True, capture_output=True, text=True
    )
    waits = [line for line in done.stdout.splitlines() if line.startswith("spark.yarn.am.waitTime=")]
    assert waits == ["spark.yarn.am.waitTime=40m", "spark.yarn.am.waitTime=1h"], "spark-submit takes the last one"
    assert Settings().patience_s < 40 * 60


def test_equal_sources_make_equal_bundles(no_fetching: None, tmp_path: Path) -> None:
    from precede.commands.bundle import bundle

    for name in ("one", "two"):
        bundle(tmp_path / name)
    assert (tmp_path / "one" / "precede.zip").read_bytes() == (tmp_path / "two" / "precede.zip").read_bytes()


def test_the_sample_config_of_a_bundle_has_only_settings_that_exist(no_fetching: None, tmp_path: Path) -> None:
    from precede.commands.bundle import bundle
    from precede.streaming import settings

    bundle(tmp_path / "job")
    loaded = settings.load({}, {}, tmp_path / "job" / "precede.toml")
    assert loaded.tasks == 4
    own = tmp_path / "own.toml"
    own.write_text('order = "fifo"\n')
    bundle(tmp_path / "other", own)
    assert (tmp_path / "other" / "precede.toml").read_text() == 'order = "fifo"\n'


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = precede("bundle", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.decode() == f"The folder {tmp_path} is not empty: name another one.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_bundle_starts_what_the_image_starts() -> None:
    assert (ROOT / "deploy" / "main.py").read_text() == MAIN
