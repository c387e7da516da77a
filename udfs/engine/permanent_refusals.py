"""Refusals that take an id for ever: in `s_b`, of a message that names itself, or stands in a circle or under one."""

from typing import TYPE_CHECKING

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, arrival
from precede.udfs.engine.senders import sender_key

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def condemn(group: "Group", one: HeldMessage, refusal: Refusal) -> None:
    """Refuse a message and take its id for ever; what is held under it can never be delivered either."""
    follower = Refusal(codes.ORPHAN, "What it answers was refused, so it can never be delivered.")
    if refusal.code == codes.CYCLE:
        follower = Refusal(codes.CYCLE, "It stands in or under a circle of messages that name each other as parents.")
    condemned = [one]
    for member in condemned:  # grows while it is walked
        name, epoch, seq = member.id
        group.senders[sender_key(name, epoch)].refuse(seq)
        for under in group.take_watchers(member.id):
            group.release(under)
            condemned.append(under)
    for member in sorted(condemned, key=arrival):
        group.refuse_held(member, refusal if member is one else follower)
