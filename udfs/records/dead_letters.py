"""Dead letters: a refused raw record, and why it was refused (contract, section 5)."""

from base64 import b64encode

import msgspec
from msgspec import UNSET, UnsetType

EXCERPT_BYTES_MAX = 64 * 1024
"""How much of a raw record's key, and of its value, a dead letter carries."""

_encode = msgspec.json.Encoder().encode


class DeadLetter(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Why one raw record will never be delivered."""

    code: str
    reason: str
    group: str | None
    sender: str | None
    epoch: int | None
    seq: int | None
    destination: str | UnsetType = UNSET
    partition: int
    offset: int
    arrived_ms: int
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class LetterFields(msgspec.Struct, gc=False):
    """A dead letter as its readers take it: what it does not have is None."""

    code: str
    reason: str
    partition: int
    offset: int
    arrived_ms: int
    group: str | None = None
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None
    destination: str | None = None
    value: str | None = None
    value_base64: str | None = None
    truncated: bool = False


def encode_dead_letter(letter: DeadLetter, value: bytes | None) -> bytes:
    """Write one dead letter, which includes the raw value."""
    if value is None:
        letter.value = None
        return _encode(letter)
    if len(value) > EXCERPT_BYTES_MAX:
        letter.truncated = True
    head = value[:EXCERPT_BYTES_MAX]
    try:
        value.decode()
    except UnicodeDecodeError:
        letter.value_base64 = b64encode(head).decode()
    else:
        # The cut may split a character; nothing else can be wrong with the head of valid UTF-8.
        letter.value = head.decode(errors="ignore")
    return _encode(letter)
