"""Signs of life: what a `heartbeat` record does. By clocks it may let messages go; else its sender is only seen."""

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.senders import fenced, sender_key
from precede.udfs.records.messages import Heartbeat


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
