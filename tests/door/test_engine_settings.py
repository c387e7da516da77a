"""What a person is told of an engine's settings before it starts."""

import re

import pytest

from precede.commands.run import without_effect
from precede.streaming import settings
from precede.streaming.settings import SPARK_ONLY, Settings
from tests.door.command import ROOT, precede

NOBODY = "localhost:1"
"""Where no broker is."""


def sentences(flags: dict[str, object]) -> list[str]:
    return list(without_effect(settings.load(flags, {}), set(settings.given(flags, {}))))


def test_settings_that_only_spark_needs_are_named_in_one_sentence_and_others_are_not() -> None:
    flags = {"engine": "process", "only": "order", "shards": 16, "memory": "4g", "tick_s": 2}
    assert sentences(flags) == ["Only Spark needs shards, memory; with engine = process this has no effect."]
    assert sentences(flags | {"engine": "spark"}) == []


def test_without_spark_no_history_is_written_and_that_is_said_unless_it_was_asked_for() -> None:
    said = "This engine writes no history; `precede run --only history` writes it beside."
    assert sentences({"engine": "process"}) == [said]
    assert sentences({"engine": "process", "only": "order"}) == []
    assert sentences({"engine": "process", "only": "history"}) == []


def test_history_is_written_by_spark_whatever_engine_orders() -> None:
    assert Settings(engine="process").runs_without_spark
    assert not Settings(engine="process", only="history").runs_without_spark


def test_what_only_spark_needs_are_settings() -> None:
    assert set(SPARK_ONLY) <= set(Settings.__struct_fields__)


def test_a_variable_that_only_spark_needs_is_named_too_and_an_unknown_engine_is_wrong_use() -> None:
    variables = {"PRECEDE_TASKS": "3", "PRECEDE_PATIENCE_S": "0"}
    done = precede("run", "--engine", "process", "--only", "order", "--bootstrap", NOBODY, variables=variables)
    assert re.match(rb"Only Spark needs tasks; with engine = process this has no effect\.\n", done.stderr), done.stderr
    assert done.returncode == 1
    assert precede("run", "--engine", "flink").returncode == 2


@pytest.mark.parametrize("folder", ["job", "order", "process"])
def test_no_file_of_the_process_engine_names_spark_or_pandas_in_an_import(folder: str) -> None:
    for path in (ROOT / "streaming" / folder).glob("*.py"):
        imported = r"^(from|import) (pyspark|py4j|pandas|pyarrow|delta)"  # others are inside functions, or for types
        assert not re.search(imported, path.read_text(), re.MULTILINE), path
