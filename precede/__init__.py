"""Messages of a group, delivered in the order they depend on each other.

The names below are loaded when they are first used, so that a program that wants the kernel alone never imports Kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precede.groups.manager import Groups as Groups
    from precede.ingest.kafka.access import Access as Access
    from precede.ingest.kafka.access import Address as Address
    from precede.inspect.answer import Answer as Answer
    from precede.inspect.why import why as why
    from precede.member.member import Member as Member
    from precede.member.object_host import ObjectHost as ObjectHost
    from precede.member.status import Status as Status
    from precede.peer.peer import Peer as Peer
    from precede.peer.segment import Segment as Segment
    from precede.reading.delivery import AbandonedMessage as Abandoned
    from precede.reading.delivery import DeliveredMessage as Message
    from precede.reading.delivery import Delivery as Delivery
    from precede.reading.delivery import ViewChange as View
    from precede.reading.following import Follower as Follower
    from precede.reading.following import follow as follow
    from precede.udfs.engine.held import Held as Held
    from precede.udfs.errors import AccessDenied as AccessDenied
    from precede.udfs.errors import CallFailed as CallFailed
    from precede.udfs.errors import Closed as Closed
    from precede.udfs.errors import Difference as Difference
    from precede.udfs.errors import Hole as Hole
    from precede.udfs.errors import PrecedeError as PrecedeError
    from precede.udfs.errors import Refused as Refused
    from precede.udfs.errors import Rejected as Rejected
    from precede.udfs.errors import Unconfirmed as Unconfirmed
    from precede.udfs.errors import Unreachable as Unreachable
    from precede.udfs.holdback import Holdback as Holdback
    from precede.udfs.limits import Limits as Limits
    from precede.udfs.member.object_calls import CALLER as CALLER
    from precede.udfs.member.object_calls import AnyOf as AnyOf
    from precede.udfs.member.object_calls import Call as Call
    from precede.udfs.member.object_calls import ReceiveData as ReceiveData
    from precede.udfs.member.object_calls import SendData as SendData
    from precede.udfs.member.object_calls import Started as Started
    from precede.udfs.orders import Order as Order
    from precede.udfs.orders import register as register

__version__ = "0.1.0"

_ERRORS = (
    *("AccessDenied", "CallFailed", "Closed", "Difference", "Hole"),
    *("PrecedeError", "Refused", "Rejected", "Unconfirmed", "Unreachable"),
)
_CALLS = ("CALLER", "AnyOf", "Call", "ReceiveData", "SendData", "Started")
_CALLED_HERE = {"Abandoned": "AbandonedMessage", "Message": "DeliveredMessage", "View": "ViewChange"}
"""What has a longer name where it is defined, because the kernel has messages and views, too."""
_HOMES = {
    **dict.fromkeys(_ERRORS, "precede.udfs.errors"),
    **dict.fromkeys(_CALLS, "precede.udfs.member.object_calls"),
    **dict.fromkeys(_CALLED_HERE, "precede.reading.delivery"),
    "Access": "precede.ingest.kafka.access",
    "Address": "precede.ingest.kafka.access",
    "Answer": "precede.inspect.answer",
    "Delivery": "precede.reading.delivery",
    "Follower": "precede.reading.following",
    "Groups": "precede.groups.manager",
    "Held": "precede.udfs.engine.held",
    "Holdback": "precede.udfs.holdback",
    "Limits": "precede.udfs.limits",
    "Member": "precede.member.member",
    "ObjectHost": "precede.member.object_host",
    "Order": "precede.udfs.orders",
    "Peer": "precede.peer.peer",
    "Segment": "precede.peer.segment",
    "Status": "precede.member.status",
    "follow": "precede.reading.following",
    "register": "precede.udfs.orders",
    "why": "precede.inspect.why",
}

__all__ = [  # noqa: RUF100, F822
    "CALLER",
    "Abandoned",
    "Access",
    "AccessDenied",
    "Address",
    "Answer",
    "AnyOf",
    "Call",
    "CallFailed",
    "Closed",
    "Delivery",
    "Difference",
    "Follower",
    "Groups",
    "Held",
    "Holdback",
    "Hole",
    "Limits",
    "Member",
    "Message",
    "ObjectHost",
    "Order",
    "Peer",
    "PrecedeError",
    "ReceiveData",
    "Refused",
    "Rejected",
    "Segment",
    "SendData",
    "Started",
    "Status",
    "Unconfirmed",
    "Unreachable",
    "View",
    "__version__",
    "follow",
    "register",
    "why",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'precede' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), _CALLED_HERE.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
