"""Runs the whole demo: broker, topics, job, conversation, the last messages on their way, summary."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

import precede
from precede.demo.conversation import GROUP, MEMBERS, ScriptedConversation, SentMessage
from precede.demo.view import LiveView, PlainView, open_view
from precede.demo.watch import DemoWatch
from precede.ingest.kafka import topics
from precede.ingest.kafka.log_readers import LogReader, open_reader
from precede.ingest.producer import Publisher
from precede.local.child import Child
from precede.local.embedded_broker import Broker
from precede.reading.following import Follower, follow
from precede.streaming.settings import Settings
from precede.streaming.spark import jars
from precede.terminal_text import safe_text
from precede.udfs.errors import Refused

STEP_S = 0.03
START_S_MAX = 180.0
DRAIN_S_MAX = 90.0
HURRY_S_MAX = 10.0  # for messages on their way, after Ctrl-C
HISTORY_EVERY_S = 4.0
DELTA_QUERY = (
    "import pyarrow; from deltalake import DeltaTable, QueryBuilder; "
    "rows = QueryBuilder().register('deliveries', DeltaTable('{table}')).execute("
    "'SELECT position, sender, data, arrived_at, released_at FROM deliveries WHERE seq > 0 ORDER BY position'); "
    "print(pyarrow.table(rows).to_pandas().to_string(index=False))"
)


@dataclass
class DemoRun:
    """One run of the demo, as far as it got."""

    folder: Path
    watch: DemoWatch
    conversation: ScriptedConversation | None = None
    history: int = 0
    writes_history: bool = True
    """Whether the job writes to Delta."""
    cut_short: bool = False  # by Ctrl-C; messages may still be on their way


def perform(seconds: float, seed: int, engine: str = "spark") -> None:
    """Run the demo; raises Refused if the stream did not keep its promises."""
    console = Console()
    folder = new_folder()
    run = DemoRun(folder, DemoWatch(GROUP), writes_history=engine == "spark")
    try:
        with ExitStack() as stack:
            broker, job = stack.enter_context(stage(console, folder, engine))
            performance = stack.enter_context(
                Performance(broker.bootstrap, job, run.watch, open_view(console, run.watch), seed)
            )
            run.conversation = performance.conversation
            run.cut_short = performance.play(seconds)
            if run.writes_history:
                run.history = performance.wait_for_history(folder / "delta" / "deliveries")
    except KeyboardInterrupt:
        run.cut_short = True
    if run.conversation is None or not run.conversation.said:
        console.print("Stopped before the conversation began.", highlight=False)
        return
    (folder / "raw.jsonl").write_bytes(run.watch.dump())
    print_summary(console, run)


def new_folder() -> Path:
    """A new folder for each run, in the current directory if possible; it is never removed."""
    name = time.strftime("%Y%m%d-%H%M%S")
    try:
        folder = Path("precede-demo") / name
        folder.mkdir(parents=True)
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir="precede-demo"))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="precede-demo-"))
    return folder


@contextmanager
def stage(console: Console, folder: Path, engine: str) -> Iterator[tuple[Broker, Child]]:
    """The broker and the job, for the duration of the context."""
    with progress_line(console) as say:
        say("Starting Kafka")
        broker = Broker(say=say).start()
    try:
        with progress_line(console) as say:
            topics.ensure(broker.bootstrap, topics.wanted())
            if engine == "spark":
                jars.ensure("spark", say=say)
        job = start_job(broker.bootstrap, folder, engine)
        try:
            yield broker, job
        finally:
            with progress_line(console) as say:
                say("Stopping the job and Kafka")
                job.end()
    finally:
        broker.stop()


@contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str], None]]:
    """Progress: one changing line in a terminal, separate lines elsewhere."""
    if console.is_terminal:
        with console.status("") as status:
            yield lambda sentence: status.update(safe_text(f"{sentence} ..."))
    else:
        yield lambda sentence: console.print(safe_text(sentence))


def start_job(bootstrap: str, folder: Path, engine: str) -> Child:
    """Start `precede run`, as a user would."""
    command = [sys.executable, "-m", "precede", "run", "--bootstrap", bootstrap, "--engine", engine]
    if engine == "spark":
        command += ["--checkpoint", str(folder / "checkpoint"), "--delta", str(folder / "delta")]
    else:
        command += ["--only", "order", "--cache", str(folder / "cache")]
    environment = child_environment()
    if engine == "spark":
        environment["PRECEDE_HISTORY_EVERY_S"] = str(HISTORY_EVERY_S)
    return Child(command, log=folder / "job.log", environment=environment)


def child_environment() -> dict[str, str]:
    """The variables of a command that is started as a user would, without this user's settings."""
    home = str(Path(precede.__file__).parent.parent)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PRECEDE_") or name == "PRECEDE_JARS"
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return environment


