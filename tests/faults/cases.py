"""The crash matrix: what is done to the stream, and where. After each case the judge counts.

A case is reached when its fault was really there: the job stood at the point, or said what the fault made it say. One
that is not reached has failed, whatever the judge finds.
"""

import random
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from precede.embedded_broker import Broker
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.stream import Stream

MESSAGES = 900
BATCH = 120
BAD: list[tuple[bytes | None, bytes | None]] = [
    (b"group-1", b"not json"),
    (b"group-2", b'{"group":"group-2","sender":"x","seq":9,"after":[["x",0,9]]}'),
    (b"group-3", b'{"group":"group-3","sender":"x","seq":1,"after":[["nobody",0,1]]}'),
]
"""Two dead letters, and one that stays held."""

ORDER_POINTS = ("order.begin", "order.work", "order.worked", "order.ordered", "order.open", "order.out")
DRIVER_POINTS = ("order.begin", "order.ordered", "order.open", "order.out")
HISTORY_POINTS = ("history.work", "history.worked")
VICTIMS = ("driver", "jvm", "worker", "broker")
THROUGH_S = 150.0


@dataclass
class Scene:
    """What a case plays with: a broker, a Spark session for what comes after, a stream of its own, and chance."""

    broker: Broker
    spark: SparkSession
    folder: Path
    seed: int
    away_s: float
    chance: random.Random = field(init=False)
    stream: Stream = field(init=False)
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.stream = Stream(
            self.broker.bootstrap, self.folder, shards=4, max_offsets_per_trigger=BATCH, history_every_s=0.5
        )
        pairs: list[tuple[bytes | None, bytes | None]] = list(conversation(MESSAGES, groups=6, seed=self.seed))
        for pair in BAD:
            pairs.insert(self.chance.randrange(len(pairs)), pair)
        self.stream.send(pairs)

    def start(self, point: str | None = None) -> Running:
        """The job; with a point it stops there, in the order query at a pass that chance chooses.

        Each worker counts its own passes, and of the few batches of history it may see but one. At the first pass of
        the order query there are no workers yet that could be killed.
        """
        passes = self.chance.randint(2, 4) if point in DRIVER_POINTS else 1
        fault = None if point is None else f"{point}:{passes}"
        self.running.append(Running(self.stream, fault=fault, folder=self.folder))
        return self.running[-1]

    def through(self, running: Running) -> None:
        """Wait until a job that lives on has ordered everything by itself."""
        expected = sum(map(len, by_kernel(self.stream.raw())[0].values()))
        running.until(lambda: self.ordered() >= expected, f"all {expected} positions", THROUGH_S)

    def ordered(self) -> int:
        return sum(map(len, self.stream.ordered().values()))

    def finish(self) -> None:
        """Whatever is left to do, by a job that starts from the checkpoint as the fault left it."""
        for running in self.running:
            running.stop()
        self.stream.once(self.spark, max_offsets_per_trigger=200_000)

    def close(self) -> None:
        for running in self.running:
            running.kill()


Case = Callable[[Scene], None]


def kill(victim: str, point: str, scene: Scene) -> None:
    """Kill one of them while the job stands at a point."""
    running = scene.start(point)
    pid = running.reaches()
    if victim == "driver":
        running.kill_driver()
        return  # the next job starts at once, while the JVM may still be there
    if victim == "jvm":
        running.kill_jvm()
        running.goes_on()
        assert running.ends() != 0, "a job without its JVM must end and say so"
        return
    if victim == "worker":
        running.kill_worker(pid)
    else:
        scene.broker.kill()
    running.goes_on()
    if victim == "broker":
        time.sleep(1)
        scene.broker.start()
    scene.through(running)


def broker_away(scene: Scene) -> None:
    """Long enough for every client to notice."""
    running = scene.start("order.open")
    running.reaches()
    scene.broker.kill()
    running.goes_on()
    time.sleep(scene.away_s)
    running.hears("does not answer")
    scene.broker.start()
    scene.through(running)


