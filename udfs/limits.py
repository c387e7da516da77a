"""The limits of the kernel: what a group may ask of the memory and time of those who order it."""

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
