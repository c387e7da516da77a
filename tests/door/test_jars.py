"""Jars are fetched once, checked, and not fetched again. A script replaces Java, so that it can fail in any way."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest

from precede.streaming.spark import jars
from precede.udfs.errors import Refused
from tests.door.command import ROOT

CONTENTS = {"kafka-clients-1.jar": b"first", "delta-2.jar": b"second"}

# Answers -version like Java 17; run as Ivy it notes the run and copies the files of `shelf` to the given place.
PLAYED_JAVA = """\
#!/bin/sh
here=$(dirname "$0")
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1" 2021' >&2; exit 0; fi
echo ran >> "$here/runs"
sleep 0.3
for word in "$@"; do case "$word" in */\\[artifact\\]*) target=${word%/*};; esac; done
cache=$(dirname "$target")/ivy-cache
mkdir -p "$target" "$cache"
echo '	found org.example#delta;2 in public'
cp "$here"/shelf/* "$target"/
echo '	[SUCCESSFUL ] org.example#delta;2!delta.jar (3ms)'
"""


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in place of Java, and a list of two jars that must match what the script provides."""
    home = tmp_path / "java"
    (home / "bin" / "shelf").mkdir(parents=True)
    (home / "bin" / "java").write_text(PLAYED_JAVA)
    (home / "bin" / "java").chmod(0o755)
    for name, content in CONTENTS.items():
        (home / "bin" / "shelf" / name).write_bytes(content)
    checksums = tmp_path / "jars.sha256"
    lines = [f"{hashlib.sha256(content).hexdigest()}  spark/{name}\n" for name, content in CONTENTS.items()]
    checksums.write_text("".join(lines) + f"{'0' * 64}  broker/other.jar\n")
    monkeypatch.setattr(jars, "CHECKSUMS", checksums)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.delenv("PRECEDE_IVYSETTINGS", raising=False)
    return home


def runs(java_home: Path) -> int:
    noted = java_home / "bin" / "runs"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


def test_jars_are_fetched_once_with_progress_and_then_reused_without_starting_java(
    java_home: Path, tmp_path: Path
) -> None:
    home, heard = tmp_path / "home", list[str]()
    paths = jars.ensure("spark", home=home, say=heard.append)
    assert {path.name: path.read_bytes() for path in paths} == CONTENTS
    assert [sentence.split()[0] for sentence in heard] == ["Fetching", "Looking", "Fetched"]
    assert jars.ensure("spark", home=home, say=heard.append) == paths
    assert (runs(java_home), len(heard)) == (1, 3)
    assert sorted(path.name for path in home.iterdir()) == ["lock", "spark"]


@pytest.mark.parametrize("harm", ["removed", "cut short"])
def test_a_harmed_jar_is_fetched_again(java_home: Path, tmp_path: Path, harm: str) -> None:
    victim = jars.ensure("spark", home=tmp_path)[0]
    victim.unlink() if harm == "removed" else victim.write_bytes(b"fir")
    assert jars.ensure("spark", home=tmp_path)[0].read_bytes() == CONTENTS[victim.name]
    assert runs(java_home) == 2


def test_two_processes_at_once_fetch_once(java_home: Path, tmp_path: Path) -> None:
    program = "from pathlib import Path; from precede.streaming.spark import jars;"
    program += f"jars.CHECKSUMS = Path({str(jars.CHECKSUMS)!r});"
    program += f"print(len(jars.ensure('spark', home=Path({str(tmp_path / 'home')!r}))))"
    both = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=30)[0] for process in both] == ["2\n", "2\n"]
    assert runs(java_home) == 1


def test_a_jar_that_is_not_the_tested_one_is_refused_and_never_used(java_home: Path, tmp_path: Path) -> None:
    (java_home / "bin" / "shelf" / "delta-2.jar").write_bytes(b"something else")
    with pytest.raises(Refused, match=r"delta-2\.jar was fetched, but it is not the file"):
        jars.ensure("spark", home=tmp_path / "home")
    assert not list((tmp_path / "home").rglob("*.jar"))
    assert not (tmp_path / "home" / "ivy-cache").exists(), "otherwise Ivy's cache would keep the wrong file for ever"


def test_a_failed_download_says_what_failed_and_what_to_do(java_home: Path, tmp_path: Path) -> None:
    script = java_home / "bin" / "java"
    failing = "echo 'resolving'; echo 'Host maven.example not found. url=x'; echo 'unresolved dependency'; exit 1\n"
    script.write_text(script.read_text().replace("sleep 0.3\n", failing))
    with pytest.raises(Refused, match=r"could not be fetched \(Host maven.example not found.*PRECEDE_IVYSETTINGS"):
        jars.ensure("spark", home=tmp_path / "home")


def test_a_mirror_is_taken_from_the_settings_file_that_is_named(
    java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = java_home / "bin" / "java"
    script.write_text(script.read_text().replace("sleep 0.3\n", 'echo "$@" > "$here/words"\n'))
    settings = tmp_path / "ivysettings.xml"
    monkeypatch.setenv("PRECEDE_IVYSETTINGS", str(settings))
    with pytest.raises(Refused, match=r"PRECEDE_IVYSETTINGS names .*, which is not a file"):
        jars.ensure("spark", home=tmp_path / "home")
    settings.touch()
    jars.ensure("spark", home=tmp_path / "home")
    assert f"-settings {settings}" in (java_home / "bin" / "words").read_text()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("exit 127", "Java is missing: JAVA_HOME is .* does not run; install Java 17"),
        ("echo 'java version \"1.8.0_292\"' >&2; exit 0", "Java is too old: .* is version 1; install Java 17"),
    ],
)
def test_a_missing_or_old_java_is_said_in_a_sentence(
    java_home: Path, tmp_path: Path, answer: str, sentence: str
) -> None:
    (java_home / "bin" / "java").write_text(f"#!/bin/sh\n{answer}\n")
    with pytest.raises(Refused, match=sentence):
        jars.ensure("spark", home=tmp_path / "home")


def test_a_home_that_cannot_be_written_names_the_setting(java_home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="set PRECEDE_JARS to a folder of yours"):
        jars.ensure("spark", home=tmp_path / "file" / "home")


def test_jars_live_where_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRECEDE_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert jars.default_home() == Path("/some/cache/precede/jars")
    monkeypatch.setenv("PRECEDE_JARS", "/elsewhere")
    assert jars.default_home() == Path("/elsewhere")


@pytest.mark.parametrize("configuration", get_args(jars.Configuration))
def test_every_declared_jar_has_its_checksum(configuration: jars.Configuration) -> None:
    dependencies = ElementTree.fromstring(jars.DECLARED.read_text()).findall("./dependencies/dependency")
    declared = {
        f"{one.attrib['name']}-{one.attrib['rev']}.jar"
        for one in dependencies
        if one.attrib["conf"].startswith(f"{configuration}->")
    }
    pinned = jars.expected(configuration)
    assert declared <= set(pinned)
    if configuration in ("spark", "hdfs"):
        assert declared == set(pinned), "exactly what is declared and nothing else"
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in pinned.values())


def test_no_jar_of_the_s3_client_is_one_that_spark_has() -> None:
    brought = {jar.name.rpartition("-")[0] for jar in (jars.ivy().parent).glob("*.jar")}
    assert not {name.rpartition("-")[0] for name in jars.expected("s3")} & brought


def test_a_zip_of_the_packages_has_its_lists_of_jars_too(tmp_path: Path) -> None:
    archive = tmp_path / "precede.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for folder, _, names in os.walk(ROOT / "precede", followlinks=True):
            for path in [Path(folder, name) for name in names if "__pycache__" not in folder]:
                packed.write(path, path.relative_to(ROOT))
    program = "from precede.streaming.spark import jars; print(jars.__file__, len(jars.expected('spark')))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(archive / "precede" / "streaming" / "spark" / "jars.py"), "11"]
