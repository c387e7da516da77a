"""Who may speak in a group with keys: the public keys that the log names, and which of them must sign a record.

`create` makes a group one with keys, and from there on nothing unsigned is taken; `join` brings the key of a newcomer,
or a new key of a member. Which key counts in which epoch, `Keyring` in records/signatures.py knows.

| record | signed by |
|---|---|
| message, `heartbeat`, `leave` | its sender |
| `join` of a sender that has a key | the key it has, or the service's |
| `join` of a newcomer, which must bring a key | that key where the group is open, or the service's |
| `evict`, and `abandon` of other senders' ids | the service; where `create` named none, any sender not out |
| `abandon` of the sender's own ids, of an epoch that was seen | its sender while it is not out, or the service |

The service is the sender `precede`, and a record that names no sender counts as its own. Its key can only come from
`create`: otherwise a newcomer of that name would rule the group.
"""

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.records.messages import Abandon, Create, Evict, Join, Record
from precede.udfs.records.published import encode_sentence
from precede.udfs.records.signatures import UNFIT_KEY, Keyring, is_signed_by, read_key, signature_in

SERVICE = "precede"

UNSIGNED = Refusal(
    codes.FORGED,
    "The group has keys and takes nothing unsigned: the field `signature` must stand last, without white space.",
)
SERVICE_ONLY = Refusal(codes.FORGED, "Only the group's service key may sign this for others.")
UNSEEN = Refusal(codes.FORGED, "It gives up on an epoch of its sender that was never seen: nothing of it is missing.")
OUT = Refusal(codes.FORGED, "Its sender is out of the group, and gives up on nothing any more.")


def believes_the_job(group: Group) -> bool:
    """Whether the job's own `evict` and `abandon` can count: a group with keys takes them from its service alone."""
    return group.keyring is None or SERVICE in group.keyring.keys


def is_service(group: Group, service_key: bytes | None) -> bool:
    """Whether a record that the job signs with this key counts as the service's; without it, it would be `forged`."""
    return group.keyring is None or group.keyring.newest(SERVICE) == service_key


def say_which_key_is_missing(group: Group, offset: int) -> None:
    """Tell the person who runs the job why this group waits on, and what to set."""
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


def take_key(keyring: Keyring, record: Join) -> None:
    """A join has taken effect: the key it brings counts."""
    key = read_key(record.key)
    if key is not None:
        keyring.add(record.sender, record.epoch, key)


def judge(group: Group, keyring: Keyring, record: Record, value: bytes) -> Refusal | None:
    """Whether a trimmed record is signed by a sender that may say it."""
    signature = signature_in(value)
    if signature is None:
        return UNSIGNED
    signers = _signers(group, keyring, record)
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


def _signers(group: Group, keyring: Keyring, record: Record) -> list[bytes | None] | Refusal:
    """The keys of which one must have signed this; None stands for a key that the log does not have."""
    if isinstance(record, Join):
        return _signers_of_join(group, keyring, record)
    if not isinstance(record, Create | Evict | Abandon):
        return [keyring.in_epoch(record.sender, record.epoch)]  # type: ignore[arg-type]
    speaker = _speaker(record)
    refusal = _refusal_of(group, keyring, speaker, record) if isinstance(record, Evict | Abandon) else None
    return [keyring.newest(speaker)] if refusal is None else refusal


def _signers_of_join(group: Group, keyring: Keyring, record: Join) -> list[bytes | None] | Refusal:
    name = record.sender
    if name in keyring.keys:
        return [keyring.newest(name), keyring.newest(SERVICE)]
    if name == SERVICE:
        return Refusal(codes.FORGED, f"The key of the service {SERVICE!r} can only be named in `create`.")
    if record.key is UNSET:
        return Refusal(codes.FORGED, f"It brings no `key`, and the log has none of {name!r}.")
    if group.closed and SERVICE not in keyring.keys:
        return Refusal(codes.FORGED, "The service lets newcomers into a closed group, and `create` named none.")
    return [keyring.newest(SERVICE), None if group.closed else read_key(record.key)]


def _refusal_of(group: Group, keyring: Keyring, speaker: str, record: Evict | Abandon) -> Refusal | None:
    """Why the speaker may not put other senders out, or abandon what the record names."""
    if speaker == SERVICE:
        return None
    known = group.members.get(speaker)
    is_out = known is not None and not known[1]
    if isinstance(record, Abandon) and all(name == speaker for name, *_ in record.ids):
        if is_out:
            return OUT
        return None if all(_was_seen(group, speaker, epoch) for _, epoch, *_ in record.ids) else UNSEEN
    return SERVICE_ONLY if SERVICE in keyring.keys or is_out else None


def _was_seen(group: Group, name: str, epoch: int) -> bool:
    """Whether this epoch of a sender has begun, as far as the log says; the first one always has."""
    known = group.members.get(name)
    return not epoch or (name, epoch) in group.senders or (known is not None and known[0] == epoch)


def _speaker(record: Record) -> str:
    """The sender of a record; one that names no sender is the service's."""
    return record.sender if isinstance(record.sender, str) else SERVICE
