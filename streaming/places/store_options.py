"""The tables `[spark]` and `[storage]` of the config file: names and values as they are, for Spark and delta-rs.

In `[spark]` a name that begins with `spark.` is Spark's. Any other is Hadoop's, so `fs.s3a.endpoint` can be written as
Hadoop's own pages do, or as `spark.hadoop.fs.s3a.endpoint`. delta-rs, which opens tables without Spark, has a client of
its own for each store. It takes options by names of its own, from `[storage]`, and reads the usual variables of the
store's own tools. What `[spark]` says of S3 counts there, too.
"""

import re
from collections.abc import Mapping
from typing import Any

from precede.ingest.client_tables import ClientTable
from precede.streaming.places.place import LocalPlace, Place
from precede.udfs.errors import Refused

_FROM_HADOOP = {
    "fs.s3a.endpoint": "aws_endpoint_url",
    "fs.s3a.endpoint.region": "aws_region",
    "fs.s3a.access.key": "aws_access_key_id",
    "fs.s3a.secret.key": "aws_secret_access_key",
    "fs.s3a.session.token": "aws_session_token",
}


def storage_options(storage: Mapping[str, str], hadoop: Mapping[str, str]) -> dict[str, str]:
    """The options of delta-rs: those that are given to it, and what Hadoop is told of S3."""
    found = {ours: hadoop[name] for name, ours in _FROM_HADOOP.items() if name in hadoop}
    endpoint = found.get("aws_endpoint_url")
    if endpoint is not None:
        if "://" not in endpoint:
            secure = hadoop.get("fs.s3a.connection.ssl.enabled", "true") == "true"
            endpoint = f"{'https' if secure else 'http'}://{endpoint}"
        found["aws_endpoint_url"] = endpoint
        found["aws_allow_http"] = str(endpoint.startswith("http://")).lower()
    if "fs.s3a.path.style.access" in hadoop:
        is_by_path = hadoop["fs.s3a.path.style.access"] == "true"
        found["aws_virtual_hosted_style_request"] = str(not is_by_path).lower()
    return found | dict(storage)


def open_table(table: Place, options: Mapping[str, str]) -> Any:
    """The table; raises what delta-rs raises."""
    from deltalake import DeltaTable

    if isinstance(table, LocalPlace):
        return DeltaTable(table.path)
    return DeltaTable(table.location, storage_options=dict(options))


# ── the table [spark] ─────────────────────────────────────────────────────────────────────────────────────────────────

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


def check_spark_table(table: Mapping[str, str]) -> None:
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


def hadoop_values(table: Mapping[str, str]) -> ClientTable:
    """What of the table concerns Hadoop, as a configuration of Hadoop names it."""
    return ClientTable(
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
