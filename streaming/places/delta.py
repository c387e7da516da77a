"""Delta tables as delta-rs opens them: without Spark, on this machine or in a store.

delta-rs has a client of its own for each store. It takes options by names of its own, from the table `[storage]` of the
config file, and reads the usual variables of the store's own tools. What the table `[spark]` says of S3 counts, too.
"""

from collections.abc import Mapping
from typing import Any

from precede.streaming.places.place import LocalPlace, Place

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
