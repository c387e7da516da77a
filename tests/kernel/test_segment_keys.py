"""Groups with keys on a segment: who cannot sign speaks for no one, and hides nothing that is true."""

from __future__ import annotations

import json

import pytest

from precede.udfs.peers import notes
from precede.udfs.peers.frames import DATA, Codec, frame_bytes, make_origin
from precede.udfs.records.signatures import sign
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, KEY, Segments
from tests.signing import Signs, private, publics


@pytest.mark.parametrize("order", ["s_b", "causal", "lamport"])
def test_signed_records_travel_whole_and_forged_ones_hide_nothing(order: str) -> None:
    segments = Segments(weather=Weather(loss=0.1))
    for name in ("ann", "bob"):
        segments.start(name, signer=Signs(name))
    segments.run(300)
    segments.together("ann", "bob", order=order, keys=publics("ann", "bob"))
    epoch = segments["bob"].groups[GROUP].speaking.epoch
    stamps = {"time": 50, "seen": [["bob", epoch, 1]], "after": []}
    forged = {"group": GROUP, "sender": "bob", "epoch": epoch, "seq": 1, **stamps, "data": "I owe you."}
    for at, value in enumerate((json.dumps(forged).encode(), sign(json.dumps(forged).encode(), private("eve"))), 1):
        payload = notes.write_data(b"G", value)
        datagram = Codec(7, KEY).encode(make_origin(b"insider!", 1), [frame_bytes(DATA, at, payload)])
        segments.medium.inject(datagram)
    segments.run(300)
    said = [segments.say("bob", "I owe nothing."), segments.say("ann", "Good.")]
    segments.run(2_000)
    assert set(segments.delivered("ann")) == set(segments.delivered("bob")) == set(said)
    assert "forged" in segments.refused("ann")


def test_a_newcomer_brings_its_key_and_one_without_a_key_is_not_taken() -> None:
    segments = Segments()
    segments.start("ann", signer=Signs("ann"))
    segments.start("new", signer=Signs("new"))
    segments.start("eve")
    segments.run(300)
    segments.together("ann", "new", order="fifo", keys=publics("ann"))
    said = segments.say("new", "here I am")
    segments.join("eve")
    segments.run(2_000)
    assert segments.delivered("ann") == [said]
    assert not segments.joined("eve")
    assert list(segments["ann"].groups[GROUP].members) == ["ann", "new"]