class Performance:
    """Plays the conversation step by step and shows it in the view."""

    def __init__(self, bootstrap: str, job: Child, watch: DemoWatch, view: PlainView | LiveView, seed: int) -> None:
        self._job = job
        self._watch = watch
        self._view = view
        self._patience_s = DRAIN_S_MAX
        self._publisher = Publisher(bootstrap, linger_ms=0)
        self._raw: LogReader = open_reader("confluent", bootstrap)
        self._ordered: Follower = follow(config=Settings(bootstrap=bootstrap))
        self.conversation = ScriptedConversation(self._publish, seed=seed)

    def __enter__(self) -> "Performance":
        self._raw.assign(topics.RAW_TOPIC, self._raw.starts(topics.RAW_TOPIC, at_end=False, timeout_s=STEP_S))
        self._view.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._view.__exit__(None, None, None)
        self._raw.close()
        self._ordered.close()

    def play(self, seconds: float) -> bool:
        """Create the group, play, and wait until all is delivered; returns whether Ctrl-C cut the play short."""
        self._create_group()
        if not self._until(lambda: bool(self._watch.deliveries), START_S_MAX, "The job is starting"):
            raise Refused(
                f"The job orders nothing after {START_S_MAX:.0f} s; its last log line: {self._job.last_log_line}"
            )
        start_s = time.monotonic()
        try:
            self._until(
                lambda: time.monotonic() - start_s >= seconds,
                seconds + STEP_S,
                "The group talks",
                start_s,
                speaking=True,
            )
        except KeyboardInterrupt:
            self._patience_s = HURRY_S_MAX
        self._until(self._all_delivered, self._patience_s, "Messages on their way still arrive", start_s)
        return self._patience_s == HURRY_S_MAX

    def wait_for_history(self, table: Path) -> int:
        """Wait until Delta holds all deliveries, or for too long; returns how many it holds."""
        rows = 0

        def written() -> bool:
            nonlocal rows
            rows = count_rows(table)
            return rows >= len(self._watch.deliveries)

        self._until(written, self._patience_s, "History goes to Delta")
        return rows

    def _create_group(self) -> None:
        fields = {"group": GROUP, "kind": "create", "options": {"order": "s_b"}, "members": list(MEMBERS)}
        self._publisher.publish(GROUP, msgspec.json.encode(fields))
        self._publisher.flush()

    def _publish(self, message: SentMessage) -> None:
        self._publisher.publish(GROUP, message.value)

    def _all_delivered(self) -> bool:
        said = self.conversation.said + 1  # and the group's `create`
        return self.conversation.under_way == 0 and len(self._watch.deliveries) >= said

    def _until(
        self,
        done: Callable[[], bool],
        seconds_max: float,
        state: str,
        start_s: float | None = None,
        *,
        speaking: bool = False,
    ) -> bool:
        """Go on step by step until it is done; returns False if that takes too long."""
        begun_s = time.monotonic()
        while not done():
            waited_s = time.monotonic() - begun_s
            if self._job.ended:
                raise Refused(f"The job ended by itself: {self._job.last_log_line} (its log is {self._job.log})")
            if waited_s > seconds_max:
                return False
            if start_s is not None:
                self.conversation.play(time.monotonic() - start_s, speaking=speaking)
            self._read_topics()
            self._view.show(state, waited_s)
        return True

    def _read_topics(self) -> None:
        for record in self._raw.read(STEP_S):
            arrival = self._watch.arrive(record)
            if arrival is not None:
                self._view.arrived(arrival)
        while (delivery := self._ordered.poll(STEP_S)) is not None:
            self._watch.deliver(delivery)
            self._view.delivered(delivery)


def count_rows(table: Path) -> int:
    """The number of rows in a Delta table, 0 if there is no table yet."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return int(DeltaTable(table).count())
    except (DeltaError, OSError):
        return 0


# ── the summary ───────────────────────────────────────────────────────────────────────────────────────────────────────


def print_summary(console: Console, run: DemoRun) -> None:
    """Print the summary; raises Refused if a promise was not kept."""
    watch, conversation = run.watch, run.conversation
    assert conversation is not None
    waited = watch.waited
    longest_s = max((delivery.held_ms for delivery in waited), default=0) / 1000
    positions = f"yes, 1 to {len(watch.deliveries)}" if watch.contiguous else "no"
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("Messages sent", f"{conversation.said}; {conversation.lost} lost on the way and sent again"),
        ("Arrived in the log", f"{len(watch.arrivals)}"),
        ("Held back", f"{len(waited)} of them, until the message they answer had arrived"),
        ("Longest hold", f"{longest_s:.1f} s"),
        ("Duplicates dropped", f"{watch.holdback.duplicates}"),
        ("Dead letters", f"{watch.dead_letters}"),
        ("Still held", f"{len(watch.held())}"),
        ("Positions contiguous", positions),
        ("Replay gives the same bytes", "yes" if watch.agreed else "no"),
        *([("Rows in Delta", f"{run.history}")] if run.writes_history else []),
    ):
        table.add_row(name, value)
    console.print()
    console.print(table, highlight=False)
    console.print()
    query = "Query the same in Delta, and replay" if run.writes_history else "Replay"
    console.print(f"{query} the log without Spark and Kafka:", highlight=False)
    for command in commands(run.folder, writes_history=run.writes_history):
        console.print(f"\n  {command}", highlight=False, markup=False, soft_wrap=True)
    console.print()
    if not (watch.contiguous and watch.agreed and (watch.complete or run.cut_short)):
        raise Refused(f"The stream did not deliver what it should; see the job's log {run.folder / 'job.log'}.")


def commands(folder: Path, *, writes_history: bool = True) -> list[str]:
    """Commands that work as printed, from the folder where the demo was started."""
    python = Path(sys.executable)
    script = python.with_name("precede")
    here = f"{_named(script)}" if script.exists() else f"{_named(python)} -m precede"
    query = DELTA_QUERY.format(table=folder / "delta" / "deliveries")
    in_delta = [f'{_named(python)} -c "{query}"'] if writes_history else []
    return [*in_delta, f"{here} replay {shlex.quote(str(folder / 'raw.jsonl'))}"]


def _named(path: Path) -> str:
    """The path for a shell: relative if it lies below this folder, else absolute."""
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
