"""Tables of the config file whose names and values go to another program as they are.

Among them may be secrets, so such a table never shows its values.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from precede.udfs.errors import Refused


class ClientTable(dict[str, str]):
    """Names and values for another program; as text only the names are shown."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"

    __str__ = __repr__


def client_table(table: str, value: Any) -> ClientTable:
    """The names and values of a table. TOML makes tables of names with dots, which are joined again."""
    if not isinstance(value, Mapping):
        raise Refused(f"The setting {table} must be a table of names and values.")
    return ClientTable(_flat(table, value, ""))


def _flat(table: str, values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(table, value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield prefix + name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield prefix + name, str(value)
        else:
            raise Refused(f"In the table [{table}], {prefix}{name} must be text, a number, or true or false.")
