"""Ids, names and descriptions as a person writes them: `ann:2`, or `ann@1:2` for the second message of ann's epoch 1.

The epoch is left out where it is 0, unless the name itself ends in `@` and digits. A name may contain `@` and `:`, so
the numbers are read from the right. An epoch with a zero in front is refused: `ann@01:2` could be meant as a name.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from precede.udfs.records.messages import DESCRIPTION_MAX, EPOCH_MAX, NAME_BYTES_MAX, SEQ_MAX

DIGITS_MAX = 20
"""So many digits are more than any number of an id has."""

_TEXT = re.compile(r"(?P<sender>.+?)(?:@(?P<epoch>[0-9]+))?:(?P<seq>[0-9]+)", re.DOTALL)
_ENDS_AS_EPOCH = re.compile(r"@[0-9]+\Z")


class MessageId(NamedTuple):
    """The id of a message: a tuple, which as text is what a person writes."""

    sender: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return id_text(self)


def id_text(id_: Sequence[object]) -> str:
    """An id as a person writes it."""
    sender, epoch, seq = id_
    has_epoch = epoch or _ENDS_AS_EPOCH.search(str(sender))  # without it, the end of the name would be read as one
    return f"{sender}@{epoch}:{seq}" if has_epoch else f"{sender}:{seq}"


def parse_id(text: str) -> MessageId:
    """Read what `id_text` writes. Raises ValueError with a sentence for anything else."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} is no id: write sender:seq, or sender@epoch:seq")
    epoch = found["epoch"] or "0"
    if len(epoch) > 1 and epoch[0] == "0":
        raise ValueError(
            f"{text} has an epoch with a zero in front: leave the zero out, or write"
            f" {found['sender']}@{epoch}@0:{found['seq']} if that is the end of the name"
        )
    return checked_id(found["sender"], int(epoch[:DIGITS_MAX]), int(found["seq"][:DIGITS_MAX]))


def as_name(what: str, name: Any) -> str:
    """The name of a group or a member."""
    try:
        size = len(name.encode())
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{what} must be text that UTF-8 can encode, not {name!r}") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise ValueError(f"{what} must have 1 to {NAME_BYTES_MAX} bytes, not {size}")
    return str(name)


def as_description(description: Any) -> str | None:
    """What a group is said to be about; None if nothing is said."""
    if description is not None and not isinstance(description, str):
        raise ValueError(f"the description of a group must be text, not {description!r}")
    if description is not None and len(description) > DESCRIPTION_MAX:
        raise ValueError(
            f"the description of a group may have {DESCRIPTION_MAX:,} characters, and this has {len(description):,}"
        )
    return description


def checked_id(sender: str, epoch: int, seq: int) -> MessageId:
    """The id of these parts. Raises ValueError if one of them is out of its bounds."""
    as_name("the sender of an id", sender)
    if epoch.__class__ is not int or not 0 <= epoch <= EPOCH_MAX or seq.__class__ is not int or not 1 <= seq <= SEQ_MAX:
        raise ValueError(
            f"in an id the epoch must be 0 to {EPOCH_MAX} and the seq 1 to {SEQ_MAX}, not {epoch!r} and {seq!r}"
        )
    return MessageId(sender, epoch, seq)
