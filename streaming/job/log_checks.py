"""Checks of the log before a start, whatever engine runs the kernel."""

from collections.abc import Callable, Collection
from typing import Any

from precede.ingest.progress import Progress
from precede.streaming.job.settings import Settings
from precede.streaming.order.same_stream import check_rules

Ask = Callable[[Callable[[], Any]], Any]
"""Asks Kafka until it answers; None where the job was stopped meanwhile."""


def check_log_read_again(settings: Settings, progress: Progress, partitions: Collection[int]) -> None:
    """A log that is read from its beginning must give what was published from these partitions of it."""
    for partition, found in progress.owners.items():
        if partition in partitions and progress.token.get(partition):
            check_rules(settings.ordered_topic, found, reads_log_again=True)
