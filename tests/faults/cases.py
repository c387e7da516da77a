"""The crash matrix: what is done to the stream, and where. After each case the judge checks the result.

A case is reached if its fault really happened: the job stopped at the point, or printed what the fault causes. A case
that is not reached has failed, whatever the judge finds.
"""

import resource
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from precede.streaming.history import tables
from tests.faults.burst import burst
from tests.faults.power import cut_power
from tests.faults.process_cases import PROCESS_CASES
from tests.faults.running import Running
from tests.faults.scene import DRIVER_POINTS, Scene, newest

WORKER_POINTS = ("order.work", "order.worked", "deliveries.work", "deliveries.worked")
VICTIMS = ("driver", "jvm", "broker")
HISTORY = "history/deliveries"

Case = Callable[[Scene], None]


def kill(victim: str, point: str, scene: Scene) -> None:
    """Kill one of the processes while the job is stopped at a point."""
    running = scene.start(point)
    pid = running.reaches()
    if victim == "driver":
        running.kill_driver()
        return  # the next job starts at once, while the JVM may still run
    if victim == "jvm":
        running.kill_jvm()
        running.goes_on()
        assert running.ends() != 0, "a job without its JVM must end and say so"
        return
    if victim == "worker":
        running.kill_worker(pid)
    elif victim == "idle worker":
        running.kill_idle_worker()
    else:
        cut_power(scene.broker)
    running.goes_on()
    if victim == "broker":
        time.sleep(1)
        scene.broker.start()
    scene.through(running)


def between_batches(query: str, victim: str, scene: Scene) -> None:
    """Kill one of the processes after Spark has noted the end of a batch and before it plans the next."""
    scene.stream.change(**({"trigger_ms": 5_000} if query == "order" else {"history_every_s": 5.0}))
    running = scene.start()
    home = Path(scene.stream.settings.checkpoint) / query
    batch = scene.chance.randint(0, 3 if query == "order" else 1)  # history needs few batches

    def stands_between() -> bool:
        """On a machine of any speed: Spark cannot plan the next batch during the second check."""
        if not batch <= newest(home / "commits") == newest(home / "offsets"):
            return False
        running.freeze()
        if newest(home / "commits") == newest(home / "offsets"):
            return True
        running.thaw()
        return False

    running.until(stands_between, f"a pause after batch {batch} or later")
    if victim == "driver":
        running.kill_driver()
    elif victim == "jvm":
        running.kill_jvm()
    else:
        cut_power(scene.broker)
    running.thaw()
    if victim == "jvm":
        assert running.ends() != 0, "a job without its JVM must end and say so"
    if victim == "broker":
        time.sleep(1)
        scene.broker.start()
        scene.through(running)


def broker_away(scene: Scene) -> None:
    """Long enough for every client to notice."""
    running = scene.start("order.open")
    running.reaches()
    cut_power(scene.broker)
    running.goes_on()
    time.sleep(scene.away_s)
    running.wait_for_output("does not answer")
    scene.broker.start()
    scene.through(running)


def broker_disk_full(scene: Scene) -> None:
    """The disk is full: the broker ends, as Kafka does then, and restarts when there is room."""
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
    """A second job is refused, and the first one does not notice."""
    running = scene.start("order.open")
    running.reaches()
    second = Running(scene.stream)
    scene.running.append(second)
    assert second.ends() != 0
    assert any("Another job uses the" in line for line in second.said), second.said
    running.goes_on()
    scene.through(running)


def second_job_takes_over(point: str, scene: Scene) -> None:
    """A job with a new checkpoint orders everything while the first is stopped; the first then ends and says why."""
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


def zombie_worker(point: str, scene: Scene) -> None:
    """A worker and its JVM outlive their driver; they continue after another job has done their work.

    So the JVM commits the state of an old batch, or a batch of Delta, into what the other job wrote meanwhile.
    """
    running = scene.start(point)
    worker = running.reaches()
    jvm = running.kill_driver_alone()
    scene.stream.once(scene.spark, max_offsets_per_trigger=200_000)
    assert running.is_worker(worker, below=jvm), "the worker died with its driver: no process is left to resume"
    target = (
        scene.table
        if point.startswith("deliveries")
        else Path(scene.stream.settings.order_checkpoint.location) / "state"
    )
    woken = time.time()
    running.goes_on()
    until(lambda: any(written_at(one) > woken for one in target.rglob("*.*")), "the zombie writes", 30)
    running.kill()
    scene.more(200)  # the next records are ordered with the state that the zombie left


