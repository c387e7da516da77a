"""Signs records and verifies their signatures (contract, section 2): Ed25519 by RFC 8032, in base64.

`signature` is the last field of the object and signs the bytes before `,"signature":`. Exactly these bytes are
verified, so a signed record has one spelling only: no white space or escapes around the signature, canonical base64.
Otherwise anyone who carries a record could turn it into a different record that is signed too, and the sender's own
would then be an `equivocation`.

Verification must give the same result on every machine and with every library. So this module rejects the cases that
libraries treat differently: an s that is not reduced, keys of small order, for which a signature proves nothing, and
keys in a non-canonical spelling. The library verifies without a cofactor, as RFC 8032 allows.

`Keyring` has the public keys that a group with keys was told. A key counts from the epoch that brought it, so a record
of an older epoch is still checked by the key of its time. For records that belong to no epoch (`join`, `evict`,
`abandon`) only the newest key counts. Which of the keys must have signed a record is in engine/signers.py.
"""

from base64 import b64decode, b64encode
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

OPENING = b',"signature":"'
CLOSING = b'"}'
SIGNATURE_BYTES = 64
TEXT_BYTES = 88
"""Length of a signature in base64."""
TAIL_BYTES = len(OPENING) + TEXT_BYTES + len(CLOSING)
KEY_BYTES = 32

_FIELD = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_Y_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL = {0, 1, _FIELD - 1, _Y_OF_ORDER_8, _FIELD - _Y_OF_ORDER_8}
"""The y of the eight points of small order: under such a key one signature is valid for many messages."""

UNFIT_KEY = "is no Ed25519 public key in base64: 44 characters, as `precede key` prints them"


def sign(record: bytes, key: "Ed25519PrivateKey") -> bytes:
    """Append a signature to the record, a JSON object without trailing white space."""
    return b"".join((record[:-1], OPENING, b64encode(key.sign(record[:-1])), CLOSING))


def read_key(text: object) -> bytes | None:
    """The public key in this text, or None if it is not a key that can prove anything."""
    key = _read_base64(text.encode()) if isinstance(text, str) else b""
    if len(key) != KEY_BYTES:
        return None
    y = int.from_bytes(key, "little") & (2**255 - 1)
    return None if y >= _FIELD or y in _SMALL else key


def signature_in(record: bytes) -> bytes | None:
    """The signature at the end of a trimmed record, or None if there is none in the canonical form."""
    tail = record[-TAIL_BYTES:]
    if not (tail.startswith(OPENING) and tail.endswith(CLOSING)):
        return None
    signature = _read_base64(tail[len(OPENING) : -len(CLOSING)])
    if len(signature) != SIGNATURE_BYTES or int.from_bytes(signature[KEY_BYTES:], "little") >= _ORDER:
        return None
    return signature


def is_signed_by(key: bytes, signature: bytes, record: bytes) -> bool:
    """Whether this key signed the record, which ends with the signature."""
    try:
        from cryptography.exceptions import InvalidSignature
    except ModuleNotFoundError:
        raise Refused("A signature needs cryptography, which is not installed: pip install 'precede[keys]'.") from None

    try:
        _verifier(key).verify(signature, record[:-TAIL_BYTES])
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=4096)
def _verifier(key: bytes) -> "Ed25519PublicKey":
    # Imported here, so that groups without keys neither need the library nor wait for it to load.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(key)


def _read_base64(text: bytes) -> bytes:
    """The decoded bytes; empty unless the text is canonical base64."""
    try:
        found = b64decode(text, validate=True)
    except ValueError:
        return b""
    return found if b64encode(found) == text else b""


KEYS_MAX = 1_000
"""How many keys of one sender are kept: beyond that the oldest is forgotten, and its epochs are over."""

Keys = list[tuple[int, bytes]]
"""Of one sender: the epoch from which on a key counts, and the key, the newest last."""


class Keyring:
    """The keys of one group."""

    __slots__ = ("added", "keys")

    def __init__(self, keys: dict[str, str]) -> None:
        self.keys: dict[str, Keys] = {name: [(0, key)] for name, text in keys.items() if (key := read_key(text))}
        self.added: dict[str, Keys] = {}
        """What `join` records brought: all that a snapshot must keep beside the options."""

    def add(self, name: str, epoch: int, key: bytes) -> None:
        """From this epoch on, this key counts."""
        for keys in (self.keys.setdefault(name, []), self.added.setdefault(name, [])):
            keys.append((epoch, key))
            del keys[:-KEYS_MAX]

    def in_epoch(self, name: str, epoch: int) -> bytes | None:
        """The key that counts in this epoch of a sender."""
        keys = self.keys.get(name, [])
        at = bisect_right(keys, epoch, key=_since)
        return keys[at - 1][1] if at else None

    def newest(self, name: str) -> bytes | None:
        """The key that counts for records that belong to no epoch."""
        keys = self.keys.get(name)
        return keys[-1][1] if keys else None


def _since(key: tuple[int, bytes]) -> int:
    return key[0]
