"""One run of a gateway: what it needs, the loop between segments and log, what is said meanwhile, and the end.

Two threads share the bridge, under the lock of the segments: theirs, which hands over what happens there, and this one,
which reads the log, publishes, and looks at the clock.
"""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from precede.gateway.bridge import Bridge
from precede.gateway.files import HistoryFile, SpoolFile
from precede.gateway.log_kernel import LogKernel
from precede.gateway.publish_queue import HeardRecord
from precede.gateway.raw_topic import RawTopic
from precede.gateway.start import GatewayStart, HistoryKeeping, find_gateway_start
from precede.gateway.status import GatewayPages, GatewayStatus, look_at
from precede.ingest.files import locked
from precede.ingest.live.start import NotYet
from precede.ingest.producer import Publisher
from precede.ingest.segment.address import interface_of, read_addresses
from precede.ingest.segment.link import clock_ms, open_link, read_segment_key
from precede.ingest.segment.runner import SegmentRunner
from precede.ingest.sender_state import default_file
from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.ingest.service.page_server import PageServer
from precede.ingest.service.running import RETRY_S, Announcer, broker_retry, set_on_signals
from precede.streaming.settings import Settings
from precede.udfs.errors import AccessDenied, Refused, Unconfirmed
from precede.udfs.peers.events import Event

if TYPE_CHECKING:
    from precede.gateway.segment_side import SegmentSide
    from precede.ingest.segment.link import Link

LOCK = ".lock"
POLL_S = 0.005
ROWS_MAX = 250
"""So many records of the log are taken before the segments have their turn."""
COLLECT_S = 10.0
LOOK_S = 1.0
"""How often the figures are noted that are shown."""
KEEP_S_MAX = 2.0
"""How long the end reads on, so that the next start need not read it."""
END_S_MAX = 10.0
"""How long the end waits for the log to take one more of the records that were heard."""
PUBLISH_PAUSE_MS = 5_000.0
"""How long nothing is published after Kafka refused a record."""


