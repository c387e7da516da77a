"""Groups as tables for a person, and as lines for a program."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precede.inspect.answer import ago
from precede.inspect.holding import Holding
from precede.terminal_text import safe_text
from precede.udfs.peers.catalogue import Listing

if TYPE_CHECKING:
    from rich.table import Table

MEMBERS_SHOWN_MAX = 8  # in the table; --json names all
DESCRIPTION_SHOWN_MAX = 60
KIB = 1024


def show_listings(listings: Sequence[Listing], *, as_json: bool) -> None:
    """Print all groups with their orders and members."""
    if as_json:
        _write_lines([_fields(listing) for listing in listings])
    elif listings:
        _print_table(table_of_listings(listings))


def show_top(holdings: Sequence[Holding], *, as_json: bool) -> None:
    """Print what groups hold."""
    if as_json:
        _write_lines(holdings)
    elif holdings:
        _print_table(table_of_holdings(holdings, time.time() * 1000))


def table_of_listings(listings: Sequence[Listing]) -> "Table":
    """One row per group."""
    from rich.table import Table

    table = Table("group", "order", "who may send", "members", "position", "about")
    for listing in listings:
        named = [name if epoch == 0 else f"{name} (epoch {epoch})" for name, epoch in listing.members.items()]
        more = f" and {len(named) - MEMBERS_SHOWN_MAX} more" if len(named) > MEMBERS_SHOWN_MAX else ""
        table.add_row(
            safe_text(listing.group),
            safe_text(listing.order),
            "its members" if listing.closed else "everyone",
            safe_text(", ".join(named[:MEMBERS_SHOWN_MAX]) + more),
            str(listing.position) if listing.position else "",
            safe_text(shortened(listing.description)),
        )
    return table


def table_of_holdings(holdings: Sequence[Holding], now_ms: float) -> "Table":
    """One row per group."""
    from rich.table import Table

    table = Table("group", "held", "the first came", "gaps", "state")
    for one in holdings:
        first = "" if one.oldest_ms is None else ago(one.oldest_ms, now_ms)
        table.add_row(safe_text(one.group), f"{one.held:,}", first, f"{one.gaps:,}", size(one.bytes))
    return table


def shortened(description: str) -> str:
    """The beginning of a description, in one line."""
    line = " ".join(description.split())
    return line if len(line) <= DESCRIPTION_SHOWN_MAX else f"{line[: DESCRIPTION_SHOWN_MAX - 1]}…"


def size(count: int) -> str:
    """A number of bytes in the unit that fits."""
    for unit, name in ((KIB * KIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def _fields(listing: Listing) -> dict[str, Any]:
    return {
        "group": listing.group,
        "order": listing.order,
        "created": listing.created,
        "closed": listing.closed,
        "members": listing.members,
        "options": listing.options,
        "position": listing.position,
    }


def _write_lines(found: Sequence[Any]) -> None:
    import msgspec

    for one in found:
        sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
    sys.stdout.buffer.flush()


def _print_table(table: "Table") -> None:
    from rich.console import Console

    Console().print(table)
