"""Whether a message may come in: every check, in the contract's order (section 3, "Order of checks").

The engine calls this only for a message that is in some way unusual; the usual one has nothing to be checked for but
what its order says.

Some refusals take an id for ever: in `s_b`, of a message that names itself, or stands in a circle or under one.
"""

from precede.udfs import codes
from precede.udfs.codes import COPY, Refusal
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.interfaces import OrderRules
from precede.udfs.engine.senders import SenderRuns, fenced, sender_key
from precede.udfs.engine.state import GroupState, arrival, whose
from precede.udfs.records.messages import Id, Message


def check(
    group: GroupState, order: OrderRules, sender: SenderRuns, id_: Id, message: Message, value: bytes
) -> Watch | Refusal | None:
    """Every check: copy, fenced, late, stamp, equivocation, seq_jump, poison; then what the message waits for."""
    seq = id_[2]
    held = group.held.get(id_)
    settled = held is None and seq in sender
    overtaken = not settled and held is None and seq <= sender.highest <= sender.fence
    if overtaken and sender.refused is None and not group.closed:
        return order.arrive(id_, message)  # the most common of the messages that come here
    abandoned = settled and sender.abandoned is not None and seq in sender.abandoned
    if settled and not abandoned and not sender.differs(seq, value, group.digests):
        return COPY
    if held is not None and held.value == value:
        return COPY
    if seq > sender.fence:
        return fenced(sender)
    if abandoned or (held is not None and held.value is None):
        return Refusal(codes.LATE, "The group has given up on this message; another record stands in its place.")
    fault = order.fault(message)
    if fault is not None:
        return fault
    if settled or held is not None:
        return Refusal(codes.EQUIVOCATION, "Another message came first with the same id and other content.")
    if sender.refused is not None and seq in sender.refused:
        verdict = order.wait(id_, message)
        if isinstance(verdict, Refusal):
            return verdict
        return Refusal(codes.EQUIVOCATION, "A message with the same id and other content was refused before.")
    if seq > sender.highest + group.window:
        past = f"more than {group.window} past {sender.highest}, the highest seen of {whose(id_)}"
        return Refusal(codes.SEQ_JUMP, f"seq {seq} is {past}.")
    return order.poison(id_, message) or judge(group, order, id_, message)


def judge(group: GroupState, order: OrderRules, id_: Id, message: Message) -> Watch | Refusal | None:
    """What a message waits for: for its sender to be a member of a closed group, then for what its order says."""
    if group.closed and not group.has_member(id_[0], id_[1]):
        return id_[:2]
    return order.wait(id_, message)


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def too_many_runs(group: GroupState, sender: SenderRuns, seq: int) -> bool:
    """Whether settling this seq would begin one run too many."""
    return sender.run_count() >= group.limits.runs_max and sender.opens_run(seq)


def runs_refusal(group: GroupState, name: str) -> Refusal:
    """Why nothing can be taken that begins one more run."""
    most = group.limits.runs_max
    return Refusal(codes.BACKPRESSURE, f"What is decided of {name!r} lies in {most} runs already, its limit.")


def no_room(
    group: GroupState, sender: SenderRuns, seq: int, value: bytes, *, held: int, more: int = 1
) -> Refusal | None:
    """Why a message that has to be held cannot be taken: `held` places are waited for now, and it adds `more`."""
    if more and held + more > group.limits.held_max:
        return Refusal(codes.BACKPRESSURE, f"The group already holds {held} messages, nearly its limit.")
    if more and group.held_bytes + len(value) > group.limits.held_bytes_max:
        return Refusal(codes.BACKPRESSURE, f"The group already holds {group.held_bytes} bytes, nearly its limit.")
    if too_many_runs(group, sender, seq) or sender.refuses_too_many(seq, group.limits.runs_max):
        return runs_refusal(group, sender.name)
    return None


def refuse_permanently(group: GroupState, one: HeldMessage, refusal: Refusal) -> None:
    """Refuse a message and take its id for ever; the messages held under it can never be delivered either."""
    follower = Refusal(codes.ORPHAN, "What it answers was refused, so it can never be delivered.")
    if refusal.code == codes.CYCLE:
        follower = Refusal(codes.CYCLE, "It stands in or under a circle of messages that name each other as parents.")
    refused = [one]
    for member in refused:  # grows while it is walked
        name, epoch, seq = member.id
        group.senders[sender_key(name, epoch)].refuse(seq)
        for under in group.take_watchers(member.id):
            group.take_out(under)
            refused.append(under)
    for member in sorted(refused, key=arrival):
        group.refuse_held(member, refusal if member is one else follower)
