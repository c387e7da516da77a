"""Messages of a group, delivered in the order they depend on each other.

The names below are loaded when they are first used, so that a program that wants the kernel alone never imports Kafka.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingest.kafka.access import Access as Access
    from ingest.kafka.access import Address as Address
    from precede.following import Delivery as Delivery
    from precede.following import follow as follow
    from precede.group_manager import Groups as Groups
    from precede.member import Member as Member
    from precede.object_host import Call as Call
    from precede.object_host import ObjectHost as ObjectHost
    from udfs.errors import AccessDenied as AccessDenied
    from udfs.errors import CallFailed as CallFailed
    from udfs.errors import Hole as Hole
    from udfs.errors import PrecedeError as PrecedeError
    from udfs.errors import Refused as Refused
    from udfs.errors import Unconfirmed as Unconfirmed
    from udfs.errors import Unreachable as Unreachable
    from udfs.holdback import Holdback as Holdback
    from udfs.limits import Limits as Limits
    from udfs.orders import Order as Order

__version__ = "0.1.0"

_ERRORS = ("AccessDenied", "CallFailed", "Hole", "PrecedeError", "Refused", "Unconfirmed", "Unreachable")
_HOMES = {
    **dict.fromkeys(_ERRORS, "udfs.errors"),
    "Access": "ingest.kafka.access",
    "Address": "ingest.kafka.access",
    "Call": "precede.object_host",
    "Delivery": "precede.following",
    "Groups": "precede.group_manager",
    "Holdback": "udfs.holdback",
    "Limits": "udfs.limits",
    "Member": "precede.member",
    "ObjectHost": "precede.object_host",
    "Order": "udfs.orders",
    "follow": "precede.following",
}

__all__ = [  # noqa: RUF100, F822
    "Access",
    "AccessDenied",
    "Address",
    "Call",
    "CallFailed",
    "Delivery",
    "Groups",
    "Holdback",
    "Hole",
    "Limits",
    "Member",
    "ObjectHost",
    "Order",
    "PrecedeError",
    "Refused",
    "Unconfirmed",
    "Unreachable",
    "__version__",
    "follow",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'precede' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
