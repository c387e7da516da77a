"""The job's output: sentences for a person, or one JSON object per line for a program that collects logs."""

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

Say = Callable[[str], object]


class Announcer:
    """Says a sentence; in JSON with its time, its level, and what it is about (query, batch, counts)."""

    def __init__(self, say: Say, form: str = "text") -> None:
        self.say = say
        self.form = form

    def __call__(self, sentence: str, *, level: str = "info", **about: Any) -> None:
        self.say(sentence if self.form == "text" else self._line(sentence, level, about))

    def refused(self, refusal: Exception) -> None:
        """Write a refusal as JSON; as text the command line prints it."""
        if self.form == "json":
            self(str(refusal), level="error")

    @staticmethod
    def _line(sentence: str, level: str, about: dict[str, Any]) -> str:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        known = {name: value for name, value in about.items() if value is not None}
        return msgspec.json.encode({"time": time, "level": level, "message": sentence, **known}).decode()
