"""IPv6 multicast on a network of its own: peers with loss, and a link that is cut and heals. Loopback has none."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.segments.network import Network, why_not
from tests.segments.players import Player, lossy, until

URL = "udp://[ff15::7080]:17080%segment"
NAMES = ("ann", "bob", "cem")
S_MAX = 40.0


def test_peers_talk_by_ipv6_with_loss_and_after_a_cut(tmp_path: Path) -> None:
    if sentence := why_not():
        pytest.skip(sentence)
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        network.bridge("segment")
        players: dict[str, Player] = {}

        def why() -> str:
            return str({one.name: (one.texts, one.members, one.why()) for one in players.values()})

        for number, name in enumerate(NAMES, 1):
            network.place(name, segment=f"10.70.1.{number}")
            options = ["--segment", URL, "--state", str(tmp_path / name), "--order", "causal", "--json"]
            command = network.command(name, lossy(0.1, "peer", "travel", name, *options))
            players[name] = Player(name, command, tmp_path / f"{name}.log")
            stack.callback(players[name].close)
            until(lambda name=name: name in players[name].members, S_MAX, why)  # type: ignore[misc]
        said = [f"{name} {number}" for number in range(30) for name in NAMES]
        for text in said[:45]:
            players[text.split()[0]].say(text)
        until(lambda: all(set(one.texts) == set(said[:45]) for one in players.values()), S_MAX, why)
        network.cut("bob", "segment")
        for text in said[45:]:
            players[text.split()[0]].say(text)
        network.heal("bob", "segment")
        until(lambda: all(sorted(one.texts) == sorted(said) for one in players.values()), S_MAX, why)
