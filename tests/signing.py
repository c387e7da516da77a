"""Keys for tests, each derived from a word, so that a test signs the same bytes on every run."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from precede.udfs.records.signatures import sign


def private(word: str) -> Ed25519PrivateKey:
    """The private key derived from a word."""
    return Ed25519PrivateKey.from_private_bytes(sha256(word.encode()).digest())


def public_bytes(word: str) -> bytes:
    """The public key derived from a word."""
    return private(word).public_key().public_bytes_raw()


def public(word: str) -> str:
    """The public key derived from a word, as `create` and `join` write it."""
    return b64encode(public_bytes(word)).decode()


def publics(*words: str) -> dict[str, str]:
    """The public keys of senders, derived from their names."""
    return {word: public(word) for word in words}


class Signs:
    """A peer's signer: it signs with the key derived from a name."""

    def __init__(self, name: str) -> None:
        self.public_key = public(name)
        self._private = private(name)

    def __call__(self, record: bytes) -> bytes:
        return sign(record, self._private)
