"""Who belongs to a group: views as a function of the log (M2MC, chapter 5, in the central form of precede).

A member is known by the largest epoch it joined with and whether it is still in. That is a join-semilattice, (epoch,
out over in), so a leave of one epoch never undoes the join of a later one. It cures the document's tombstone set, which
keeps a member out for ever once it has left.

A member's epoch ends with a fence: above the cut nothing counts any more of a sender and epoch that left, was evicted
or has come back. Several gateways may bring the same record: one that repeats, byte for byte, the last one of its kind
that took effect is a copy. The kind is taken for the group (`create`), for the name (`join`), or for the member and
epoch (`leave`, `evict`).
"""

from bisect import bisect_left
from zlib import crc32

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.senders import SenderRuns, fenced, sender_key
from precede.udfs.engine.signers import SERVICE, take_key, unfit
from precede.udfs.engine.state import MembershipKind, arrival, by_arrival
from precede.udfs.limits import DIGESTS_MAX
from precede.udfs.records.messages import SEQ_MAX, Create, Evict, Heartbeat, Join, Leave, Record
from precede.udfs.records.signatures import Keyring


def create(group: Group, record: Create) -> Refusal | None:
    """Begin the group: its order, options and first members."""
    if group.begun:
        return Refusal(codes.BAD_STAMP, "A group can be created only before anything else of it was accepted.")
    options = record.options
    orders = group.orders
    order = options.order if isinstance(options.order, str) else group.order.name
    if order not in orders:
        return Refusal(codes.UNKNOWN_ORDER, f"The order {order[:60]!r} is unknown; there are {', '.join(orders)}.")
    most = max(DIGESTS_MAX, group.limits.digests)
    if options.digests is not UNSET and options.digests > most:
        return Refusal(codes.BAD_STAMP, f"`digests` may be {most} at most, for all of them are kept of every sender.")
    refusal = None if options.keys is UNSET else unfit(options.keys)
    if refusal is not None:
        return refusal
    group.configure(order, options)
    for name in record.members:
        group.members[name] = (0, True)
    group.release.create(record.members)
    return None


def join(group: Group, record: Join) -> Refusal | None:
    """A sender becomes a member, or a member comes back with a larger epoch and its old one is fenced."""
    name = record.sender
    epoch: int = record.epoch
    known = group.members.get(name)
    if known is not None and epoch == known[0] and known[1]:
        return Refusal(codes.BAD_STAMP, f"{name!r} is already a member with epoch {epoch}.")
    if known is not None and epoch <= known[0]:
        return _too_old(name, known[0])
    spoken = group.epochs.get(name)
    if spoken and epoch < spoken[-1] and not group.closed:
        return _too_old(name, spoken[-1])
    refusal = group.release.judge_join(record)
    if refusal is not None:
        return refusal
    # Only `create` can have brought the key of the service: it joins to change that, and nothing waits for it.
    group.release.join(record, only_signs=group.keyring is not None and name == SERVICE)
    _fence_older(group, name, epoch)
    group.members[name] = (epoch, True)
    if group.keyring is not None:
        _take_key(group, group.keyring, record, epoch)
    return None


def _take_key(group: Group, keyring: Keyring, record: Join, epoch: int) -> None:
    """From this epoch on the key that the join brings counts; what the old key signed of later epochs does not."""
    name = record.sender
    before = keyring.newest(name)
    take_key(keyring, record)
    if keyring.newest(name) == before:
        return
    early: list[HeldMessage] = []
    for ahead in group.epochs.get(name, []):
        if ahead >= epoch:
            early += by_arrival(group.waiting.get((name, ahead), {}))
    group.release.withdraw(early, Refusal(codes.FORGED, f"{name!r} has another key from epoch {epoch} on."))


def _too_old(name: str, newest: int) -> Refusal:
    return Refusal(codes.FENCED, f"{name!r} has used epoch {newest} already: it must join with a larger one.")


def speaks(group: Group, name: str, epoch: int) -> None:
    """A sender that speaks in an open group is a member, as if it had joined just now: for releases that wait for it.

    A message still in flight of an epoch that has ended brings no member back.
    """
    known = group.members.get(name)
    if known is None or known[0] < epoch:
        _fence_older(group, name, epoch)
        group.members[name] = (epoch, True)


def leave(group: Group, record: Leave) -> Refusal | None:
    """A member's epoch ends with its last message."""
    return _put_out(group, record.sender, record.epoch, record.last, "left the group")


def evict(group: Group, record: Evict) -> Refusal | None:
    """A member's epoch ends at the cut."""
    name, epoch = record.member
    return _put_out(group, name, epoch, record.cut, "was evicted from the group")


