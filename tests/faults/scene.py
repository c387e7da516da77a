"""The tools of a case: its own stream with messages, jobs on it, and randomness."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from precede.ingest.kafka import reading
from precede.local.embedded_broker import Broker
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.stream import Stream

MESSAGES = 900
PARTITIONS = 2
BATCH = 120
BAD: list[tuple[bytes | None, bytes | None]] = [
    (b"group-1", b"not json"),
    (b"group-2", b'{"group":"group-2","sender":"x","seq":9,"after":[["x",0,9]]}'),
    (b"group-3", b'{"group":"group-3","sender":"x","seq":1,"after":[["nobody",0,1]]}'),
]
"""Two dead letters, and a message that stays held and is requested."""

DRIVER_POINTS = ("order.begin", "order.ordered", "state.before", "state.after", "order.open", "order.out")
"""Points where no worker of the order query is running."""
PASSES = dict.fromkeys(DRIVER_POINTS, (2, 4)) | {
    "state.before": (1, 12),
    "state.after": (1, 12),
    "order.work": (1, 12),
    "order.worked": (1, 12),
    "deliveries.work": (1, 4),
    "deliveries.worked": (1, 4),
}
"""First and last pass of a point that may be drawn; for other points it is the first.

At the first pass of the order query there are no workers yet to kill. A batch passes the workers' points once for each
shard or partition, so a fault there meets empty and non-empty state.
"""
THROUGH_S = 150.0


def create(group: str, order: str) -> tuple[bytes, bytes]:
    """A group with its own order."""
    record = {"group": group, "kind": "create", "options": {"order": order}, "members": ["a", "b", "c"]}
    return group.encode(), json.dumps(record).encode()


@dataclass
class Scene:
    """The tools of a case: a broker, a Spark session for the checks, its own stream, and randomness."""

    broker: Broker
    spark: SparkSession
    folder: Path
    name: str
    seed: int
    away_s: float
    chance: random.Random = field(init=False)
    stream: Stream = field(init=False)
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.name} {self.seed}")
        self.stream = Stream(
            self.broker.bootstrap,
            self.folder,
            partitions=PARTITIONS,
            shards=4,
            max_offsets_per_trigger=BATCH,
            history_every_s=0.5,
            ask_after_ms=500,
            state_every_s=0 if "state." in self.name else self.chance.choice((0, 0.5)),
        )
        pairs: list[tuple[bytes | None, bytes | None]] = list(conversation(MESSAGES, groups=6, seed=self.seed))
        for pair in BAD:
            pairs.insert(self.chance.randrange(len(pairs)), pair)
        made = zip(self.chance.sample(("group-0", "group-4", "group-5"), 2), ("fifo", "lamport"), strict=True)
        self.stream.send([*(create(group, order) for group, order in made), *pairs])

    def start(self, point: str | None = None) -> Running:
        """Start the job; with a point it stops there, at a random pass."""
        fault = None if point is None else f"{point}:{self.chance.randint(*PASSES.get(point, (1, 1)))}"
        self.running.append(Running(self.stream, fault=fault, folder=self.folder))
        return self.running[-1]

    def through(self, running: Running) -> None:
        """Wait until a surviving job has ordered everything by itself and written it to Delta."""
        expected = sum(map(len, by_kernel(self.stream.raw())[0].values()))
        running.until(lambda: self.ordered() >= expected, f"all {expected} positions", THROUGH_S)
        running.until(lambda: self.written() >= expected, f"all {expected} rows in Delta", THROUGH_S)

    def more(self, count: int) -> None:
        """Add messages in other groups."""
        talk = conversation(count, groups=3, seed=self.seed + 1_000)
        self.stream.send((b"later-" + key, value.replace(b'"group-', b'"later-group-')) for key, value in talk)

    def ordered(self) -> int:
        return sum(map(len, self.stream.ordered().values()))

    def written(self) -> int:
        """The number of rows of deliveries in Delta."""
        from deltalake import DeltaTable

        return int(DeltaTable(self.table).count())

    @property
    def table(self) -> Path:
        return Path(self.stream.settings.delta) / "deliveries"

    def finish(self) -> None:
        """Do the remaining work, with a job that starts from the checkpoint as the fault left it.

        The next job handles what this one writes into the log, such as the `evict` of a silent member.
        """
        for running in self.running:
            running.stop()
        before = -1
        while before < (now := self.end()):
            before = now
            self.stream.once(self.spark, max_offsets_per_trigger=200_000)

    def end(self) -> int:
        """The ends of the raw log."""
        settings = self.stream.settings
        return sum(end for _, end in reading.ends(settings.bootstrap, settings.raw_topic, PARTITIONS))

    def close(self) -> None:
        for running in self.running:
            running.kill()


def newest(log: Path) -> int:
    """The last batch in one of the logs of a checkpoint, or -1."""
    return max((int(one.name) for one in log.glob("[0-9]*") if one.is_file()), default=-1)
