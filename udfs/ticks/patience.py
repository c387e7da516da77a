"""What the job decides by: how long a group waits before it asks and before it abandons, and whose key signs that.

None of this changes what a log delivers: what the job decides by it goes into the log as a record and acts when that is
read. So it may be changed at any start, unlike a limit.
"""

from typing import Literal

import msgspec

ASK_AGAIN_MS_MAX = 300_000
"""The longest pause between two requests for one gap; the first is `ask_after_ms`, each next one twice as long."""


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The job's own; a group's `create` record may set `give_up_ms` and `loss` for that group."""

    ask_after_ms: int = 2_000
    """Age at which a gap is first requested; before that it is only disorder on the way."""
    give_up_ms: int = 900_000
    """Age of a gap at which hope ends; 0: never."""
    loss: Literal["abandon", "hold"] = "abandon"
    """What happens then: the gap is abandoned, or everything that waits for it is held for ever."""
    silent_ms: int = 60_000
    """How long a member that others wait for may say nothing before it is evicted; 0: for ever."""
    service_key: bytes | None = None
    """The public half of the key that the job signs its own records with; None: it signs nothing."""
