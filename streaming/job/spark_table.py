"""The table `[spark]` of the config file: names and values as they are, for Spark and for Hadoop.

A name that begins with `spark.` is Spark's. Any other is Hadoop's, so `fs.s3a.endpoint` can be written as Hadoop's own
pages do, or as `spark.hadoop.fs.s3a.endpoint`.
"""

import re
from collections.abc import Mapping

from precede.ingest.pass_through import PassThrough
from precede.udfs.errors import Refused

HADOOP = "spark.hadoop."
JOINED = {"spark.jars": ",", "spark.driver.extraJavaOptions": " "}
"""What the job sets too: both values count, with this between them."""
SECRET = "secret|password|passphrase|token|credential|access[.]?key|account[.]key|keystore[.]key|jaas"  # noqa: S105
"""Names with secret values, for Spark's own redaction too, which matches names and values."""
_SECRET = re.compile(SECRET, re.IGNORECASE)

_INSTEAD = {
    "spark.app.name": None,
    "spark.master": "master",
    "spark.driver.memory": "memory",
    "spark.sql.shuffle.partitions": "tasks",
    "spark.ui.enabled": "ui",
}
_FIXED = {
    "spark.sql.session.timeZone": "the tables have times in UTC",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "without it integers would become floats",
    "spark.sql.extensions": "Delta needs it as the job sets it",
    "spark.sql.catalog.spark_catalog": "Delta needs it as the job sets it",
}


def check(table: Mapping[str, str]) -> None:
    """Refuse names that have a setting of their own, and those on which the output depends."""
    for name in table:
        if name in _INSTEAD:
            setting = _INSTEAD[name]
            instead = "the job sets it itself" if setting is None else f"set {setting} instead"
            raise Refused(f"The table [spark] sets {name}: leave it out, {instead}.")
        if name in _FIXED:
            raise Refused(f"The table [spark] sets {name}: leave it out, {_FIXED[name]}.")


def spark_values(table: Mapping[str, str]) -> dict[str, str]:
    """The table as Spark's configuration has it."""
    return {name if name.startswith("spark.") else HADOOP + name: value for name, value in table.items()}


def hadoop_values(table: Mapping[str, str]) -> PassThrough:
    """What of the table concerns Hadoop, as a configuration of Hadoop names it."""
    return PassThrough(
        (name.removeprefix(HADOOP), value) for name, value in spark_values(table).items() if name.startswith(HADOOP)
    )


def added(values: dict[str, str], table: Mapping[str, str]) -> dict[str, str]:
    """The job's own configuration with the table's, which has priority."""
    found = values | spark_values(table)
    for name, between in JOINED.items():
        if name in values and name in table:
            found[name] = f"{values[name]}{between}{table[name]}"
    return found


def without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """What may be in the list of processes, where everybody on the machine can read it."""
    return {name: value for name, value in values.items() if not _SECRET.search(name)}
