"""Names and message ids as a person writes and reads them on the command line."""

from precede.command_options import WrongUse
from precede.udfs.records.identifiers import MessageId, checked_id
from precede.udfs.records.identifiers import parse_id as parse_text


def parse_id(text: str, given: str = "--after") -> MessageId:
    """Read `sender:seq`, which stands for epoch 0, or `sender@epoch:seq`, or the JSON form."""
    import msgspec

    try:
        if not text.endswith("]"):
            return parse_text(text)
        return checked_id(*msgspec.json.decode(text, type=tuple[str, int, int]))
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise WrongUse(
            f'{given} {text} is no id; write sender:seq, sender@epoch:seq or ["sender", epoch, seq].'
        ) from None
    except ValueError as error:
        raise WrongUse(f"{given} {error}.") from None


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
