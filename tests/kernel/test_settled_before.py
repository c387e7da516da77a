"""What is settled elsewhere and kept by no one holds nothing back here, in any order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from precede.udfs.engine.runs import Runs
from precede.udfs.orders import ORDERS
from precede.udfs.peers.ordering import PeerKernel

KEY = b"G"


def up_to(seq: int, first: int = 1) -> Runs:
    runs = Runs()
    runs.add_range(first, seq)
    return runs


def record(seq: int, order: str, sender: str = "a", **more: Any) -> bytes:
    stamps: dict[str, dict[str, Any]] = {
        "s_b": {"after": [[sender, 0, seq - 1]] if seq > 1 else []},
        "object": {"after": [[sender, 0, seq - 1]] if seq > 1 else []},
        "causal": {"seen": [[sender, 0, seq]]},
        "causal_p2p": {
            "seen": [[sender, 0, seq]],
            "to": ["b"],
            "sent": {"b": [[sender, 0, seq - 1]] if seq > 1 else []},
        },
        "lamport": {"time": 100 + seq},
        "two_clock": {"time": 100 + seq, "clock_ms": 100 + seq},
    }
    return json.dumps({"group": "G", "sender": sender, "seq": seq, **stamps.get(order, {}), **more}).encode()


def delivered(kernel: PeerKernel) -> list[int]:
    return [one.id[2] for one in kernel.told.placed if one.id is not None and not one.is_abandoned]


@pytest.mark.parametrize("order", ORDERS)
def test_what_waited_for_forgotten_messages_goes_on_and_copies_of_them_are_dropped(order: str) -> None:
    kernel = PeerKernel(order=order)
    for at, seq in enumerate((8, 9)):
        kernel.receive(record(seq, order), KEY, 0, at, 0)
    assert delivered(kernel) == ([8, 9] if order == "total" else [])
    kernel.pass_over("G", [(("a", 0), up_to(9))], offset=2)
    assert delivered(kernel) == [8, 9], "held messages are delivered, and no stand-in is needed for them"
    assert list(kernel.held()) == []
    kernel.receive(record(3, order), KEY, 0, 3, 0)
    kernel.receive(record(10, order), KEY, 0, 4, 0)
    assert delivered(kernel) == [8, 9, 10]
    kernel.load(kernel.dump())


@pytest.mark.parametrize("order", ["s_b", "fifo", "causal", "lamport"])
def test_five_million_forgotten_messages_cost_nothing(order: str) -> None:
    kernel = PeerKernel(order=order)
    kernel.pass_over("G", [(("a", 0), up_to(5_000_000))], time=5_000_100)
    kernel.receive(record(5_000_001, order), KEY, 0, 1, 0)
    assert delivered(kernel) == [5_000_001]
    assert kernel.told.refused == []


def test_a_gap_in_what_was_forgotten_is_still_waited_for() -> None:
    kernel = PeerKernel(order="fifo")
    told = [(("a", 0), up_to(3)), (("a", 0), up_to(9, first=6))]
    assert kernel.pass_over("G", told) == [(("a", 0), 1, 3)]
    kernel.receive(record(5, "fifo"), KEY, 0, 1, 0)
    kernel.receive(record(10, "fifo"), KEY, 0, 2, 0)
    assert delivered(kernel) == []
    kernel.receive(record(4, "fifo"), KEY, 0, 3, 0)
    assert delivered(kernel) == [4, 5]
    assert kernel.pass_over("G", told) == [(("a", 0), 6, 9)]
    assert delivered(kernel) == [4, 5, 10]
