"""Which groups can be on a segment without a log."""

from typing import Any

from msgspec import UNSET

from precede.udfs.errors import Refused
from precede.udfs.limits import ANY_SIZE
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import Create
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

DEFAULT_ORDER = "s_b"
"""The order of a group of a segment where nothing else is said."""


def check_group(create: bytes | None, order: str) -> None:
    """Raise Refused if a group with this `create` record, or without one, needs the log.

    `order` is the one it has where the record names none.
    """
    try:
        record = None if create is None else read(create, ANY_SIZE)
    except Malformed as error:
        raise Refused(f"Its `create` record cannot be read: {error.reason}") from error
    if isinstance(record, Create):
        check_order(order if record.options.order is UNSET else record.options.order, record.options.conflicts)
        return
    check_order(order, None)
    if ORDERS[order].waits_for_members:
        raise Refused(f"A group by clocks ({order}) has members only by a `create` record, and this one has none.")


def check_order(order: Any, conflicts: Any) -> None:
    """Raise Refused if a group with this order and these conflicts needs the log."""
    if order not in ORDERS:
        raise Refused(f"There is no order {order!r}: choose one of {', '.join(ORDERS)}.")
    if ORDERS[order].needs_log:
        raise Refused(f"The order {order} is the log's own, so it needs the log: choose lamport for one sequence here.")
    if ORDERS[order].uses_conflicts and conflicts not in (None, UNSET) and conflicts:
        raise Refused(f"In the order {order}, declared conflicts need the log: leave them out, or use Kafka.")
