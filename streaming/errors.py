"""The one error of this room that a person reads."""


class Refused(Exception):
    """What a person must mend; its text is the sentence they read."""
