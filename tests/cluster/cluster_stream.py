"""The stream of a test on a cluster: small batches, and messages in parts, between which something is killed."""

from pathlib import Path
from typing import Any

from precede.commands.bundle import bundle
from precede.local.embedded_broker import Broker
from tests.cluster.config import config_of
from tests.cluster.standalone import Submitted
from tests.faults.scene import BAD
from tests.records import conversation
from tests.system.stream import Stream

PARTS = 4
BEGUN = 40
"""Of a part, so many are ordered before the next thing happens; the others still wait."""

REST = {"PRECEDE_ONCE": "true", "PRECEDE_MAX_OFFSETS_PER_TRIGGER": "10000"}
"""Variables of the last driver, which handles in one batch what the others left."""


class ClusterStream(Stream):
    """A stream whose files are in stores."""

    def __init__(self, broker: Broker, folder: Path, **more: Any) -> None:
        small = {"shards": 4, "max_offsets_per_trigger": 60, "trigger_ms": 500}
        often = {"history_every_s": 2.0, "state_every_s": 0.5, "ask_after_ms": 500}
        super().__init__(broker.bootstrap, folder, **(small | often | more))
        self.folder = folder
        pairs: list[tuple[bytes | None, bytes | None]] = [*conversation(500, groups=6), *BAD]
        size = len(pairs) // PARTS + 1
        self._parts = [pairs[at : at + size] for at in range(0, len(pairs), size)]

    def bundle(self, name: str = "job", **more: str) -> Path:
        """All that spark-submit needs, with this stream's settings; `more` are further ones."""
        config = self.folder / f"{name}.toml"
        config.write_text(config_of(self.settings, **more))
        bundle(self.folder / name, config)
        return self.folder / name

    def count(self) -> int:
        """How many records are ordered."""
        return sum(map(len, self.ordered().values()))

    def send_part(self, driver: Submitted, what: str) -> None:
        """Send the next part, and wait until some of it is ordered."""
        before = self.count()
        self.send(self._parts.pop(0))
        driver.wait_for(lambda: self.count() > before + BEGUN, what)
