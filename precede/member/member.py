"""A member of a group: it sends messages, and receives the group's messages in order.

    with precede.Member("travel", "bob") as bob:
        for message in bob:
            print(message.position, message.sender, message.data)
            if message.sender == "ann":
                bob.send("I do.", after=message)
                break

It learns the group's order from the log and stamps by it. A member of a closed group, or of one by clocks, joins. What
its stamps need and how far it has read are kept in a small file, so that it goes on where it stopped.
"""

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self, cast

from precede.client_settings import Config, client_settings
from precede.ingest import sender_state, sending
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import LogReader, open_reader
from precede.ingest.kafka.reading import REQUEST_S
from precede.ingest.producer import Publisher
from precede.ingest.service.monitor import Monitor
from precede.ingest.signing import key_in
from precede.member.background import HeartbeatTask, RepairTask, outbox_monitor
from precede.member.group_member import GroupMember, as_id, as_ids, as_json, as_meta, check_seconds, check_start
from precede.member.publishing import MemberPublisher
from precede.member.startup import Log, Startup, search, start_member
from precede.member.status import WAITS_MAX, Connection, JobLook, JobWatch, Status
from precede.reading.delivery import DeliveredMessage, Delivery
from precede.reading.from_delta import DeltaHistory, HoleFiller
from precede.reading.live_source import LiveSource, check_live_client
from precede.reading.ordered_topic import OrderedTopic
from precede.udfs.errors import Closed, Hole, Refused
from precede.udfs.member.knowledge import read_without_data
from precede.udfs.member.speaker import Speaker
from precede.udfs.orders import has_destinations
from precede.udfs.peers.views import members
from precede.udfs.records.identifiers import MessageId, as_name

PLACE_S = 1.0
"""How often the place is stored while messages are handed over."""
HEARTBEAT_S = 5.0
SLICE_S = 0.2
"""How long one read waits, so that `close` and other threads that read need not wait for long."""
CLOSE_S = 0.4
"""How long `close` waits for a thread that reads, and for those in the background."""

_LOGGER = logging.getLogger("precede")


