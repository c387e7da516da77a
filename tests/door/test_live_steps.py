"""Live reading without Kafka, by literal records: what is delivered from where, tokens, differences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from precede.ingest.follower_token import VERSION, FollowerToken, Released, read_token
from precede.ingest.live import choice
from precede.ingest.live.choice import LiveChoice
from precede.ingest.live.kernel import KernelState, Match, OutputLedger, StreamIdentity
from precede.udfs.errors import Difference, Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.records.messages import LogRecord
from precede.udfs.rules import RULES

NOTHING = KernelState({0: 0}, {}, {})


def stream(order: str = "s_b") -> StreamIdentity:
    return StreamIdentity("ordered-id", "raw", "raw-id", 1, order, Limits(), "murmur2", RULES)


def message(offset: int, group: str, seq: int) -> LogRecord:
    value = b'{"group":"%b","sender":"ann","seq":%d,"after":[]}' % (group.encode(), seq)
    return LogRecord(value, group.encode(), 0, offset, 1_000 + offset)


def ordered(records: list[LogRecord], start: int = 0, order: str = "s_b") -> list[LogRecord]:
    """What the job writes for them, in an ordered topic of one partition."""
    kernel = Holdback(order=order, partitions=1)
    for record in records:
        kernel.receive(*record)
    pairs = zip(kernel.ordered_keys, kernel.ordered, strict=True)
    return [LogRecord(value, key, 0, start + at, 0) for at, (key, value) in enumerate(pairs)]


def token(text: str | None = None) -> FollowerToken:
    return FollowerToken(topic="ordered", v=VERSION) if text is None else read_token(text)


def live(published: int = 0, *, order: str = "s_b", begin: FollowerToken | None = None) -> LiveChoice:
    """A reader that is live, of a job that has published so far."""
    reading = LiveChoice(begin or token())
    reading.begin(stream(order), NOTHING, {0: published})
    reading.go_live()
    return reading


def test_what_the_job_has_published_comes_from_the_ordered_topic_and_the_rest_from_the_kernel() -> None:
    raw = [message(offset, "g", offset + 1) for offset in range(4)]
    written = ordered(raw)
    reading = LiveChoice(token())
    reading.begin(stream(), NOTHING, {0: 2})
    reading.take_ordered(written[:3])  # the third one was published after the token was read
    assert [one[1] for one in reading.take()] == [one.value for one in written[:3]]
    reading.go_live()
    reading.take_raw(raw)
    assert reading.take() == [(b"g", written[3].value, 0, 3)]
    assert reading.token.offsets == {0: 3}
    assert reading.token.released == {0: Released(4)}
    reading.take_ordered(written[3:])
    assert reading.take() == []
    assert reading.token.offsets == {0: 4}
    assert reading.is_compared


def test_a_token_in_the_middle_of_a_tick_names_the_group_and_the_position() -> None:
    options = b'"options":{"order":"two_clock","accuracy_ms":1,"delay_max_ms":1}'
    create = b'{"group":"%b","kind":"create",' + options + b',"members":["a","b"]}'
    says = b'{"group":"%b","sender":"a","seq":%d,"time":%d,"clock_ms":1000}'
    raw: list[LogRecord] = []
    for group in (b"h", b"g"):
        raw.append(LogRecord(create % group, group, 0, len(raw), 1_000))
        for seq in (1, 2):
            raw.append(LogRecord(says % (group, seq, seq), group, 0, len(raw), 1_000))
    raw.append(LogRecord(b'{"kind":"tick"}', None, 0, len(raw), 9_000))
    written = [one.value for one in ordered(raw)]
    assert len(written) == 6, "the tick lets the second message of each group go"
    places: list[Released] = []
    for cut in range(len(written)):
        reading = live()
        reading.take_raw(raw)
        got = [reading.next() for _ in range(cut)]
        place = token(reading.token.text())
        places.append(place.released[0])
        again = live(begin=place)
        again.take_raw(raw)
        assert [one[1] for one in [*got, *again.take()] if one is not None] == written
        committed = LiveChoice(place)
        committed.take_ordered(ordered(raw))
        assert [one[1] for one in committed.take()] == written[cut:]
    assert places[-1] == Released(6, "g", 3)


def test_a_difference_is_raised_once_and_its_group_goes_on_from_the_ordered_topic() -> None:
    raw = [message(0, "g", 1), message(1, "h", 1), message(2, "g", 2), message(3, "h", 2)]
    written = ordered(raw)
    reading = live()
    reading.take_raw(raw[:2])
    assert len(reading.take()) == 2
    wrong = written[0]._replace(value=(written[0].value or b"").replace(b'"seq":1', b'"seq":9'))
    reading.take_ordered([wrong])
    with pytest.raises(Difference, match="Live reading of group g has ended.*position 1, at offset 0"):
        reading.take()
    reading.take_raw(raw[2:])
    assert [one[0] for one in reading.take()] == [b"h"], "what g is waits for the job"
    place = token(reading.token.text())
    reading.take_ordered(written[1:])
    assert [one[1] for one in reading.take()] == [written[2].value]
    for later in (LiveChoice(place), live(begin=place)):  # whoever goes on from that token
        if later.is_live:
            later.take_raw(raw)
        later.take_ordered(written[1:])
        assert [one[1] for one in later.take()] == [written[2].value]


def test_a_record_that_the_job_left_out_is_a_difference() -> None:
    raw = [message(offset, "g", offset + 1) for offset in range(3)]
    reading = live()
    reading.take_raw(raw)
    reading.take()
    reading.take_ordered([one for one in ordered(raw) if one.offset != 1])
    with pytest.raises(Difference, match="position 3"):
        reading.take()


def test_a_record_that_the_kernel_makes_in_another_way_than_it_was_delivered_at_the_start_is_a_difference() -> None:
    raw = [message(offset, "g", offset + 1) for offset in range(3)]
    written = ordered(raw)
    reading = LiveChoice(token())
    reading.begin(stream(), NOTHING, {0: 0})
    reading.take_ordered([written[0]._replace(value=(written[0].value or b"") + b" ")])
    assert len(reading.take()) == 1
    reading.go_live()
    reading.take_raw(raw)
    with pytest.raises(Difference, match="released at offset 0 of raw partition 0"):
        reading.take()
    reading.take_ordered(written[1:])
    assert [one[1] for one in reading.take()] == [one.value for one in written[1:]]


def test_with_too_many_groups_that_differ_everything_comes_from_the_ordered_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "DIFFERING_MAX", 2)
    raw = [message(offset, f"g{offset % 4}", offset // 4 + 1) for offset in range(8)]
    written = ordered(raw)
    reading = live()
    reading.take_raw(raw[:4])
    reading.take()
    reading.take_ordered([one._replace(value=(one.value or b"") + b" ") for one in written[:4]])
    for _ in range(3):
        with pytest.raises(Difference):
            reading.take()
    assert reading.take() == []
    assert not reading.is_live
    reading.take_ordered(written[4:])
    assert [one[1] for one in reading.take()] == [one.value for one in written[4:]]


def test_what_the_job_has_ahead_of_the_kernel_waits_to_be_compared() -> None:
    raw = [message(offset, "g", offset + 1) for offset in range(3)]
    reading = LiveChoice(token(), waiting_max=2)
    reading.begin(stream(), NOTHING, {0: 0})
    reading.go_live()
    reading.take_ordered(ordered(raw))
    assert reading.take() == []
    assert not reading.wants_ordered(0)
    reading.take_raw(raw)
    assert len(reading.take()) == 3
    assert reading.take() == []
    assert reading.wants_ordered(0)
    assert reading.is_compared


def test_only_so_many_outputs_wait_to_be_compared() -> None:
    comparison = OutputLedger({0: 0}, outputs_max=2)
    for number in range(3):
        comparison.note([b"g"], [b"%d" % number])
        comparison.keep_bounded({0: number + 1})
    assert len(comparison) == 0
    assert comparison.begin == {0: 3}
    comparison.note([b"g", b"g"], [b"3", b"4"])
    assert comparison.find(b"g", b"4") is Match.TOO_EARLY
    assert comparison.find(b"g", b"3") is Match.EQUAL
    assert comparison.find(b"g", b"4") is Match.EQUAL
    assert comparison.find(b"g", b"4") is Match.UNKNOWN


def test_a_state_beyond_what_is_delivered_and_published_is_refused() -> None:
    with pytest.raises(Refused, match="begins at offset 5 of raw partition 0"):
        LiveChoice(token()).begin(stream(), KernelState({0: 5}, {}, {}), {0: 4})


class Interrupted(list[LogRecord]):
    """Records of which the first can be read, and then comes Ctrl-C."""

    def __iter__(self) -> Iterator[LogRecord]:
        yield self[0]
        raise KeyboardInterrupt


def test_a_step_that_was_interrupted_is_neither_kept_nor_gone_on_from() -> None:
    raw = [message(offset, "g", offset + 1) for offset in range(3)]
    reading = live()
    reading.take_raw(raw[:1])
    assert len(reading.take()) == 1
    place = reading.token
    with pytest.raises(KeyboardInterrupt):
        reading.take_raw(Interrupted(raw[1:]))
    assert reading.state() is None
    assert reading.take() == []
    assert reading.token == place
    with pytest.raises(Refused, match="interrupted in the middle of a step"):
        reading.take_raw(raw[1:])
