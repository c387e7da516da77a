"""Members of one group that answer each other: over a network segment, or over Kafka by changing one line.

    python examples/same_program.py

Ann asks, Bob and Cid answer what they have read, and each prints the conversation as it was delivered to it. On a
segment they hear each other directly, without Kafka and without a job. Over Kafka, `precede run` must be running.
"""

import contextlib
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import precede

STATES = Path(tempfile.mkdtemp())  # a real program leaves `state` out: it goes on with its seqs at the next start


Speaker = precede.Peer | precede.Member


def open_member(name: str) -> Speaker:
    """One member of the group."""
    # The one line: the first one speaks on the loopback interface of this machine, the second one over Kafka.
    opens = partial(precede.Peer, segment="udp://239.255.70.80:17081%lo")
    # opens = partial(precede.Member, bootstrap="localhost:9092")
    return opens("travel", name, state=STATES / name, patience_s=5)


def converse(members: Sequence[Speaker]) -> list[list[str]]:
    """The first asks and the others answer; returns what each was delivered, in its order."""
    ann, *others = members
    heard: list[list[str]] = [[] for _ in members]
    ann.send("Who comes along?")
    for other, lines in zip(others, heard[1:], strict=True):
        question = next(other)  # no answer is delivered before it
        lines.append(f"{question.sender}: {question.data}")
        other.send(f"I do, says {other.name}.", after=question)
    for member, lines in zip(members, heard, strict=True):
        while len(lines) < len(members):
            message = next(member)
            lines.append(f"{message.sender}: {message.data}")
    return heard


if __name__ == "__main__":
    with contextlib.ExitStack() as opened:
        names = ("ann", "bob", "cid")
        members = [open_member(name) for name in names]
        for member in members:
            opened.callback(member.close)
        for name, lines in zip(names, converse(members), strict=True):
            print(f"{name} was delivered")
            for line in lines:
                print("   ", line)
