"""The codes of dead letters (contract, section 5)."""

from typing import Final

MALFORMED: Final = "malformed"
OVERSIZE: Final = "oversize"
WRONG_KEY: Final = "wrong_key"
MISSING_STAMP: Final = "missing_stamp"
BAD_STAMP: Final = "bad_stamp"
UNKNOWN_ORDER: Final = "unknown_order"
SELF_PARENT: Final = "self_parent"
CYCLE: Final = "cycle"
SEQ_JUMP: Final = "seq_jump"
CLOCK_POISON: Final = "clock_poison"
CLOCK_REGRESSION: Final = "clock_regression"
WRONG_PARTITION: Final = "wrong_partition"
EQUIVOCATION: Final = "equivocation"
ORPHAN: Final = "orphan"
NOT_MEMBER: Final = "not_member"
UNKNOWN_MEMBER: Final = "unknown_member"
FENCED: Final = "fenced"
FORGED: Final = "forged"
LATE: Final = "late"
BACKPRESSURE: Final = "backpressure"
ABANDONED: Final = "abandoned"

CODES: Final = tuple(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))


class Refusal:
    """A verdict: this record is refused, with a code and one sentence for a person."""

    __slots__ = ("code", "reason")

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason

    def __repr__(self) -> str:
        return f"Refusal({self.code!r}, {self.reason!r})"


COPY: Final = Refusal("copy", "An exact copy: dropped and counted, never a dead letter.")
"""The one verdict that writes nothing."""
