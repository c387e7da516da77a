"""Names and message ids as a person writes and reads them on the command line."""

import re
from typing import TYPE_CHECKING, Any

from precede.command_options import WrongUse

if TYPE_CHECKING:
    from precede.udfs.records.messages import Id


_SHORT = re.compile(r"(?P<sender>.+?)(?:@(?P<epoch>[0-9]{1,10}))?:(?P<seq>[0-9]{1,16})", re.DOTALL)
"""A name may contain `@` and `:`, so the numbers are read from the end."""


def id_text(id_: "Id") -> str:
    """An id as a person writes it: `sender:seq`, or `sender@epoch:seq` where the epoch is not 0."""
    sender, epoch, seq = id_
    looks_longer = re.search(r"@[0-9]{1,10}\Z", sender)  # then the name's own end would be read as an epoch
    return f"{sender}@{epoch}:{seq}" if epoch or looks_longer else f"{sender}:{seq}"


def parse_id(text: str, given: str = "--after") -> "Id":
    """Read `sender:seq`, which stands for epoch 0, or `sender@epoch:seq`, or the JSON form."""
    import msgspec

    from precede.udfs.records.messages import EPOCH_MAX, SEQ_MAX

    if short := _SHORT.fullmatch(text):
        id_: Any = (short["sender"], int(short["epoch"] or 0), int(short["seq"]))
    else:
        try:
            id_ = msgspec.json.decode(text, type=tuple[str, int, int])
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise WrongUse(
                f'{given} {text} is no id; write sender:seq, sender@epoch:seq or ["sender", epoch, seq].'
            ) from None
    check_name(f"the sender in {given}", id_[0])
    if not 0 <= id_[1] <= EPOCH_MAX or not 1 <= id_[2] <= SEQ_MAX:
        raise WrongUse(f"{given} {text}: an epoch is 0 to {EPOCH_MAX}, a seq 1 to {SEQ_MAX}.")
    return id_[0], id_[1], id_[2]


def check_name(what: str, name: str) -> None:
    """Raise WrongUse if this cannot be the name of a group or a member."""
    from precede.udfs.records.messages import NAME_BYTES_MAX

    size = utf8_size(what, name)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise WrongUse(f"{what} must have 1 to {NAME_BYTES_MAX} bytes, not {size}.")


def utf8_size(what: str, text: str) -> int:
    """The size in bytes; raises WrongUse if it is not text, because a shell passes on any bytes."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise WrongUse(f"{what} is not UTF-8.") from None
