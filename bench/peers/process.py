"""An engine as a process: started, watched, stopped, killed, with all that it started itself."""

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

STOP_S_MAX = 30
TICK_S = 0.01


class Running:
    """One running engine: processor time and memory of its whole tree of processes."""

    def __init__(self, argv: list[str], environment: dict[str, str], home: Path, log: Path) -> None:
        self.rss_mb = 0.0
        """The largest sum seen."""
        self.log = log
        self._cpu_s: dict[int, float] = {}
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                argv,
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal is this process's to answer
            )
        self._root = psutil.Process(self._process.pid)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def said_last(self) -> str:
        return self.log.read_text(errors="replace")[-2_000:]

    def sample(self) -> float:
        """The processor seconds so far; processes that ended count with what they had used when last seen."""
        rss = 0
        for one in self._tree():
            with suppress(psutil.Error):
                times = one.cpu_times()
                self._cpu_s[one.pid] = times.user + times.system
                rss += one.memory_info().rss
        self.rss_mb = max(self.rss_mb, rss / 2**20)
        return sum(self._cpu_s.values())

    def cores(self, seconds: float) -> float:
        """Processor time per second, over this time; less than one tick of the system's clock counts as a tick."""
        before, began = self.sample(), time.monotonic()
        while (left_s := began + seconds - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.5))
            self.sample()
        return max(self.sample() - before, TICK_S) / (time.monotonic() - began)

    def stop(self) -> None:
        """End it as an operator would, and then whatever it left behind."""
        started = self._tree()
        if not self.ended:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S_MAX)
        self._kill(started)

    def kill(self) -> None:
        """End everything at once, by kill -9."""
        self._kill(self._tree())

    def _kill(self, started: list[psutil.Process]) -> None:
        for one in started:
            with suppress(psutil.Error):
                one.kill()
        self._process.wait()
        psutil.wait_procs(started, timeout=STOP_S_MAX)

    def _tree(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [self._root, *self._root.children(recursive=True)]
        return []
