"""The steps of a group whose order goes by clocks: what any record, a heartbeat or a tick may let go."""

from typing import TYPE_CHECKING

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.senders import fenced, sender_key
from precede.udfs.records.messages import Heartbeat
from precede.udfs.release.by_clocks import Clocked
from precede.udfs.ticks.repair_timers import hear

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def advance(group: "Group", offset: int, now_ms: int, *, is_tick: bool = False) -> None:
    """Let in whose turn has come, then deliver what the clocks let go, one by one."""
    order = group.order
    assert isinstance(order, Clocked)
    if not is_tick:
        order.saw(now_ms)
    while True:
        for id_ in order.just_entered:  # grows while it is walked
            if id_ in group.waiting:
                group.settle(group.woken_by(id_), offset, now_ms)
        order.just_entered.clear()
        one = order.next_ready(now_ms)
        if one is None:
            if group.waits is not None and not group.held:
                group.waits.heard.clear()  # nobody waits for anybody's word any more
            return
        group.stop_watching(one)
        group.release(one)
        order.delivered(one)
        group.deliver(one, offset, now_ms)


def heartbeat(group: "Group", record: Heartbeat, offset: int, now_ms: int) -> Refusal | None:
    """A sign of life: its sender is seen; where clocks decide it may let messages go, elsewhere nobody waits for it.

    It is judged as the message that it announces would be.
    """
    name: str = record.sender
    epoch: int = record.epoch
    following: int = record.seq
    sender = group.senders.get(sender_key(name, epoch))
    if sender is None:
        sender = group.membership.new_sender(name, epoch)
    order = group.order if isinstance(group.order, Clocked) else None
    if following > sender.fence or (order is not None and order.is_over(sender)):
        return fenced(sender)
    refusal = None if order is None else order.fault_of_heartbeat(record)
    if refusal is not None:
        return refusal
    if following > sender.highest + group.window:
        past = f"more than {group.window} past {sender.highest}, the highest seen"
        return Refusal(codes.SEQ_JUMP, f"The heartbeat's next seq {following} is {past}.")
    is_alive = order is not None and order.tells_more(record)
    refusal = None if order is None else order.heartbeat(record)
    if refusal is not None:
        return refusal
    group.add_sender(sender)
    group.begun = True
    if order is not None:
        if is_alive:
            hear(group, name, epoch, now_ms)
        advance(group, offset, now_ms)
    return None
