"""The public keys that a group with keys has been told, and from which epoch on each counts.

A key counts from the epoch that brought it, so a record of an older epoch is still checked by the key of its time. For
records that belong to no epoch (`join`, `evict`, `abandon`) only the newest key counts. Which of the keys must have
signed a record is in membership/keyring.py.
"""

from bisect import bisect_right

from precede.udfs.records.signatures import read_key

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
