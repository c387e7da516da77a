"""Makes text from the log safe to show in a terminal: names, texts and sentences appear as they are.

A name may hold control characters that a terminal executes, or what rich takes for markup. Here every control
character becomes its escape (`\\x1b`), and nothing in a text is markup. Output for programs (JSON) does not need this.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

# Control characters, line separators, marks that change the writing direction, and what UTF-8 cannot encode.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """The text, with every character that a terminal would execute written as its escape."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def safe_text(text: str, style: str = "") -> "Text":
    """The same as rich text, in which brackets are no markup."""
    from rich.text import Text

    return Text(plain(text), style)
