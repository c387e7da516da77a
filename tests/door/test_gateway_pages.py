"""What a gateway shows of itself, without segments and without Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from precede.gateway import pages
from precede.gateway.pages import GatewayPages
from precede.ingest.gateway.bridge import Bridge
from precede.ingest.gateway.log_kernel import LogKernel
from precede.ingest.gateway.past import Past
from precede.ingest.live.live_kernel import KernelState, Stream
from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.udfs.limits import Limits
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

HEARD_MS = 1_000.0


def message(seq: int) -> bytes:
    return b'{"group":"G","sender":"ann","seq":%d,"data":1}' % seq


def test_the_age_of_what_the_log_lacks_is_that_of_the_oldest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogKernel(Stream("ordered", "raw", "raw", 1, "fifo", Limits(), "murmur2", 1), KernelState({0: 0}, {}, {}))
    spool: Any = SimpleNamespace(count=0)
    runner: Any = None  # there are no segments
    bridge = Bridge(log, Past(), spool, say=print)
    shown = GatewayPages(BrokerMonitor("127.0.0.1:1", "precede.raw"))
    shown.show(bridge, spool, runner, [])
    now_ms = HEARD_MS

    def age_s() -> float:
        monkeypatch.setattr(pages, "clock_ms", lambda: now_ms)
        (line,) = [line for line in shown.text().decode().splitlines() if line.startswith("precede_gateway_kept_old")]
        return float(line.split()[1])

    assert age_s() == 0
    for seq in (1, 2, 3):
        record = read(message(seq), Limits())
        assert not isinstance(record, Malformed)
        assert bridge.upward.hear("G", message(seq), record, 0, now_ms)
        now_ms += 60_000
    assert age_s() == 180
    bridge.take_log([(message(1), b"G", 0, 0, 1)], now_ms)
    assert age_s() == 120
    bridge.take_log([(message(seq), b"G", 0, seq - 1, 1) for seq in (2, 3)], now_ms)
    assert age_s() == 0