class Member(GroupMember):
    """Sends and receives in one group, under one name, in one place at a time.

    `history` is what a newcomer gets: "all", "none", or the last n messages. A member that was here before goes on
    behind the last message that it was handed; `since` names another position, for an application that keeps its own.
    With `live` it runs the kernel itself: messages come in milliseconds, and also while the job is down.
    What the ordered topic has deleted by its retention, and `delta` does not have, is passed over with one warning, or
    raised as a Hole if `retention` is "raise".
    `delta` is the root of the Delta tables, a folder or a URI, for what is older than the ordered topic keeps.
    Settings are found as by `follow`, the key and the partitioner too. `partitioner` is the job's setting: in another
    partition than it says, the job refuses what this member sends.
    Iteration yields messages, each a `precede.Message`; with `records` everything that has a position, `View` and
    `Abandoned` included. Without `own`, its own messages are left out.
    It waits for ever, or ends if nothing came for `patience_s` seconds. `confirm_s` is how long `send` waits for Kafka.
    Threads may share a member; each message is handed to one of them. A process that was forked opens its own.

    To open a member raises ValueError for a wrong argument; Refused if the state file, the key or a topic cannot be
    used, or the group cannot be joined; Unreachable if no broker answered; AccessDenied if the broker rejected the
    credentials or an access rule is missing; and Unconfirmed if Kafka did not confirm its join.
    Iteration and `poll` raise Hole if positions are missing, Difference where a member that reads live orders the
    group in another way than the job, and Unreachable, AccessDenied or Refused if the topic cannot be read.
    """

    def __init__(
        self,
        group: str,
        name: str,
        *,
        config: Config = None,
        bootstrap: Address | str | None = None,
        history: Literal["all", "none"] | int = "all",
        since: int | None = None,
        retention: Literal["warn", "raise"] = "warn",
        delta: str | Path | None = None,
        state: str | Path | None = None,
        key: str | Path | None = None,
        records: bool = False,
        own: bool = True,
        patience_s: float | None = None,
        heartbeat_s: float | None = None,
        confirm_s: float | None = None,
        client: Literal["confluent", "kafka-python"] = "confluent",
        live: bool = False,
        raw_topic: str | None = None,
        ordered_topic: str | None = None,
        control_topic: str | None = None,
        progress_topic: str | None = None,
        partitioner: str | None = None,
    ) -> None:
        self.group = as_name("group", group)
        self.name = as_name("name", name)
        check_start(history, since)
        if retention not in ("warn", "raise"):
            raise ValueError(f'retention must be "warn" or "raise", not {retention!r}')
        check_seconds("patience_s", patience_s)
        check_seconds("heartbeat_s", heartbeat_s)
        check_seconds("confirm_s", confirm_s)
        self._settings = client_settings(
            config,
            bootstrap=bootstrap,
            raw_topic=raw_topic,
            ordered_topic=ordered_topic,
            control_topic=control_topic,
            progress_topic=progress_topic,
            partitioner=partitioner,
            confirm_s=confirm_s,
            key=key,
        )
        if live:
            check_live_client(client)
        self._live = live
        self._client = client
        self._delta = delta
        self._records = records
        self._own = own
        self._warns_of_retention = retention == "warn"
        self._patience_s = patience_s
        self._left = False
        self._saved_s = 0.0
        self._has_told_unsaved = False
        self._process = os.getpid()
        self._is_closed = False
        self._closing = threading.RLock()
        self._reading = threading.Lock()
        """Held by the thread that reads; the last one to have it closes what it reads from."""
        self._monitors: list[Monitor[Any]] = []
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as sources:
            self._open(opened, sources, history, since, state, heartbeat_s)
            self._opened, self._sources = opened.pop_all(), sources.pop_all()

    def _open(
        self,
        opened: contextlib.ExitStack,
        sources: contextlib.ExitStack,
        history: Literal["all", "none"] | int,
        since: int | None,
        state: str | Path | None,
        heartbeat_s: float | None,
    ) -> None:
        settings = self._settings
        where, raw, ordered = settings.bootstrap, settings.raw_topic, settings.ordered_topic
        partitioner = settings.partitioner
        log = sending.log_of(
            where,
            raw,
            partitions=settings.partitions,
            replicas=settings.replicas,
            say=partial(warnings.warn, stacklevel=5),
        )
        path = sender_state.member_file(log, self.group, self.name, settings.state) if state is None else Path(state)
        kept = opened.enter_context(sender_state.opened(path, wait=False))
        known = kept.memory.find(log, self.group, self.name)
        is_new = known is None
        if known is None:
            known = kept.memory.add(sender_state.KnownSender(log, self.group, self.name))
        private = key_in(settings.key)
        confirm_s = settings.confirm_s
        publisher = Publisher(where, topic=raw, linger_ms=0, partitioner=partitioner, confirm_s=confirm_s)
        opened.callback(publisher.discard)  # what is not confirmed is stored, and sent again at the next start
        self._publisher = MemberPublisher(kept, known, publisher, private, confirm_s=confirm_s)
        self._reader = self._new_reader()
        sources.callback(self._reader.close)
        read = Log(where, raw, ordered, settings.progress_topic, partitioner)
        startup = Startup(self._publisher, self._reader, read, self._past, is_live=self._live)
        place = start_member(startup, history=history, since=since, key=private, is_new=is_new)
        self._publisher.begin_watching()
        self._kept_from = place.kept_from
        self.position = place.position
        """The position handed over last; an application that keeps its own passes it to `since`."""
        self._source: OrderedTopic | LiveSource = OrderedTopic(
            self._reader, topic=ordered, group=self.group, token=place.token
        )
        if self._live:
            self._source = LiveSource(
                where,
                topic=ordered,
                progress_topic=settings.progress_topic,
                group=self.group,
                token=place.token,
                request_s=REQUEST_S,
            )
            sources.callback(self._source.close)
        self._job = JobWatch(
            where,
            self.group,
            raw=raw,
            ordered=ordered,
            progress=settings.progress_topic,
            partitioner=partitioner,
        )
        sources.callback(self._job.close)
        self._filler = HoleFiller(
            self._source, lambda behind: self._past() if self._is_mine(behind) else None, place.older
        )
        clients = self._new_reader, lambda: Publisher(where, topic=raw, partitioner=partitioner)
        self._monitors.append(RepairTask(self._publisher, settings.control_topic, *clients).monitor)
        if heartbeat_s is not None or self._speaker.order.waits_for_members:
            every_s = heartbeat_s or HEARTBEAT_S
            heartbeats = HeartbeatTask(self._publisher, raw, *clients, heartbeat_s=every_s, partitioner=partitioner)
            self._monitors.append(heartbeats.monitor)
        for monitor in self._monitors:
            monitor.start()
        self._monitors.append(outbox_monitor(self._publisher))

    # ── what it is ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _speaker(self) -> Speaker:
        return self._publisher.speaker

    @property
    def order(self) -> str:
        """The group's order, by which this member stamps its messages."""
        return self._speaker.order.name

    @property
    def epoch(self) -> int:
        """The epoch under which this member sends."""
        return self._publisher.known.epoch

    @property
    def members(self) -> list[str]:
        """The members by `create` or `join`, as far as this member has read; in an open group others may send, too."""
        self._check_open()
        with self._publisher.lock:
            return list(members(self._speaker.knowledge.view))

    @property
    def conflicts(self) -> list[tuple[str, str]]:
        """Which operations conflict, as the group's `create` record says."""
        return list(self._speaker.knowledge.conflicts)

    @property
    def status(self) -> Status:
        """How this member stands with its group, as far as it has read. Asks the broker, at most once a second."""
        self._check_open()
        look = self._job.look()
        knowledge = self._speaker.knowledge
        with self._publisher.lock:
            waits = tuple(MessageId(*id_) for id_ in islice(knowledge.missing, WAITS_MAX))
            missing, unsent, own = len(knowledge.missing), len(self._publisher.outbox), self._publisher.undelivered()
        connection = self._connection(look)
        ended = self._why_ended()
        synced = connection.state == "live" and not (missing or unsent or own or ended)
        trouble = ended or next((one.trouble for one in self._monitors if one.trouble is not None), None)
        return Status(synced, missing, knowledge.given_up, unsent, own, waits, connection, trouble)

    def _connection(self, look: JobLook) -> Connection:
        if look.away_since is not None:
            return Connection("broker away", since=look.away_since)
        if not self._source.at_end:
            return Connection("catching up" if self._source.has_begun else "connecting")
        if look.behind and not self._live:
            return Connection("job behind", behind=look.behind)
        return Connection("live")

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        data: Any,
        *,
        after: Any = None,
        to: Iterable[str] | None = None,
        object: dict[str, Any] | None = None,  # noqa: A002 (the contract's word)
        meta: dict[str, Any] | None = None,
    ) -> MessageId:
        """Send a message, and return its id once Kafka has it.

        `after` is what it answers: a message, its id ("ann:2", or its parts), or a list of them. They must have been
        delivered here. `to` names the destinations if the order has them, `object` the fields of the object-based
        protocol; `meta` is an object of at most 4 KiB that goes with the data, such as trace context.

        Raises ValueError for a wrong argument; Refused if this member may not send, or Kafka refused the record;
        AccessDenied if an access rule is missing; and Unconfirmed if Kafka did not confirm the record within
        `confirm_s`. Where that has an `id`, the message is in the `outbox` and the same bytes are sent again in the
        background until Kafka confirms them, so it must not be said again; without, nothing was sent.
        """
        self._check_open()
        publisher = self._publisher
        with publisher.lock:
            self._check_may_send()
            parents = as_ids(after)
            self._speaker.check_after(parents)
        added = as_meta(meta)
        return MessageId(*publisher.send(as_json(data), parents, self._destinations(to), object, added))

    @property
    def outbox(self) -> list[MessageId]:
        """What this member said and Kafka has not confirmed; it is stored, and sent again until it is confirmed."""
        self._check_open()
        return [MessageId(*id_) for id_ in self._publisher.outbox]

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until Kafka has confirmed all that was said; returns whether it has, after `timeout_s` at most."""
        self._check_open()
        return self._publisher.flush(timeout_s)

    def leave(self) -> None:
        """End this member's epoch; what it sent so far still counts. Opened again, it comes with a new epoch.

        Raises ValueError if it neither joined nor sent anything, and otherwise what `send` raises.
        """
        self._check_open()
        publisher = self._publisher
        with publisher.lock:
            self._check_may_send()
            known = publisher.known
            if known.seq == 0 and not publisher.speaker.knowledge.is_in(self.name, self.epoch) and not known.joined:
                raise ValueError(f"{self.name} has neither joined {self.group} nor sent anything to it")
        publisher.leave()
        self._left = True

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise Refused(
                f"{self.name} of {self.group} was opened in another process than this one, which was forked from it:"
                " open a member here, under another name."
            )
        if self._is_closed:
            raise Closed(f"the member {self.name} of {self.group}")

    def _check_may_send(self) -> None:
        if self._left:
            raise Refused(f"{self.name} has left {self.group}: open the member again to come back.")
        why_not = self._why_ended() or self._speaker.why_forged()
        if why_not is not None:
            raise Refused(why_not)

    def _why_ended(self) -> str | None:
        """Why nothing more counts that is said under this epoch, though the member did not leave; None if it does."""
        if not self._left and self._speaker.knowledge.is_out(self.name, self.epoch):
            return (
                f"Epoch {self.epoch} of {self.name} has ended in {self.group}: open the member again, and it comes back"
                " with a new one."
            )
        return self._publisher.why_doubled

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def poll(self, timeout_s: float) -> DeliveredMessage | None:
        """The next message, or None if none came in that time.

        Raises Hole if positions are missing, Difference once where a member that reads live and the job differ, and
        Unreachable, AccessDenied or Refused if the topic cannot be read.
        """
        deadline = monotonic() + timeout_s
        while True:
            self._check_open()
            slice_s = min(SLICE_S, max(0.0, deadline - monotonic()))
            delivery = None
            if self._reading.acquire(timeout=slice_s):
                try:
                    delivery = None if self._is_closed else self._next_wanted(slice_s)
                finally:
                    if self._is_closed:
                        self._sources.close()
                    self._reading.release()
            if delivery is not None:
                return delivery
            if monotonic() >= deadline:
                self._check_open()
                return None

    def _next_wanted(self, timeout_s: float) -> DeliveredMessage | None:
        """Read on up to a message that is handed over."""
        deadline = monotonic() + timeout_s
        if monotonic() - self._saved_s > PLACE_S:
            self._save_or_tell()  # to ask for more means that what was handed over before is done
        while not self._is_closed:
            try:
                delivery = self._filler.poll(max(0.0, deadline - monotonic()))
            except Hole as hole:
                self._pass_over(hole)
                continue
            if delivery is None and monotonic() >= deadline:
                return None
            if delivery is None:
                continue
            self._publisher.observe(read_without_data(delivery.record), delivery.record)
            if not self._is_mine(delivery):
                continue
            self.position = delivery.position
            if self._is_wanted(delivery):
                return cast(DeliveredMessage, delivery)  # or what `records` asks for
        return None

    def _pass_over(self, hole: Hole) -> None:
        """Go on behind what the topic has deleted; raises any other hole."""
        kept_from, self._kept_from = self._kept_from, None
        if kept_from is None or kept_from not in (0, hole.delivery.position) or not self._warns_of_retention:
            raise hole
        _LOGGER.warning(
            "%s The ordered topic has deleted what came before, so %s goes on behind it. With `delta` it would get that"
            ' from the tables; with retention="raise" this is an error.',
            hole,
            self.name,
        )

    def _save_or_tell(self) -> None:
        """Store the place; where that fails, messages are handed over all the same."""
        try:
            self._save()
            self._has_told_unsaved = False
        except Refused as refused:
            self._saved_s = monotonic()
            if not self._has_told_unsaved:
                _LOGGER.warning("%s Until then %s gets after a crash what it got before.", refused, self.name)
            self._has_told_unsaved = True

    def __next__(self) -> DeliveredMessage:
        self._check_open()
        try:
            return super().__next__()
        except Closed:  # by another thread, while this one waited
            raise StopIteration from None

    def find(self, id_: str | Sequence[Any]) -> DeliveredMessage | None:
        """A message of the group by its id, such as what another one answers; None if it was never delivered.

        It is looked for in Delta, if the member was given that, and in the whole ordered topic. A message that was
        found may be answered.

        Raises ValueError if this is no id, and Unreachable, AccessDenied or Refused if it cannot be looked for.
        """
        self._check_open()
        wanted = as_id(id_)
        past = self._past()
        found = None if past is None else past.find(wanted)
        if found is None:
            reader = self._new_reader()
            try:
                found = search(reader, self._settings.ordered_topic, self.group, self._destination, wanted)
            finally:
                reader.close()
        if found is not None:
            with self._publisher.lock:
                self._publisher.observe(read_without_data(found.record), found.record)
        return cast(DeliveredMessage | None, found)

    def _is_mine(self, delivery: Delivery) -> bool:
        return delivery.destination in (None, self.name)

    @property
    def _destination(self) -> str | None:
        return self.name if has_destinations(self.order) else None

    def _past(self) -> DeltaHistory | None:
        if self._delta is None:
            return None
        return DeltaHistory(self._delta, self.group, self._destination, storage=self._settings.storage_options)

    def _new_reader(self) -> LogReader:
        return open_reader(self._client, self._settings.bootstrap)

    # ── ending ────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop, with everything stored, within a second; to close again does nothing.

        A thread that waits in an iteration comes to its end, and every other call raises Closed from now on.
        """
        self._end(is_done=True)

    def _end(self, *, is_done: bool) -> None:
        """`is_done` says that the message handed over last was dealt with."""
        if self._process != os.getpid():
            return  # all of it is the other process's
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._publisher.close()
            for monitor in self._monitors:
                monitor.finish()
            is_still = self._reading.acquire(timeout=CLOSE_S)  # else the thread that reads closes what it reads from
            try:
                if is_done and is_still:
                    self._save()
            finally:
                if is_still:
                    self._sources.close()
                    self._reading.release()
                deadline = monotonic() + CLOSE_S
                for monitor in self._monitors:
                    monitor.stop(max(0.0, deadline - monotonic()))
                self._opened.close()

    def _save(self) -> None:
        self._publisher.save_token(self._source.token.text())
        self._saved_s = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error the message handed over last was not dealt with, so it comes again.
        self._end(is_done=kind is None or kind is KeyboardInterrupt)
