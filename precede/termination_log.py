"""Where a container platform looks for the reason why a program ended: Kubernetes shows it with the pod."""

from contextlib import suppress
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")
BYTES_MAX = 4096
"""The platform reads no more."""


def write_reason(sentence: str) -> None:
    """Leave the sentence there, where there is such a file."""
    with suppress(OSError):
        if TERMINATION_LOG.is_file():
            TERMINATION_LOG.write_bytes(sentence.encode(errors="replace")[:BYTES_MAX] + b"\n")
