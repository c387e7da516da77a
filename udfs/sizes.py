"""How large a record of each topic can get, with its key and all that Kafka wraps around it: what a topic must take."""

from precede.udfs.engine.outbox import destination_form
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import NAME_BYTES_MAX
from precede.udfs.records.published import EXCERPT_BYTES_MAX

ESCAPED = 6
"""Bytes of JSON for one byte of text at most: a control character becomes backslash, u and four digits."""

WRAPPED_BYTES = 128
"""What Kafka writes around a batch of one record: 61 bytes for the batch, at most 36 for the record."""

OWN_BYTES_MAX = 64 * 1024
"""A record of the job's own, which names 20 ids and some at most."""

DEAD_LETTER_BYTES_MAX = (ESCAPED + 1) * EXCERPT_BYTES_MAX + 16 * 1024 + WRAPPED_BYTES
"""The head of the value with every byte escaped, the head of the key, and names and sentence beside them.

The control topic must take as much, although its records are smaller: one producer writes both, in batches of one size.
"""


def appended_bytes_max() -> int:
    """The fields of an ordered record that its raw record does not have, with the longest names and numbers."""
    longest = max(ORDERS, key=len)
    form = destination_form(longest, "abandoned", 2**31 - 1, "\x01" * NAME_BYTES_MAX)
    return len(form % (b"", *[2**63 - 1] * 5))


def raw_bytes_max(limits: Limits) -> int:
    """A record of the raw topic that is not oversize, or one of the job's own."""
    return max(limits.record_bytes_max + NAME_BYTES_MAX + WRAPPED_BYTES, OWN_BYTES_MAX)


def ordered_bytes_max(limits: Limits) -> int:
    """A record of the ordered topic."""
    return raw_bytes_max(limits) + appended_bytes_max()


def batch_bytes_max(limits: Limits) -> int:
    """A batch that every topic of a stream takes which takes its largest record."""
    return min(raw_bytes_max(limits), DEAD_LETTER_BYTES_MAX)
