"""The settings of `follow`, `Member` and `Groups`, found as the commands find theirs."""

import os
import warnings
from pathlib import Path
from typing import Any

import msgspec

from precede.ingest.kafka.access import Address
from precede.streaming import settings as job_settings
from precede.streaming.settings import Settings
from precede.udfs.partitioner import check_partitioner

Config = Settings | str | Path | None
"""A TOML file; None for the one that PRECEDE_CONFIG names, if any. Commands pass the settings they have found."""


def client_settings(
    config: Config, *, bootstrap: Address | str | None = None, reaches_kafka: bool = True, **given: Any
) -> Settings:
    """An argument that is not None, over a `PRECEDE_*` variable, over the file, over the default.

    An `Address` brings its own access; text gets that of the settings. Raises Refused for what cannot be a setting.
    """
    if given.get("partitioner") is not None:
        check_partitioner(given["partitioner"])
    has_access = isinstance(bootstrap, Address)
    needs_access = reaches_kafka and not has_access
    text = None if has_access else str(bootstrap) if bootstrap else None
    found = config if isinstance(config, Settings) else _load(config, text, needs_access=needs_access)
    named = {name: value for name, value in given.items() if value is not None}
    if bootstrap is not None and (has_access or isinstance(config, Settings)):
        named["bootstrap"] = bootstrap
    return msgspec.structs.replace(found, **named)


def _load(config: str | Path | None, bootstrap: str | None, *, needs_access: bool) -> Settings:
    for name, meant in job_settings.likely_slips(os.environ):
        warnings.warn(
            f"The variable {name} is not a setting of precede and has no effect: did you mean {meant}?", stacklevel=4
        )
    file = config or os.environ.get("PRECEDE_CONFIG")
    return job_settings.load({"bootstrap": bootstrap}, os.environ, file, reaches_kafka=needs_access)
