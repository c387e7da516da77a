"""Reads what is delivered for an application: messages one by one, by the consumer's rule, resumable.

    for message in precede.follow("travel"):
        print(message.position, message.sender, message.data)

The rule: drop a position at or below the last one, deliver the next one; anything else is a hole. A hole is raised as
an exception, so that it cannot be overlooked. Asking for the next message after that continues behind the hole.

To resume later, save `follower.token` together with the result of handling the message, and pass it to `follow`.
"""

import warnings
from pathlib import Path
from threading import Lock, current_thread
from time import monotonic, sleep
from typing import Literal, Protocol, Self

from precede.client_settings import Config, client_settings
from precede.ingest.follower_token import VERSION, FollowerToken, read_token
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import GroupReader, open_reader
from precede.ingest.kafka.reading import REQUEST_S
from precede.reading.delivery import IDLE_S, Delivery
from precede.reading.from_delta import FilledFromDelta
from precede.reading.live_source import LiveSource, check_live_client
from precede.reading.ordered_topic import OrderedTopic, SharedTopic
from precede.udfs.errors import Closed, Hole, Refused

LOOK_S = 0.25
"""While nothing comes, a follower looks this often whether it was closed."""
CLOSE_S = 0.4
"""How long `close` waits for another thread to come out of a read; that thread disconnects after this."""
GIVE_WAY_S = 0.001
"""Between two looks another thread may read the token."""


