"""What a gateway shows of itself, without Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from precede.gateway import status
from precede.gateway.bridge import Bridge
from precede.gateway.history import LogHistory
from precede.gateway.log_kernel import LogKernel
from precede.gateway.status import GatewayPages, look_at
from precede.ingest.live.kernel import KernelState, StreamIdentity
from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.udfs.limits import Limits
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

HEARD_MS = 1_000.0


def message(seq: int) -> bytes:
    return b'{"group":"G","sender":"ann","seq":%d,"data":1}' % seq


def test_the_age_of_what_the_log_lacks_is_that_of_the_oldest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogKernel(
        StreamIdentity("ordered", "raw", "raw", 1, "fifo", Limits(), "murmur2", 1), KernelState({0: 0}, {}, {})
    )
    spool: Any = SimpleNamespace(count=0)
    bridge = Bridge(log, LogHistory(), spool, say=print)
    shown = GatewayPages(BrokerMonitor("127.0.0.1:1", "precede.raw"))
    now_ms = HEARD_MS

    def age_s() -> float:
        monkeypatch.setattr(status, "clock_ms", lambda: now_ms)
        shown.figures = look_at(bridge, spool, [])
        (line,) = [line for line in shown.text().decode().splitlines() if line.startswith("precede_gateway_kept_old")]
        return float(line.split()[1])

    assert age_s() == 0
    for seq in (1, 2, 3):
        record = read(message(seq), Limits())
        assert not isinstance(record, Malformed)
        assert bridge.queue.hear("G", message(seq), record, 0, now_ms)
        now_ms += 60_000
    assert age_s() == 180
    bridge.take_log([(message(1), b"G", 0, 0, 1)], now_ms)
    assert age_s() == 120
    bridge.take_log([(message(seq), b"G", 0, seq - 1, 1) for seq in (2, 3)], now_ms)
    assert age_s() == 0


def test_what_is_shown_is_of_one_moment_and_touches_nothing_that_the_loop_and_the_segments_change() -> None:
    log = LogKernel(
        StreamIdentity("ordered", "raw", "raw", 1, "fifo", Limits(), "murmur2", 1), KernelState({0: 0}, {}, {})
    )
    spool: Any = SimpleNamespace(count=0)
    bridge = Bridge(log, LogHistory(), spool, say=print)
    side: Any = SimpleNamespace(url="udp://a", heard=3, told=4, segment=SimpleNamespace(groups={"G": None}))
    counts = {"own": 1}
    socket = SimpleNamespace(address="a", trouble=None)
    link: Any = SimpleNamespace(socket=socket, counts=counts.copy)
    bridge.sides.append(side)
    shown = GatewayPages(BrokerMonitor("127.0.0.1:1", "precede.raw"))
    assert "The gateway is starting." in shown.health().problems
    shown.figures = look_at(bridge, spool, [link])
    before = [line for line in shown.text().decode().splitlines() if not line.startswith("process_")]
    bridge.queue.hear("G", message(1), read(message(1), Limits()), 0, 0.0)
    bridge.refused["late"] += 1
    log.reached[0] = 7
    side.segment.groups["H"] = None
    counts["own"], side.heard, spool.count = 2, 9, 1
    assert [line for line in shown.text().decode().splitlines() if not line.startswith("process_")] == before
    assert shown.health().kept == 0
