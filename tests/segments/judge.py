"""Judges what peers delivered and what the log made of it, by what truly happened before what.

It shares no code with the kernel. What happened before a message is what the test had read from a peer's output before
it told that peer to say it, and what had happened before that. So stamps are not believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Id = tuple[str, int, int]


@dataclass
class Truth:
    """What was said, in which order each peer saw it, and what each message answers."""

    order: str
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of each message, by its text, all that truly happened before it."""
    parents: dict[str, str | None] = field(default_factory=dict)
    sender: dict[str, str] = field(default_factory=dict)
    to: dict[str, frozenset[str]] = field(default_factory=dict)
    """Under `causal_p2p`, the destinations."""

    def say(
        self, text: str, sender: str, seen: Iterable[str], parent: str | None, to: Iterable[str] | None = None
    ) -> None:
        """A peer that has seen these is told to say this, to all or to these."""
        known = set(seen)
        if to is not None:
            self.to[text] = frozenset(to)
            known |= {one for one, who in self.sender.items() if who == sender}
        for one in list(known):
            known |= self.before.get(one, frozenset())
        self.before[text] = frozenset(known)
        self.parents[text] = parent
        self.sender[text] = sender

    def sent_to(self, name: str, texts: Iterable[str]) -> set[str]:
        """Those of these texts that a peer must have."""
        return {text for text in texts if text not in self.to or name in self.to[text]}

    def precede(self, text: str) -> frozenset[str]:
        """What must not come after this message, under the order of the group."""
        if self.order == "s_b":
            parent = self.parents[text]
            return frozenset() if parent is None else frozenset({parent})
        if self.order == "fifo":
            return frozenset(one for one in self.before[text] if self.sender[one] == self.sender[text])
        if self.order == "object":
            return frozenset()
        return self.before[text]


def check_lawful(truth: Truth, texts: Sequence[str], who: str) -> None:
    """Each message once, and none before what precedes it."""
    assert len(set(texts)) == len(texts), f"{who} has {repeated(texts)} twice"
    place = {text: number for number, text in enumerate(texts)}
    for text in texts:
        assert text in truth.before, f"{who} has {text!r}, which no one was told to say"
        late = [one for one in truth.precede(text) if place.get(one, -1) > place[text]]
        assert not late, f"{who} has {text!r} before {late[0]!r}, which precedes it"


def check_same(truth: Truth, delivered: dict[str, Sequence[str]], log: Iterable[str]) -> None:
    """Every one of these peers has what the log has for it."""
    for who, texts in delivered.items():
        due = truth.sent_to(who, log)
        lacking, more = due - set(texts), set(texts) - due
        assert not lacking, f"{who} lacks {len(lacking)} that the log has, such as {sorted(lacking)[:3]}"
        assert not more, f"{who} has {len(more)} that the log lacks, such as {sorted(more)[:3]}"


def check_positions(records: Sequence[dict[str, Any]]) -> None:
    """The positions of the ordered topic are 1, 2, 3, ..."""
    positions = [record["position"] for record in records]
    assert positions == list(range(1, len(positions) + 1)), f"the positions have a hole or a copy: {positions[:20]} ..."


def repeated(texts: Sequence[str]) -> list[str]:
    """Those that are there more than once."""
    seen: set[str] = set()
    return [text for text in texts if text in seen or seen.add(text)]  # type: ignore[func-returns-value]
