"""Cases of the engine without Spark. Spark does the remaining work, so each of them ends with a change of engine."""

import shutil
import time
from collections.abc import Callable
from functools import partial

from tests.faults.power import cut_power
from tests.faults.running import Running
from tests.faults.scene import DRIVER_POINTS, Scene
from tests.records import by_kernel, conversation

POINTS = (*DRIVER_POINTS, "cache.mark")
STEPS_MAX = 100


def start(scene: Scene, point: str) -> Running:
    """A job of the engine process that stops at this point."""
    scene.stream.change(engine="process", only="order", cache=str(scene.folder / "cache"), state_every_s=0.3)
    return scene.start(point)


def back_to_spark(scene: Scene) -> None:
    """The case ends with Spark."""
    scene.stream.change(engine="spark", only=None)


def feed(scene: Scene, running: Running) -> None:
    """Send a little at a time until the job stops at its point: it would take all that is there at once."""
    for step in range(STEPS_MAX):
        if (scene.folder / "reached").exists():
            break
        prefix = b"fed-%d-" % step
        talk = conversation(10, groups=3, seed=scene.seed + step)
        scene.stream.send((prefix + key, value.replace(b'"group-', b'"%bgroup-' % prefix)) for key, value in talk)
        time.sleep(0.1)
    running.reaches()


def kill(victim: str, point: str, scene: Scene) -> None:
    """Kill the process or the broker while the job is stopped at a point."""
    running = start(scene, point)
    feed(scene, running)
    if victim == "process":
        running.kill_driver()
    else:
        cut_power(scene.broker)
        running.goes_on()
        time.sleep(1)
        scene.broker.start()
        expected = sum(map(len, by_kernel(scene.stream.raw())[0].values()))
        running.until(lambda: scene.ordered() >= expected, f"all {expected} positions")
        running.stop()
    back_to_spark(scene)


def kill_and_lose_the_cache(point: str, scene: Scene) -> None:
    """The next job of the same engine starts from the state topic."""
    running = start(scene, point)
    feed(scene, running)
    running.kill_driver()
    shutil.rmtree(scene.stream.settings.cache)
    scene.stream.once(scene.spark)
    back_to_spark(scene)


def spark_takes_over(point: str, scene: Scene) -> None:
    """Spark orders everything while the process is stopped; the process then ends and says why."""
    running = start(scene, point)
    feed(scene, running)
    back_to_spark(scene)
    scene.stream.once(scene.spark, only="order", max_offsets_per_trigger=200_000)
    _goes_on_and_ends(scene, running)


def process_takes_over(point: str, scene: Scene) -> None:
    """The process orders everything while Spark is stopped; Spark then ends and says why."""
    running = scene.start(point)
    running.reaches()
    cache = str(scene.folder / "cache")
    scene.stream.once(scene.spark, engine="process", only="order", cache=cache)
    _goes_on_and_ends(scene, running)


def _goes_on_and_ends(scene: Scene, running: Running) -> None:
    everything = scene.ordered()
    running.goes_on()
    assert running.ends() != 0
    assert any("took over the ordered topic" in line for line in running.said), running.said
    assert scene.ordered() == everything, "the first job published after it was fenced"


PROCESS_CASES: dict[str, Callable[[Scene], None]] = {
    **{
        f"engine process: kill {victim} at {point}": partial(kill, victim, point)
        for point in POINTS
        for victim in ("process", "broker")
    },
    **{
        f"engine process: kill process at {point} and lose the cache": partial(kill_and_lose_the_cache, point)
        for point in ("order.open", "order.out")
    },
    **{f"Spark takes over from a process at {point}": partial(spark_takes_over, point) for point in POINTS},
    **{f"a process takes over from Spark at {point}": partial(process_takes_over, point) for point in DRIVER_POINTS},
}
