"""The limits of the kernel, what a group may ask of the memory and time of those who order it; and the job's patience.

A limit decides the output. Patience does not: what the job decides by it goes into the log as a record and acts when
that is read. So it may be changed at any start.
"""

from typing import Literal

import msgspec

DIGESTS_MAX = 100_000
"""How many digests a `create` may ask for, where the group's limits have no more; each is state for every sender."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A limit on everything; they are kept with the checkpoint, because another limit is another output.

    A group's own `create` record may set `window` and `digests` for that group.
    """

    record_bytes_max: int = 512 * 1024
    after_max: int = 20
    to_max: int = 100
    seen_max: int = 10_000
    held_max: int = 200_000
    held_bytes_max: int = 64 * 1024 * 1024
    runs_max: int = 10_000
    window: int = 100_000
    digests: int = 16

    @property
    def lists(self) -> tuple[int, int, int]:
        """How many entries `after`, `to` and `seen` of a record may have."""
        return self.after_max, self.to_max, self.seen_max

    def taking(self, lists: tuple[int, int, int]) -> "Limits":
        """These limits, which take records with lists as long as that, too."""
        after, to, seen = map(max, self.lists, lists)
        return msgspec.structs.replace(self, after_max=after, to_max=to, seen_max=seen)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0 if name == "digests" else 1
            value = getattr(self, name)
            if value.__class__ is not int or value < least:
                raise ValueError(f"limit {name} must be a whole number of at least {least}, not {value!r}")


ANY_SIZE = Limits(record_bytes_max=2**53, after_max=2**53, to_max=2**53, seen_max=2**53)
"""For a record that was taken before: by which limits that was need not be known to read it again."""


ASK_AGAIN_MS_MAX = 300_000
"""The longest pause between two requests for one gap; the first is `ask_after_ms`, each next one twice as long."""


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The job's own; a group's `create` record may set `give_up_ms` and `loss` for that group."""

    ask_after_ms: int = 2_000
    """Age at which a gap is first requested; before that it is only disorder on the way."""
    give_up_ms: int = 900_000
    """Age of a gap at which the group gives up; 0: never."""
    loss: Literal["abandon", "hold"] = "abandon"
    """What happens then: the gap is abandoned, or everything that waits for it is held for ever."""
    silent_ms: int = 60_000
    """How long a member that others wait for may say nothing before it is evicted; 0: for ever."""
    service_key: bytes | None = None
    """The public half of the key that the job signs its own records with; None: it signs nothing."""
