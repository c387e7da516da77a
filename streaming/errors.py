"""The one error of this room that a person reads."""


class Refused(Exception):  # noqa: N818 (it names what happened to a request, not a fault of the program)
    """What a person must mend; its text is the sentence they read."""