def broker_disk_full(scene: Scene) -> None:
    """Its disk takes no more: the broker ends, as Kafka does then, and comes back when there is room."""
    running = scene.start("order.begin")
    running.reaches()
    resource.prlimit(scene.broker.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    running.goes_on()
    deadline = time.monotonic() + 120
    while scene.broker.process is not None and scene.broker.process.poll() is None:
        assert time.monotonic() < deadline, "the broker went on writing"
        time.sleep(0.2)
    scene.broker.kill()
    scene.broker.start()
    scene.through(running)


def second_job_on_the_same_checkpoint(scene: Scene) -> None:
    """It is refused, and the first one does not notice."""
    running = scene.start("order.open")
    running.reaches()
    second = Running(scene.stream)
    scene.running.append(second)
    assert second.ends() != 0
    assert any("Another job is at work" in line for line in second.said), second.said
    running.goes_on()
    scene.through(running)


def second_job_takes_over(point: str, scene: Scene) -> None:
    """One with a fresh checkpoint orders everything while the first stands still; the first then ends, and says why."""
    running = scene.start(point)
    running.reaches()
    scene.stream.once(
        scene.spark, only="order", checkpoint=str(scene.folder / "second"), max_offsets_per_trigger=200_000
    )
    everything = scene.ordered()
    running.goes_on()
    assert running.ends() != 0
    assert any("took over the ordered topic" in line for line in running.said), running.said
    assert scene.ordered() == everything, "the first job published after it was fenced"


def zombie_worker(scene: Scene) -> None:
    """A worker that outlives its driver and wakes up when another job has done its work."""
    running = scene.start("order.worked")
    running.reaches()
    running.kill_driver()
    scene.stream.once(scene.spark, max_offsets_per_trigger=200_000)
    running.goes_on()
    time.sleep(1)


def slow_worker(scene: Scene) -> None:
    """One shard takes far longer than the others."""
    running = scene.start("order.work")
    running.reaches()
    time.sleep(scene.away_s)
    running.goes_on()
    scene.through(running)


def delta_fails_once(scene: Scene) -> None:
    """The folder of a table cannot be written for a while."""
    running = scene.start()
    table = Path(scene.stream.settings.delta) / "deliveries"
    running.until(lambda: len(list((table / "_delta_log").glob("*.json"))) > 1, "the first rows in Delta")
    away = table.with_name("away")
    table.rename(away)
    table.write_text("in the way")
    more = conversation(100, groups=3, seed=scene.seed + 1_000)
    scene.stream.send((b"later-" + key, value.replace(b'"group-', b'"later-group-')) for key, value in more)
    running.hears("The history of deliveries query stopped")
    table.unlink()
    away.rename(table)
    scene.through(running)


def checkpoint_fails(query: str, scene: Scene) -> None:
    """What it stands for is out, in Kafka or in Delta, but Spark cannot note it down; then everything is killed."""
    running = scene.start()
    home = Path(scene.stream.settings.checkpoint) / query / "commits"
    running.until(lambda: home.exists() and any(home.glob("[0-9]*")), "the first batch")
    obstacles = [home / str(batch) for batch in range(max(int(one.name) for one in home.glob("[0-9]*")) + 2, 60)]
    for obstacle in obstacles:
        (obstacle / "in the way").mkdir(parents=True, exist_ok=True)
    more = conversation(600, groups=3, seed=scene.seed + 1_000)
    scene.stream.send((b"later-" + key, value.replace(b'"group-', b'"later-group-')) for key, value in more)
    name = "order" if query == "order" else "history of deliveries"
    running.hears(f"The {name} query stopped")
    running.kill()
    for obstacle in obstacles:
        shutil.rmtree(obstacle, ignore_errors=True)


def checkpoint_lost(scene: Scene) -> None:
    """Killed, and then the whole checkpoint is gone: another number of shards, from the beginning of the log."""
    running = scene.start("order.out")
    running.reaches()
    running.kill()
    shutil.rmtree(scene.stream.settings.checkpoint)
    scene.stream.change(shards=7)
    scene.stream.once(scene.spark, rebuild_delta=True, max_offsets_per_trigger=50)


def delta_half_there(scene: Scene) -> None:
    """Half of a table's files are gone: the start is refused and says how, and then the table is made anew."""
    running = scene.start("order.out")
    running.reaches()
    running.goes_on()
    scene.through(running)
    files = Path(scene.stream.settings.delta) / "deliveries"
    running.until(lambda: any(files.glob("day=*/*.parquet")), "rows in Delta")
    running.stop()
    for file in list(files.glob("day=*/*.parquet"))[::2]:
        file.unlink()
    refused = scene.start()
    assert refused.ends() != 0
    assert any("precede run --rebuild-delta" in line for line in refused.said), refused.said
    scene.stream.once(scene.spark, rebuild_delta=True)


def burst(scene: Scene) -> None:
    """Far more at once than a batch takes: it waits in the topic, and the driver's memory does not grow with it."""
    scene.stream.change(max_offsets_per_trigger=2_000)
    running = scene.start("order.out")
    running.reaches()
    running.goes_on()
    scene.through(running)
    before = memory_mb(running)
    scene.stream.send(
        (b"later-" + key, value.replace(b'"group-', b'"later-group-'))
        for key, value in conversation(60_000, groups=50, seed=scene.seed + 1_000)
    )
    most = before
    expected = sum(map(len, by_kernel(scene.stream.raw())[0].values()))
    began = time.monotonic()
    while scene.ordered() < expected:
        assert time.monotonic() - began < THROUGH_S, "the burst was not absorbed"
        for _ in range(20):
            most = max(most, memory_mb(running))
            time.sleep(0.2)
    assert most < before + 250, f"the driver grew from {before:.0f} to {most:.0f} MB"


def memory_mb(running: Running) -> float:
    """Of the driver's Python, where a batch would pile up."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return float(psutil.Process(running.process.pid).memory_info().rss) / 1e6
    return 0.0


CASES: dict[str, Case] = {
    **{f"kill {victim} at {point}": partial(kill, victim, point) for point in ORDER_POINTS for victim in VICTIMS},
    **{f"kill {victim} at {point}": partial(kill, victim, point) for point in HISTORY_POINTS for victim in VICTIMS},
    "checkpoint of the order query fails, kill": partial(checkpoint_fails, "order"),
    "checkpoint of the history query fails, kill": partial(checkpoint_fails, "history/deliveries"),
    "second job on the same checkpoint": second_job_on_the_same_checkpoint,
    **{
        f"second job takes over at {point}": partial(second_job_takes_over, point)
        for point in ("order.begin", "order.ordered", "order.open", "order.out")
    },
    "zombie worker": zombie_worker,
    "slow worker": slow_worker,
    "broker away": broker_away,
    "broker's disk full": broker_disk_full,
    "Delta folder fails for a while": delta_fails_once,
    "Delta half there": delta_half_there,
    "checkpoint lost, other shards": checkpoint_lost,
    "burst": burst,
}
