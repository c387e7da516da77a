"""The tables of the config file that go to another program as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from precede.streaming import settings
from precede.streaming.places import store_options
from precede.streaming.settings import Settings
from precede.streaming.spark import session
from precede.udfs.errors import Refused

SECRET = "wJalrXUtnFEMI"
SPARK = f"""
[spark]
fs.s3a.endpoint = "http://127.0.0.1:9000"
"fs.s3a.secret.key" = "{SECRET}"
fs.s3a.path.style.access = true
"spark.executor.cores" = 2
"spark.hadoop.fs.s3a.connection.maximum" = 50
"""


def loaded(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "precede.toml"
    path.write_text(text)
    return settings.load({}, {}, path)


def test_names_and_values_of_the_table_spark_go_to_spark_and_to_hadoop_as_they_are(tmp_path: Path) -> None:
    table = loaded(tmp_path, SPARK).spark
    assert store_options.spark_values(table) == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.executor.cores": "2",
        "spark.hadoop.fs.s3a.connection.maximum": "50",
    }
    assert dict(store_options.hadoop_values(table)) == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.maximum": "50",
    }


def test_settings_never_show_the_values_of_a_table(tmp_path: Path) -> None:
    found = loaded(tmp_path, SPARK)
    assert SECRET not in f"{found!r} {found} {found.spark!r} {store_options.hadoop_values(found.spark)}"
    assert "fs.s3a.secret.key" in repr(found)


def test_what_stands_in_the_list_of_processes_has_no_secrets(tmp_path: Path) -> None:
    shown = store_options.without_secrets(store_options.spark_values(loaded(tmp_path, SPARK).spark))
    assert shown.keys() == {
        "spark.hadoop.fs.s3a.endpoint",
        "spark.hadoop.fs.s3a.path.style.access",
        "spark.executor.cores",
        "spark.hadoop.fs.s3a.connection.maximum",
    }


def test_the_table_has_priority_over_the_job_s_own_configuration_and_adds_jars_and_java_options(tmp_path: Path) -> None:
    text = '[spark]\n"spark.speculation" = true\n"spark.jars" = "/a.jar"\n"spark.driver.extraJavaOptions" = "-Da=b"\n'
    found = session.configuration(loaded(tmp_path, text), [Path("/own.jar")], tmp_path)
    assert found["spark.speculation"] == "true"
    assert found["spark.jars"] == "/own.jar,/a.jar"
    assert found["spark.driver.extraJavaOptions"].endswith('log4j2.properties" -Da=b')


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('spark = "fast"', "The setting spark must be a table of names and values."),
        ("[spark]\na = [1]", r"In the table \[spark\], a must be text, a number, or true or false."),
        ('[spark]\n"spark.master" = "x"', r"\[spark\] sets spark.master: leave it out, set master instead."),
        ('[spark]\n"spark.app.name" = "x"', "sets spark.app.name: leave it out, the job sets it itself."),
        ('[spark]\n"spark.sql.session.timeZone" = "CET"', "leave it out, the tables have times in UTC."),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        loaded(tmp_path, text)
