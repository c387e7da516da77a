"""What one process of a segment counts: what was refused or dropped, by code, and errors of precede itself.

Nothing that one datagram, one frame or one group raises may end a segment: others could then stop it from outside. So
where such a thing is taken in, whatever it raises is caught there, counted here, and kept once for the caller to tell.
"""

INTERNAL_ERROR = "internal_error"
"""An error of precede itself; the datagram, the frame or the turn of the group that raised it was passed over."""
FAULTS_MAX = 16
"""How many different errors are kept to be told."""


class Counts(dict[str, int]):
    """How often, by code."""

    def __init__(self) -> None:
        self._faults: list[Exception] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, code: str) -> None:
        """Count one more."""
        self[code] = self.get(code, 0) + 1

    def fault(self, error: Exception) -> None:
        """Count an error of precede itself, and keep it where its kind and place are new."""
        self.add(INTERNAL_ERROR)
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = type(error).__name__, "" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        if place not in self._known and len(self._known) < FAULTS_MAX:
            self._known.add(place)
            self._faults.append(error)

    def take_faults(self) -> list[Exception]:
        """The errors that were not told yet."""
        faults, self._faults = self._faults, []
        return faults
