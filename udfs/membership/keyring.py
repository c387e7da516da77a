"""Who may speak in a group with keys: the public keys that the log names, and which of them must sign a record.

`create` makes a group one with keys, and from there on nothing unsigned is taken; `join` brings the key of a newcomer,
or a new one. A key counts from the epoch on that brought it, so what was in flight of an older epoch is still checked
by the key of its time; for what is of no epoch (`join`, `evict`, `abandon`) only the newest counts.

| record | signed by |
|---|---|
| message, `heartbeat`, `leave` | its sender |
| `join` of who has a key | the key it has, or the service's |
| `join` of a newcomer, who must bring a key | that key where the group is open, or the service's |
| `evict`, and `abandon` of other's ids | the service, or any sender that is not out where `create` named no service |
| `abandon` of one's own ids, of an epoch that was seen | its sender while it is not out, or the service |

The service is the sender `precede`, and a record that names no sender is taken for its. Its key can only come from
`create`, or else a newcomer of that name would rule the group.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.records.job_records import encode_sentence
from precede.udfs.records.messages import Abandon, Create, Evict, Join, Record
from precede.udfs.records.signatures import UNFIT_KEY, is_signed_by, read_key, signature_in
from precede.udfs.ticks.patience import Patience

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group

SERVICE = "precede"

KEYS_MAX = 1_000
"""How many keys of one sender are kept: of more the oldest is forgotten, and its epochs are over."""

Keys = list[tuple[int, bytes]]
"""Of one sender: the epoch from which on a key counts, and the key, the newest last."""

UNSIGNED = Refusal(
    codes.FORGED,
    "The group has keys and takes nothing unsigned: the field `signature` must stand last, without white space.",
)
SERVICE_ONLY = Refusal(codes.FORGED, "Only the group's service key may sign this for others.")
UNSEEN = Refusal(codes.FORGED, "It gives up on an epoch of its sender that was never seen: nothing of it is missing.")
OUT = Refusal(codes.FORGED, "Its sender is out of the group, and gives up on nothing any more.")


def believes_the_job(group: "Group") -> bool:
    """Whether the job's own `evict` and `abandon` can count: a group with keys takes them from its service alone."""
    return group.keyring is None or group.keyring.has_service


def is_service(group: "Group", patience: Patience) -> bool:
    """Whether what the job signs is taken for the service's; without its key a record would only be `forged`."""
    return group.keyring is None or group.keyring.newest(SERVICE) == patience.service_key


def tell_which_key_lacks(group: "Group", offset: int) -> None:
    """Whoever runs the job reads why this group waits on, and what to set."""
    sentence = (
        f"In group {group.name!r} the job may not give up on what is missing, nor put out who is silent: "
        f"set `service_key` to the private key whose public half that group has under {SERVICE!r}."
    )
    group.outbox.say("person", group.key, encode_sentence(sentence), offset)


def unfit(keys: dict[str, str]) -> Refusal | None:
    """What is wrong with the `keys` of a `create`."""
    if not keys:
        return Refusal(codes.BAD_STAMP, "`keys` names no key: leave it out for a group without.")
    for name, text in keys.items():
        if read_key(text) is None:
            return Refusal(codes.BAD_STAMP, f"What `keys` gives for {name[:60]!r} {UNFIT_KEY}.")
    return None