def written_at(file: Path) -> float:
    """When a file was written; long ago if it is gone, because Spark writes a temporary file and renames it."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return 0.0


def until(true: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait while no job is running that could end meanwhile."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s: {what}"
        time.sleep(0.05)


def slow_worker(scene: Scene) -> None:
    """One shard takes far longer than the others."""
    running = scene.start("order.work")
    running.reaches()
    time.sleep(scene.away_s)
    running.goes_on()
    scene.through(running)


def delta_fails_once(scene: Scene) -> None:
    """The folder of a table is not writable for a while."""
    running = scene.start()
    table = scene.table
    running.until(lambda: len(list((table / "_delta_log").glob("*.json"))) > 1, "the first rows in Delta")
    away = table.with_name("away")
    table.rename(away)
    table.write_text("in the way")
    scene.more(100)
    running.wait_for_output("The history of deliveries query stopped")
    table.unlink()
    away.rename(table)
    scene.through(running)


def checkpoint_fails(query: str, victim: str, scene: Scene) -> None:
    """A batch is written, to Kafka or Delta, but Spark cannot note it; then one of the processes is killed."""
    running = scene.start()
    home = Path(scene.stream.settings.checkpoint) / query / "commits"
    running.until(lambda: home.exists() and any(home.glob("[0-9]*")), "the first batch")
    obstacles = [home / str(batch) for batch in range(max(int(one.name) for one in home.glob("[0-9]*")) + 2, 60)]
    for obstacle in obstacles:
        (obstacle / "in the way").mkdir(parents=True, exist_ok=True)
    scene.more(600)
    name = "order" if query == "order" else "history of deliveries"
    running.wait_for_output(f"The {name} query stopped")
    if query == HISTORY:
        found = tables.find(scene.stream.settings, "deliveries")
        assert found is not None
        assert found.batch > newest(home), "Delta has no batch that Spark has not noted"
    if victim == "all":
        running.kill()
    elif victim == "driver":
        running.kill_driver()
    elif victim == "jvm":
        running.kill_jvm()
        assert running.ends() != 0, "a job without its JVM must end and say so"
    else:
        cut_power(scene.broker)
    for obstacle in obstacles:
        shutil.rmtree(obstacle, ignore_errors=True)
    if victim == "broker":
        scene.broker.start()
        scene.through(running)


def checkpoint_lost(scene: Scene) -> None:
    """The job is killed and the whole checkpoint lost: it restarts from the beginning with other shards."""
    running = scene.start("order.out")
    running.reaches()
    running.kill()
    shutil.rmtree(scene.stream.settings.checkpoint)
    scene.stream.change(shards=7)
    scene.stream.once(scene.spark, rebuild_delta=True, max_offsets_per_trigger=50)


def restored(victim: str, point: str, scene: Scene) -> None:
    """The checkpoint is lost, and one of the processes is killed while the next job restores it with other shards."""
    scene.stream.change(state_every_s=0)
    running = scene.start("order.out")
    running.reaches()
    running.kill()
    for trace in ("reached", *(one.name for one in scene.folder.glob("pass-*"))):
        (scene.folder / trace).unlink()
    shutil.rmtree(scene.stream.settings.checkpoint)
    scene.stream.change(shards=7, rebuild_delta=True)
    kill(victim, point, scene)
    scene.stream.change(rebuild_delta=False)
    assert scene.stream.settings.restored_files.exists(), "it was not restored"


def delta_half_there(scene: Scene) -> None:
    """Half of a table's files are gone: the start is refused with advice, and then the table is rebuilt."""
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


CASES: dict[str, Case] = {
    **{
        f"kill {victim} at {point}": partial(kill, victim, point)
        for point in DRIVER_POINTS
        for victim in (*VICTIMS, "idle worker")
    },
    **{
        f"kill {victim} at {point}": partial(kill, victim, point)
        for point in WORKER_POINTS
        for victim in (*VICTIMS, "worker")
    },
    "kill jvm at dead_letters.work": partial(kill, "jvm", "dead_letters.work"),
    "kill driver at dead_letters.worked": partial(kill, "driver", "dead_letters.worked"),
    "kill worker at gaps.work": partial(kill, "worker", "gaps.work"),
    "kill driver at gaps.worked": partial(kill, "driver", "gaps.worked"),
    "kill all, order is out and the checkpoint fails": partial(checkpoint_fails, "order", "all"),
    **{
        f"kill {victim}, Delta has it and the checkpoint fails": partial(checkpoint_fails, HISTORY, victim)
        for victim in ("all", *VICTIMS)
    },
    **{
        f"kill {victim} between batches of {query}": partial(between_batches, query, victim)
        for query in ("order", HISTORY)
        for victim in VICTIMS
    },
    "second job on the same checkpoint": second_job_on_the_same_checkpoint,
    **{
        f"second job takes over at {point}": partial(second_job_takes_over, point)
        for point in ("order.begin", "order.ordered", "order.open", "order.out")
    },
    **{f"zombie worker at {point}": partial(zombie_worker, point) for point in ("order.worked", "deliveries.worked")},
    "slow worker is waited for": slow_worker,
    "broker away": broker_away,
    "broker's disk full": broker_disk_full,
    "Delta folder fails for a while": delta_fails_once,
    "Delta half there": delta_half_there,
    "checkpoint lost, other shards": checkpoint_lost,
    **{
        f"kill {victim} at {point} of a restore": partial(restored, victim, point)
        for point in ("restore.files", "restore.written", "restore.taken", "order.worked", "order.out")
        for victim in VICTIMS
    },
    "kill worker at order.worked of a restore": partial(restored, "worker", "order.worked"),
    "burst": burst,
    **PROCESS_CASES,
}