class Gateway:
    """Carries between segments and the log until it is stopped."""

    def __init__(self, settings: Settings, say: Announcer) -> None:
        self.settings = settings
        self.say = say
        self.stopping = threading.Event()
        self.runner = SegmentRunner()
        self.links: list[Link] = []
        self._publish_from_ms = 0.0
        self._look_at = 0.0
        self._collect_at = time.monotonic()

    def run(self) -> None:
        """Check, start, carry, stop. Raises Refused for what a person must fix."""
        settings = self.settings
        self.addresses = read_addresses(settings.segment)
        self.key = None if settings.segment_key is None else read_segment_key(settings.segment_key)
        for address in self.addresses:
            interface_of(address)  # refused before anything waits for Kafka
        with ExitStack() as stack:
            stack.callback(self.runner.close)
            stack.enter_context(set_on_signals(self.stopping))
            folder = _folder(settings)
            refusal = f"Another gateway uses the folder {folder}: give each its own (--state)."
            stack.enter_context(locked(folder / LOCK, refusal=refusal))
            self.spool = SpoolFile(folder)
            stack.callback(self.spool.close)
            self.history_file = HistoryFile(folder)
            stack.callback(self.history_file.close)
            self.broker = BrokerMonitor(settings.bootstrap, settings.raw_topic)
            self.broker.start()
            stack.callback(self.broker.stop)
            self._serve(stack)
            start = self._find_start()
            if start is None:
                return
            self._open(start, stack)
            stack.enter_context(_gc_paused())
            self._carry()
            self._end()

    # ── before the start ──────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self, stack: ExitStack) -> None:
        self.pages = GatewayPages(self.broker)
        if self.settings.metrics is not None:
            server = PageServer(self.settings.metrics, self.pages, who="gateway")
            server.open()
            stack.callback(server.close)
            self.say(f"Metrics and health are at port {server.port}.")

    def _find_start(self) -> GatewayStart | None:
        """Where the log stands; None where the gateway was stopped while it waited for that."""
        settings = self.settings
        has_told = False
        while True:
            found = broker_retry(
                lambda: find_gateway_start(
                    settings.bootstrap, settings.ordered_topic, settings.progress_topic, self.history_file
                ),
                patience_s=settings.patience_s,
                pause=self.stopping.wait,
                say=self.say,
            )
            if not isinstance(found, NotYet):
                return found
            if not has_told:
                has_told = True
                self.say(f"Waiting for the job: {found.reason}.", level="warning")
            if self.stopping.wait(RETRY_S):
                return None

    def _open(self, start: GatewayStart, stack: ExitStack) -> None:
        settings = self.settings
        live = start.live
        self.kernel = LogKernel(live.stream, live.state)
        self.bridge = Bridge(
            self.kernel, start.history, self.spool, say=self.say, kept_bytes_max=settings.gateway_keeps_mb * 2**20
        )
        self.status = GatewayStatus(look_at(self.bridge, self.spool, []), self.broker)
        self.log = RawTopic(
            settings.bootstrap,
            live.stream.raw_topic,
            live.state.starts,
            settings.control_topic,
            on_error=self.status.client_error,
        )
        stack.callback(self.log.close)
        self.publisher = Publisher(
            settings.bootstrap,
            topic=live.stream.raw_topic,
            linger_ms=1,
            partitioner=live.stream.partitioner,
            on_error=self.status.client_error,
        )
        self._catch_up(live.raw_ends)
        self.keeping = HistoryKeeping(start, self.log, self.history_file, self.say)
        for row, group, value in self.spool.read():
            self.bridge.take_spooled(group, value, row, clock_ms())
        self._open_segments()
        with self._lock():
            self._look()
            opening = self._opening_line()
        self.say(opening)

    def _catch_up(self, ends: dict[int, int]) -> None:
        """Read what was in the log at the start, before anything of it is told."""
        while not self.stopping.is_set() and any(self.log.offsets[at] < end for at, end in ends.items()):
            heard = self.log.read(0.2)
            self.bridge.take_log(heard.raw, clock_ms())

    def _open_segments(self) -> None:
        name = self.spool.fact("name", f"gateway-{token_hex(4)}")
        for address in self.addresses:
            sides: list[SegmentSide] = []

            def listen(events: list[Event], sides: list["SegmentSide"] = sides) -> None:
                for side in sides:
                    self.bridge.take_events(side, events, clock_ms())

            link = open_link(address, name, listen, key=self.key, is_gateway=True)
            with self._lock():  # the segments before it are used already
                sides.append(self.bridge.add(str(address), link.segment))
            self.runner.add(link)
            self.links.append(link)

    def _opening_line(self) -> str:
        where = ", ".join(str(link.socket.address) for link in self.links)
        kept = f" {self.spool.count:,} records that an earlier run heard are to go up." if self.spool.count else ""
        groups = len(self.kernel.groups())
        return f"Carrying between {where} and {self.settings.raw_topic} ({groups:,} groups in the log).{kept}"

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────────────────────

    def _carry(self) -> None:
        while not self.stopping.is_set():
            self._turn(POLL_S)
            sentence = self.status.sentence_if_due()
            if sentence:
                self.say(sentence, **self.status.facts())

    def _turn(self, timeout_s: float) -> None:
        """One look at the log and at the clock."""
        rows = self._read(timeout_s)
        first = 0
        while True:
            with self._lock() as now_ms:
                self.bridge.take_log(rows[first : first + ROWS_MAX], now_ms)
                entries = self.bridge.take_upward(now_ms) if now_ms >= self._publish_from_ms else []
            self._publish(entries)
            first += ROWS_MAX
            if first >= len(rows):
                break
        with self._lock() as now_ms:
            self.bridge.reads_to_end = self.log.at_end
            self.bridge.step(now_ms)
            if time.monotonic() >= self._look_at:
                self._look()
        self.pages.turned_at = time.monotonic()
        self.keeping.step()
        self._collect()

    def _read(self, timeout_s: float) -> list[tuple[bytes | None, bytes | None, int, int, int]]:
        if not self.bridge.reads_on:
            time.sleep(timeout_s)
            return []
        heard = self.log.read(timeout_s)
        if heard.gaps:
            with self._lock() as now_ms:
                self.bridge.answer(heard.gaps, now_ms)
        return heard.raw

    def _publish(self, entries: list[HeardRecord]) -> None:
        try:
            for entry in entries:
                self.publisher.publish_raw(entry.key[0].encode(), entry.value)
            self.publisher.check()
        except Unconfirmed:
            self._publish_again(0.0)
        except (AccessDenied, Refused) as error:
            self.say(f"{error} What was heard is kept and published later.", level="warning")
            self._publish_again(PUBLISH_PAUSE_MS)

    def _publish_again(self, pause_ms: float) -> None:
        """Some of what was handed over may never arrive: it is published again."""
        self.publisher.discard()
        with self._lock() as now_ms:
            self.bridge.queue.renew(now_ms)
            self._publish_from_ms = now_ms + pause_ms

    @contextmanager
    def _lock(self) -> Iterator[float]:
        """Alone with the bridge and all segments; what this causes there is sent afterwards."""
        with ExitStack() as stack:
            now_ms = 0.0
            for link in self.links:
                now_ms = stack.enter_context(self.runner.use(link))
            yield now_ms

    def _look(self) -> None:
        """Note the figures that are shown, under the lock."""
        self._look_at = time.monotonic() + LOOK_S
        self.pages.figures = self.status.figures = look_at(self.bridge, self.spool, self.links)

    def _collect(self) -> None:
        """Nothing that the loop makes is a cycle, but others may leave some."""
        if time.monotonic() - self._collect_at >= COLLECT_S:
            self._collect_at = time.monotonic()
            gc.collect(1)
            gc.freeze()  # what is left is looked at no more

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        """Take in no more, publish what was heard, and keep the rest on the disk."""
        with self._lock() as now_ms:
            self.bridge.pause(now_ms)
        if not self.status.is_away:
            self.keeping.ask()
        deadline = time.monotonic() + KEEP_S_MAX
        while self.keeping.is_waiting and time.monotonic() < deadline:
            self._turn(POLL_S)
        least = len(self.bridge.queue.records)
        deadline = time.monotonic() + END_S_MAX
        while self.bridge.queue.records and time.monotonic() < deadline and not self.status.is_away:
            self._turn(POLL_S)
            if len(self.bridge.queue.records) < least:
                least = len(self.bridge.queue.records)
                deadline = time.monotonic() + END_S_MAX
        with self._lock() as now_ms:
            self.bridge.close(now_ms)
            self._look()
        self.publisher.discard()
        self.say(f"Stopped: {self.status.line()}")


@contextmanager
def _gc_paused() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _folder(settings: Settings) -> Path:
    """The folder of this gateway, made if absent."""
    folder = Path(settings.gateway).expanduser() if settings.gateway else default_file().with_name("gateway")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"The gateway's folder {folder} cannot be made: {error.strerror}.") from error
    return folder
