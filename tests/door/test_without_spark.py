"""A transaction, its token, owner and notices need no Spark, so that another engine can use the same code."""

import subprocess
import sys

import pytest

from precede.commands import run
from precede.ingest import extras
from precede.udfs.errors import Refused
from tests.door.command import ROOT

HEAVY = {"pyspark", "py4j", "delta", "pyarrow", "pandas"}


@pytest.mark.parametrize("name", ["order.transaction", "order.ownership", "order.notices", "process.engine"])
def test_what_publishing_rests_on_imports_no_spark(name: str) -> None:
    program = f"import sys, precede.streaming.{name}; print(*(one.partition('.')[0] for one in sys.modules))"
    imported = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True)
    assert "confluent_kafka" in imported
    assert not HEAVY & set(imported.split())


def test_run_without_spark_names_the_engine_that_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "spark", ("pyspark_that_is_absent",))
    with pytest.raises(Refused, match=r"precede\[spark\].\. Without Spark, `precede run --engine process`"):
        run.run(bootstrap="127.0.0.1:1")
