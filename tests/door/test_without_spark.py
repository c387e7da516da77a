"""A transaction, its token, owner and notices need no Spark, so that another engine can use the same code."""

import subprocess
import sys

import pytest

from tests.door.command import ROOT

HEAVY = {"pyspark", "py4j", "delta", "pyarrow", "pandas"}


@pytest.mark.parametrize(
    "name", ["order.transaction", "order.ownership", "order.notices", "order.lag_group", "engines.process"]
)
def test_what_publishing_rests_on_imports_no_spark(name: str) -> None:
    program = f"import sys, precede.streaming.{name}; print(*(one.partition('.')[0] for one in sys.modules))"
    imported = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True)
    assert "confluent_kafka" in imported
    assert not HEAVY & set(imported.split())