def _put_out(group: Group, name: str, epoch: int, cut: int, what: str) -> Refusal | None:
    known = group.members.get(name)
    sender = group.senders.get(sender_key(name, epoch))
    if sender is None and (known is None or known[0] < epoch):
        return Refusal(codes.UNKNOWN_MEMBER, f"{name!r} was never seen in this group with epoch {epoch}.")
    if known is not None and (epoch < known[0] or (epoch == known[0] and not known[1])):
        return Refusal(codes.FENCED, f"Epoch {epoch} of {name!r} has ended already.")
    highest = 0 if sender is None else sender.highest
    if cut > highest + group.window:
        return Refusal(
            codes.SEQ_JUMP, f"Its last seq {cut} is more than {group.window} past {highest}, the highest seen."
        )
    why = f"{name!r} {what}, and nothing after seq {cut} counts."
    if group.closed and (known is None or known[0] < epoch):
        cut = 0  # it spoke but was never a member, and can never become one with this epoch now
        why = f"{name!r} {what} before it ever joined with epoch {epoch}, so nothing it said counts."
    _fence_older(group, name, epoch)
    group.members[name] = (epoch, False)
    if sender is None:
        group.add_sender(SenderRuns(name, epoch))
    fence(group, name, epoch, cut, why)
    return None


def _fence_older(group: Group, name: str, epoch: int) -> None:
    """Older epochs end where they were seen last, unless they have ended already.

    In a closed group those that never joined end before anything they said.
    """
    joined = group.members[name][0] if name in group.members else -1
    if joined < epoch:
        group.release.end_unheard(name)
    later = group.epochs.get(name, [])
    older = later[: bisect_left(later, epoch)]
    del later[: len(older)]  # each epoch ends once
    ended: list[HeldMessage] = []
    for ending in [0, *older] if epoch else []:
        sender = group.senders.get(sender_key(name, ending))
        if sender is not None and sender.fence == SEQ_MAX:
            cut = 0 if group.closed and ending > joined else sender.highest
            ended += close(group, name, ending, cut)
    group.release.withdraw(ended, Refusal(codes.FENCED, f"{name!r} has come back with epoch {epoch}."))


CREATE, JOIN, LEAVE, EVICT = range(4)


def is_copy(group: Group, record: Record, value: bytes) -> bool:
    """Whether the last record of this kind that took effect had the same bytes."""
    kind = _kind_of(record)
    return kind is not None and group.took_effect.get(kind) == crc32(value)


def note_effect(group: Group, record: Record, value: bytes) -> None:
    """This record took effect."""
    kind = _kind_of(record)
    if kind is not None:
        group.took_effect[kind] = crc32(value)


def _kind_of(record: Record) -> MembershipKind | None:
    match record:
        case Create():
            return CREATE, "", 0
        case Join():
            return JOIN, record.sender, 0
        case Leave():
            return LEAVE, record.sender, record.epoch
        case Evict():
            return EVICT, *record.member
    return None


def fence(group: Group, name: str, epoch: int, cut: int, why: str) -> None:
    """Let no seq above the cut count any more; the messages held above it become dead letters now."""
    group.release.withdraw(close(group, name, epoch, cut), Refusal(codes.FENCED, why))


def close(group: Group, name: str, epoch: int, cut: int) -> list[HeldMessage]:
    """Let no seq above the cut count any more; the messages held above it are returned, to be withdrawn."""
    sender = group.senders.get(sender_key(name, epoch))
    if sender is None:
        return []
    sender.fence = min(sender.fence, cut)
    group.release.fence(name, epoch)
    return _held_above(group, sender, cut)


def _held_above(group: Group, sender: SenderRuns, cut: int) -> list[HeldMessage]:
    """The held messages of a sender above a seq: found by its open seqs, or among all held where these are fewer."""
    name, epoch, held = sender.name, sender.epoch, group.held
    if group.closed and not group.has_member(name, epoch):  # then all of them wait for the join
        return [one for one in by_arrival(group.waiting.get((name, epoch), {})) if one.id[2] > cut]
    if sender.missing_count(cut + 1, sender.highest) > len(held):
        found = [one for one in held.values() if one.id[0] == name and one.id[1] == epoch and one.id[2] > cut]
    else:
        ids = ((name, epoch, seq) for seq in sender.missing(cut + 1, sender.highest))
        found = [held[id_] for id_ in ids if id_ in held]
    return sorted(found, key=arrival)


def receive_heartbeat(group: Group, record: Heartbeat, offset: int, now_ms: int) -> Refusal | None:
    """Take note of the sender and of what it promises; it is judged as the message that it announces would be."""
    following: int = record.seq
    release = group.release
    sender = group.senders.get(sender_key(record.sender, record.epoch))
    if sender is None:
        sender = group.new_sender(record.sender, record.epoch)
    if following > sender.fence or release.is_over(sender):
        return fenced(sender)
    refusal = release.fault_of_heartbeat(record)
    if refusal is not None:
        return refusal
    if following > sender.highest + group.window:
        past = f"more than {group.window} past {sender.highest}, the highest seen"
        return Refusal(codes.SEQ_JUMP, f"The heartbeat's next seq {following} is {past}.")
    refusal = release.heartbeat(record, now_ms)
    if refusal is not None:
        return refusal
    group.add_sender(sender)
    group.begun = True
    release.advance(offset, now_ms)
    return None
