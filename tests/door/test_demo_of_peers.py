"""The demo of peers without its processes: the watch, and the views."""

import io

import msgspec
from rich.console import Console

from precede.demo.peers import PeersInLines, PeersInPanels, PeerWatch, WatchedPeer
from precede.reading.delivery import Delivery


def delivery(sender: str, seq: int, position: int, data: str) -> Delivery:
    record = {"group": "g", "sender": sender, "epoch": 0, "seq": seq, "data": data}
    added = {"position": position, "order": "s_b", "status": "delivered", "partition": 0}
    times = {"offset": position, "arrived_ms": 0, "released_offset": position, "released_ms": 0}
    return msgspec.json.decode(msgspec.json.encode(record | added | times), type=Delivery)


def watched() -> PeerWatch:
    """Bob answers Ann; both and the log have it."""
    watch = PeerWatch({name: WatchedPeer(name, "near") for name in ("ann", "bob")})
    for peer in watch.peers.values():
        peer.delivered = {("ann", 0, 1): "Sea?", ("bob", 0, 1): "Sea."}
    watch.answered = {("bob", 0, 1): ("ann", 0, 1)}
    watch.take(delivery("ann", 1, 1, "Sea?"))
    watch.take(delivery("bob", 1, 2, "Sea."))
    return watch


def test_peers_that_have_what_the_log_has_agree() -> None:
    watch = watched()
    assert (watch.agreed, watch.is_complete, watch.is_lawful, watch.is_contiguous) == (2, True, True, True)


def test_whatever_is_wrong_shows() -> None:
    lacking, early, hole = watched(), watched(), watched()
    del lacking.peers["bob"].delivered["ann", 0, 1]
    assert (lacking.agreed, lacking.is_complete) == (1, False)
    early.peers["bob"].delivered = {("bob", 0, 1): "Sea.", ("ann", 0, 1): "Sea?"}
    assert not early.is_lawful
    hole.take(delivery("ann", 2, 4, "Good."))
    assert not hole.is_contiguous


def test_both_views_show_what_the_log_has_and_at_how_many_peers_it_is() -> None:
    watch = watched()
    del watch.peers["bob"].delivered["bob", 0, 1]
    plain = io.StringIO()
    with PeersInLines(Console(file=plain, width=100), watch) as view:
        view.show("The group talks")
        view.show("The group talks")
    assert plain.getvalue().splitlines() == [
        "The group talks ...",
        "log 1    at 2 peers  ann: Sea?",
        "log 2    at 1 peers  bob: Sea.",
    ]
    live = io.StringIO()
    with PeersInPanels(Console(file=live, width=100, height=30, force_terminal=True), watch) as view:
        view.show("The group talks")
    for text in ("ann", "2 delivered", "bob: Sea.", "1 messages are in the log and at all 2 peers"):
        assert text in live.getvalue()
