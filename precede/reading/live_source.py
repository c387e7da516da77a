"""Deliveries from a kernel that runs in this process, in milliseconds: see `precede.ingest.live`."""

from pathlib import Path
from time import monotonic
from typing import Literal

import msgspec

from precede.ingest.follower_token import VERSION, FollowerToken
from precede.ingest.kafka.access import Address
from precede.ingest.live.reader import LiveReader
from precede.reading.delivery import Delivery, as_delivery
from precede.reading.ordered_topic import rule_behind
from precede.udfs.errors import Hole, Refused


class LiveSource:
    """A source of deliveries for a `Follower`, of all groups or one."""

    def __init__(
        self,
        bootstrap: Address | str,
        *,
        topic: str,
        progress_topic: str,
        group: str | None,
        start: Literal["beginning", "end"] = "beginning",
        token: FollowerToken | None = None,
        state_file: Path | None = None,
        request_s: float,
        passes_over_cut: bool = False,
    ) -> None:
        self._topic = topic
        self._group = group
        if token is None:
            token = FollowerToken(topic=topic, v=VERSION, group=group, from_beginning=start == "beginning")
        else:
            token.check_group(group)
            if token.from_delta:
                raise Refused("The token stands in the middle of the Delta tables: go on with delta= and without live.")
            start = "beginning"
        self._from_beginning = token.from_beginning
        self._rule = rule_behind(token)
        self._was_at_end = False
        self._hole: Delivery | None = None
        """The record behind a hole: delivered next."""
        self._reader = LiveReader(
            bootstrap,
            ordered_topic=topic,
            progress_topic=progress_topic,
            groups=None if group is None else [group],
            start=start,
            token=token,
            state_file=state_file,
            request_s=request_s,
            passes_over_cut=passes_over_cut,
        )

    @property
    def token(self) -> FollowerToken:
        """Where to continue after the last delivered message."""
        one = self._group is not None
        return msgspec.structs.replace(
            self._reader.token,
            v=VERSION,
            group=self._group,
            last=self._rule.last if one else [],
            from_beginning=self._from_beginning and one,
        )

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        return self._hole is None and self._reader.at_end

    @property
    def has_begun(self) -> bool:
        """Whether anything is read."""
        return self._reader.has_begun

    @property
    def is_catching_up(self) -> bool:
        """Whether live reading has not begun, or the kernel has not reached the end yet."""
        return self._reader.is_catching_up

    def continue_after(self, delivery: Delivery) -> None:
        """Continue after this delivery, which came from another source."""
        self._rule.note(delivery)

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time.

        Raises Hole once if positions are missing, and Difference once for a group in which this reader and the job
        differ.
        """
        deadline = monotonic() + timeout_s
        while True:
            behind, self._hole = self._hole, None
            if behind is not None:
                self._rule.admits(behind)
                return behind
            output = self._reader.poll(max(0.0, deadline - monotonic()))
            if output is None:
                self._note_end()
                return None
            delivery = as_delivery(output[1], f"{self._topic}, group {output[0].decode(errors='replace')},")
            try:
                is_new = self._rule.admits(delivery)
            except Hole:
                self._hole = delivery
                raise
            if is_new:
                return delivery
            if monotonic() >= deadline:
                return None

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read; None if it is."""
        return None if self._reader.has_begun else f"the topic {self._topic}"

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether this hole is where the reading began, and the topic had lost its beginning by then."""
        return self._reader.lacks_beginning and self._rule.begins_with(hole)

    def _note_end(self) -> None:
        """See whether the end was reached, for the first time. Raises Refused if what was asked for lies behind it."""
        if not self._was_at_end and self.at_end:
            self._rule.check_claims(lacks_beginning=self._reader.lacks_beginning)
            self._was_at_end = True

    def give_back(self) -> None:
        """Nothing: the application keeps the token with what it handled."""

    def close(self) -> None:
        """Close the connection to the broker; the kernel's state is kept where a file was named."""
        self._reader.close()


def check_live_client(client: str) -> None:
    """Raise ValueError for a Kafka client that cannot read live."""
    if client != "confluent":
        raise ValueError(f"{client} reads only what is committed: leave out live=True, or use client='confluent'")