class Keyring:
    """The keys of one group."""

    __slots__ = ("added", "group", "has_service", "keys")

    def __init__(self, group: "Group", keys: dict[str, str]) -> None:
        self.group = group
        self.keys: dict[str, Keys] = {name: [(0, key)] for name, text in keys.items() if (key := read_key(text))}
        self.has_service = SERVICE in self.keys
        self.added: dict[str, Keys] = {}
        """What `join` records brought: all that a snapshot must keep beside the options."""

    def add(self, name: str, epoch: int, key: bytes) -> None:
        """From this epoch on, this key counts."""
        for keys in (self.keys.setdefault(name, []), self.added.setdefault(name, [])):
            keys.append((epoch, key))
            del keys[:-KEYS_MAX]

    def take(self, record: Join) -> None:
        """A join has taken effect: what key it brings counts."""
        key = read_key(record.key)
        if key is not None:
            self.add(record.sender, record.epoch, key)

    def judge(self, record: Record, value: bytes) -> Refusal | None:
        """Whether a trimmed record is signed by who may say it."""
        signature = signature_in(value)
        if signature is None:
            return UNSIGNED
        signers = self._signers(record)
        if isinstance(signers, Refusal):
            return signers
        keys = [key for key in signers if key is not None]
        if not keys:
            return Refusal(codes.FORGED, f"The log has no key of {_speaker(record)!r} for this record.")
        if not any(is_signed_by(key, signature, value) for key in keys):
            return Refusal(codes.FORGED, f"No key that may speak for {_speaker(record)!r} has signed it.")
        if isinstance(record, Join) and record.key is not UNSET and read_key(record.key) is None:
            return Refusal(codes.BAD_STAMP, f"The `key` it brings {UNFIT_KEY}.")
        return None

    def _signers(self, record: Record) -> list[bytes | None] | Refusal:
        """The keys of which one must have signed this; None stands for one that the log does not have."""
        if isinstance(record, Join):
            return self._signers_of_join(record)
        if not isinstance(record, Create | Evict | Abandon):
            return [self._key_of(record.sender, record.epoch)]  # type: ignore[arg-type]
        speaker = _speaker(record)
        refusal = self._refusal_of(speaker, record) if isinstance(record, Evict | Abandon) else None
        return [self.newest(speaker)] if refusal is None else refusal

    def _signers_of_join(self, record: Join) -> list[bytes | None] | Refusal:
        name = record.sender
        brought = read_key(record.key)
        if name in self.keys:
            return [self.newest(name), self.newest(SERVICE)]
        if name == SERVICE:
            return Refusal(codes.FORGED, f"The key of the service {SERVICE!r} can only be named in `create`.")
        if record.key is UNSET:
            return Refusal(codes.FORGED, f"It brings no `key`, and the log has none of {name!r}.")
        if self.group.closed and not self.has_service:
            return Refusal(codes.FORGED, "The service lets newcomers into a closed group, and `create` named none.")
        return [self.newest(SERVICE), None if self.group.closed else brought]

    def _refusal_of(self, speaker: str, record: Evict | Abandon) -> Refusal | None:
        """Why the speaker may not put others out, or give up on what is named there."""
        if speaker == SERVICE:
            return None
        known = self.group.membership.members.get(speaker)
        is_out = known is not None and not known[1]
        if isinstance(record, Abandon) and all(name == speaker for name, *_ in record.ids):
            if is_out:
                return OUT
            return None if all(self._was_seen(speaker, epoch) for _, epoch, *_ in record.ids) else UNSEEN
        return SERVICE_ONLY if self.has_service or is_out else None

    def _was_seen(self, name: str, epoch: int) -> bool:
        """Whether this epoch of a sender has begun, as far as the log says; the first one always has."""
        known = self.group.membership.members.get(name)
        return not epoch or (name, epoch) in self.group.senders or (known is not None and known[0] == epoch)

    def _key_of(self, name: str, epoch: int) -> bytes | None:
        """The key that counts in this epoch of a sender."""
        keys = self.keys.get(name, [])
        at = bisect_right(keys, epoch, key=_since)
        return keys[at - 1][1] if at else None

    def newest(self, name: str) -> bytes | None:
        """The key that counts for what is of no epoch."""
        keys = self.keys.get(name)
        return keys[-1][1] if keys else None


def _since(key: tuple[int, bytes]) -> int:
    return key[0]


def _speaker(record: Record) -> str:
    """Who says this; what names no sender is the service's."""
    return record.sender if isinstance(record.sender, str) else SERVICE
