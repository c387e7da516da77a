"""Refusals that take an id for ever: in `s_b`, of a message that names itself, or stands in a circle or under one."""

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.senders import sender_key
from precede.udfs.engine.state import GroupState
from precede.udfs.engine.watches import arrival


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
