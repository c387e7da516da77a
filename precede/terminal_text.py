"""How what others wrote is shown to a person: names, texts and sentences from the log as they are, and never as
commands.

A name may hold what a terminal obeys, or what rich takes for markup. Here every control character becomes its escape
(`\\x1b`), and nothing in a text is markup. What a program reads (JSON) does not come through here.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

# Control characters, separators of lines, marks that turn the direction of writing, and what UTF-8 cannot carry.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with every character that a terminal would obey written as its escape."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: str, style: str = "") -> "Text":
    """The same for a table or a picture, where brackets are brackets."""
    from rich.text import Text

    return Text(plain(text), style)