class Source(Protocol):
    """Where a follower's deliveries come from, each once and in order."""

    @property
    def token(self) -> FollowerToken:
        """Where to continue after the last delivered message; raises Refused if another place keeps that."""

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""

    @property
    def is_catching_up(self) -> bool:
        """Whether records came lately, perhaps of other groups, and the end has not been seen yet."""

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read; None if it is."""

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if positions are missing."""

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether this hole is where the reading began, and the topic had lost its beginning by then."""

    def give_back(self) -> None:
        """The message handed over last was not handled."""

    def close(self) -> None:
        """Close the connection to the broker; the message handed over last counts as handled."""


class Follower:
    """An iterator over delivered messages; `follow` creates it.

    One thread reads at a time; any thread may close it. An iteration that waits then ends, and a `poll` that waits
    raises `Closed`, as does every later read. Only the token can still be read.
    """

    def __init__(
        self,
        source: Source,
        *,
        patience_s: float | None,
        name: str = "the follower",
        retention: Literal["warn", "raise"] = "raise",
    ) -> None:
        self._source = source
        self._patience_s = patience_s
        self._name = name
        self._retention = retention
        self._has_warned = False
        self._reads = Lock()
        """Held by the thread that reads, until its read is over."""
        self._touches = Lock()
        """Held by a thread while it is in the source, which only one may be."""
        self._reader = current_thread()
        """The thread that read last."""
        self._is_closed = False
        self._is_disconnected = False

    @property
    def token(self) -> str:
        """Everything `follow` needs to continue after the last delivered message."""
        with self._touches:
            return self._source.token.text()

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        with self._touches:
            self._check_open()
            return self._source.at_end

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read, such as a topic; None if it is."""
        return self._source.waits_for

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time."""
        if not self._reads.acquire(blocking=False):
            self._check_open()
            raise Refused(
                f"Another thread reads {self._name} at this moment: let one thread read and hand the messages on, or "
                "open one follower for each thread."
            )
        try:
            self._reader = current_thread()
            return self._poll(timeout_s)
        finally:
            self._reads.release()
            if self._is_closed:  # while this read went on
                self._disconnect(is_handled=False)

    def _poll(self, timeout_s: float) -> Delivery | None:
        deadline = monotonic() + timeout_s
        left_s = timeout_s
        while True:
            with self._touches:
                self._check_open()
                delivery = self._next(max(0.0, min(LOOK_S, left_s)))
            left_s = deadline - monotonic()
            if delivery is not None or left_s <= 0:
                return delivery
            sleep(GIVE_WAY_S)

    def _next(self, timeout_s: float) -> Delivery | None:
        while True:
            try:
                return self._source.poll(timeout_s)
            except Hole as hole:
                if self._retention == "raise" or not self._source.is_at_cut(hole):
                    raise
                if not self._has_warned:
                    self._has_warned = True
                    warnings.warn(
                        f"{hole} The retention of the topic has deleted them, as it may have in other groups: reading "
                        'goes on behind them. With retention="raise" each such hole is raised.',
                        stacklevel=6,
                    )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        self._check_open()
        patience_s = self._patience_s
        quiet_since = monotonic()
        while True:
            left_s = IDLE_S if patience_s is None else quiet_since + patience_s - monotonic()
            try:
                delivery = self.poll(min(IDLE_S, max(0.0, left_s)))
            except Closed:
                raise StopIteration from None  # another thread closed it meanwhile
            if delivery is not None:
                return delivery
            if self._source.is_catching_up:
                quiet_since = monotonic()
            if patience_s is not None and monotonic() >= quiet_since + patience_s:
                raise StopIteration

    def close(self) -> None:
        """Disconnect from Kafka; the message handed over last counts as handled.

        A thread that waits for the next message is told. A message that another thread still handles does not
        count as handled. Where that thread does not come out of a read soon, this returns, and it disconnects.
        """
        self._close(is_handled=self._reader is current_thread() or not self._reader.is_alive())

    def _close(self, *, is_handled: bool) -> None:
        self._is_closed = True
        if self._touches.acquire(timeout=CLOSE_S):
            self._touches.release()
            self._disconnect(is_handled=is_handled)

    def _disconnect(self, *, is_handled: bool) -> None:
        """Close the source, once."""
        with self._touches:
            if self._is_disconnected:
                return
            self._is_disconnected = True
            if not is_handled:
                self._source.give_back()
            self._source.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(is_handled=kind is None)


def follow(
    group: str | None = None,
    *,
    config: Config = None,
    bootstrap: Address | str | None = None,
    topic: str | None = None,
    start: Literal["beginning", "end"] = "beginning",
    token: str | None = None,
    since: int | None = None,
    consumer_group: str | None = None,
    delta: str | Path | None = None,
    patience_s: float | None = None,
    retention: Literal["warn", "raise"] = "warn",
    request_s: float = REQUEST_S,
    client: Literal["confluent", "kafka-python"] = "confluent",
    live: bool = False,
    live_state: str | Path | None = None,
) -> Follower:
    """Follow one group, or all of them.

    Settings (where Kafka is, how to get access, and which topic) are found as the commands find theirs: an argument,
    else a `PRECEDE_*` variable, else the TOML file `config`, else the default. Of the ordered topic, a follower of one
    group reads only the partition in which that group lies. Both Kafka clients read committed transactions only, so
    each position is seen once, even after a crash.

    `since` is the position of the one group behind which to begin, for an application that keeps its own positions.
    `start` is where to begin without a `token`, or where a consumer group has no place yet. With a `consumer_group`,
    Kafka gives each partition to one of the followers in it, and keeps the places. A message is handled when the next
    one is asked for, or when the follower is closed without an error. What was handed over and is not committed comes
    again when its partition moves or a follower crashes: at least once.

    `delta` is the root of the Delta tables, a folder or a URI: where the ordered topic has lost its beginning or
    positions are missing, they are handed over from there.

    With `live` the kernel runs in this process, over the raw topic: the same messages come in the same order and at the
    same positions, but in milliseconds, and also while the job is down. A token may be passed on from one way of
    reading to the other. `live_state` is a file that keeps the kernel's state, so that a restart takes a second.

    Where the retention of the topic has deleted what comes first, reading begins behind that, with one warning; with
    `retention="raise"` it raises: Hole for each group whose positions show it, or Refused for the token of all groups.

    Iteration waits for ever, or ends when nothing came for `patience_s` seconds. A broker that does not answer for
    `request_s` seconds at the start is an error.

    Raises Unreachable or AccessDenied if Kafka cannot be read; Refused for a wrong setting or token, if the topic no
    longer has what comes next, or where live reading would be wrong; Hole if positions are missing; and Difference,
    once, for a group that this reader orders in another way than the job: from there on it is read as the job wrote it.
    """
    if start not in ("beginning", "end"):
        raise ValueError(f"start must be beginning or end, not {start!r}")
    if retention not in ("warn", "raise"):
        raise ValueError(f"retention must be warn or raise, not {retention!r}")
    passes = retention == "warn"
    settings = client_settings(config, bootstrap=bootstrap, ordered_topic=topic)
    where, name = settings.bootstrap, settings.ordered_topic
    if consumer_group is not None and not live:
        _check_consumer_group(consumer_group, name, token if since is None else "", delta, client)
    source: Source
    place = None if token is None else read_token(token)
    if since is not None:
        place = _behind(since, name, group, token, start)
    if live:
        _check_live(client, consumer_group, delta)
        file = None if live_state is None else Path(live_state)
        topics = {"topic": name, "progress_topic": settings.progress_topic}
        source = LiveSource(
            where,
            **topics,
            group=group,
            start=start,
            token=place,
            state_file=file,
            request_s=request_s,
            passes_over_cut=passes,
        )
    elif live_state is not None:
        raise ValueError("live_state has no effect without live=True")
    elif consumer_group is None:
        reader = open_reader(client, where, request_s=request_s)
        ordered = OrderedTopic(reader, topic=name, group=group, start=start, token=place, passes_over_cut=passes)
        source = ordered if delta is None else FilledFromDelta(ordered, delta, group, storage=settings.storage_options)
    else:
        shared = GroupReader(where, consumer_group, request_s)
        source = SharedTopic(shared, topic=name, group=group, start=start, consumer_group=consumer_group)
    followed = f"the follower of {name if group is None else group}"
    return Follower(source, patience_s=patience_s, name=followed, retention=retention)


def _behind(position: int, topic: str, group: str | None, token: str | None, start: str) -> FollowerToken:
    """The token of a follower of one group that was handed over up to this position."""
    if group is None:
        raise ValueError("since is a position of one group: name the group")
    if token is not None or start != "beginning":
        raise ValueError("since says where to begin: leave out token and start")
    if position < 0:
        raise ValueError(f"since is a position, 0 for none, not {position}")
    return FollowerToken(topic=topic, v=VERSION, group=group, last=[(group, None, position)], from_beginning=True)


def _check_live(client: str, consumer_group: str | None, delta: object) -> None:
    check_live_client(client)
    if consumer_group is not None:
        raise ValueError("a follower in a consumer group reads what is committed: leave out live, or consumer_group")
    if delta is not None:
        raise ValueError("a live reader cannot catch up from Delta: leave out live, or delta")


def _check_consumer_group(name: str, topic: str, token: str | None, delta: object, client: str) -> None:
    if client != "confluent":
        raise ValueError(
            'consumer_group needs client="confluent": kafka-python cannot wait for a commit while a partition moves'
        )
    if token is not None:
        raise ValueError("a follower in a consumer group takes no token: Kafka keeps its place")
    if delta is not None:
        raise ValueError("a follower in a consumer group cannot catch up from Delta: leave out one of the two")
    if not name:
        raise ValueError("consumer_group must be a name, not an empty text")
    if name == f"precede.{topic}":
        raise ValueError(f"the consumer group {name} is the job's own, which shows its lag: choose another name")
