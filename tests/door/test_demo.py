"""The demo without broker and job: the conversation in simulated time, the watch, and the views."""

import io
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from precede.demo.conversation import GROUP, MEMBERS, ScriptedConversation, SentMessage, threads
from precede.demo.stage import commands
from precede.demo.view import LiveView, PlainView, open_view
from precede.demo.watch import DemoWatch
from precede.reading.delivery import Delivery
from precede.udfs.records.messages import LogRecord
from tests.door.command import ROOT, precede


def played(
    seconds: float, *, seed: int = 7, view: PlainView | LiveView | None = None, watch: DemoWatch | None = None
) -> DemoWatch:
    """Play the conversation and its late messages in steps of 10 ms; the stream takes no time."""
    watch = watch or DemoWatch(GROUP)
    now_s = 0.0

    def publish(message: SentMessage) -> None:
        record = LogRecord(message.value, GROUP.encode(), 0, len(watch.records), int(now_s * 1000))
        arrival = watch.arrive(record)
        assert arrival is not None
        if view is not None:
            view.arrived(arrival)
        for value in watch.expected[len(watch.deliveries) :]:
            delivery = msgspec.json.decode(value, type=Delivery)
            delivery.record = value
            watch.deliver(delivery)
            if view is not None:
                view.delivered(delivery)

    conversation = ScriptedConversation(publish, seed=seed)
    while now_s < seconds or conversation.under_way:
        conversation.play(now_s, speaking=now_s < seconds)
        now_s += 0.01
    assert len(watch.deliveries) == conversation.said
    return watch


def test_every_line_of_the_script_answers_one_above_it_and_every_member_speaks() -> None:
    script = threads()
    assert {line.sender for thread in script for line in thread} == set(MEMBERS)
    for thread in script:
        assert thread[0].answers is None
        assert all(line.answers is not None and line.answers < place for place, line in enumerate(thread[1:], 1))
        assert all(line.text for line in thread)


@pytest.mark.parametrize("seed", range(5))
def test_a_conversation_is_lively_enough_to_show_everything(seed: int) -> None:
    watch = played(20, seed=seed)
    assert len(watch.waited) >= 3
    assert watch.holdback.duplicates >= 1
    assert max(delivery.held_ms for delivery in watch.waited) >= 1000


def test_all_that_is_said_is_delivered_once_whatever_got_lost_on_the_way() -> None:
    watch = played(60)
    assert watch.complete
    assert watch.agreed
    assert watch.contiguous
    assert watch.held() == []
    assert watch.dead_letters == 0


def test_the_same_seed_plays_the_same_conversation() -> None:
    assert played(10, seed=3).expected == played(10, seed=3).expected
    assert played(10, seed=3).expected != played(10, seed=4).expected


def test_a_stream_that_delivers_other_bytes_is_found_out() -> None:
    watch = played(10)
    watch.deliveries[3].record += b" "
    assert not watch.agreed
    del watch.deliveries[3]
    assert not watch.contiguous


def test_the_dumped_log_replays_to_the_same_bytes(tmp_path: Path) -> None:
    watch = played(20)
    (tmp_path / "raw.jsonl").write_bytes(watch.dump())
    done = precede("replay", tmp_path / "raw.jsonl")
    assert done.stdout.splitlines() == watch.expected


def test_without_a_terminal_there_is_a_line_for_each_thing_that_happens() -> None:
    out = io.StringIO()
    watch = DemoWatch(GROUP)
    view = open_view(Console(file=out, width=80), watch)
    assert isinstance(view, PlainView)
    played(20, view=view, watch=watch)
    text = out.getvalue()
    assert text.count("\narrived ") + text.startswith("arrived ") == len(watch.arrivals)
    assert text.count("delivered ") == len(watch.deliveries)
    assert text.count("held, waits for ") == len(watch.waited)
    assert text.count("an exact copy, dropped") == watch.holdback.duplicates


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 10)])
def test_the_live_view_fits_the_terminal_and_shows_what_is_held_and_delivered(size: tuple[int, int]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=size[0], height=size[1], color_system=None)
    watch = DemoWatch(GROUP)
    view = open_view(console, watch)
    assert isinstance(view, LiveView)
    with view:
        played(20, view=view, watch=watch)
        view.show("The group talks", 20)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n")
    assert "The group talks, 20 s" in drawn
    assert "held back: 0" in drawn
    assert f"delivered {len(watch.deliveries)}" in drawn
    assert watch.deliveries[-1].data[:5] in drawn
    assert max(map(len, drawn.splitlines())) <= size[0]


def test_the_summary_names_commands_that_work(tmp_path: Path) -> None:
    from deltalake import write_deltalake
    from pyarrow import table

    columns = {name: [1] for name in ("position", "sender", "seq", "arrived_at", "released_at", "data")}
    write_deltalake(tmp_path / "delta" / "deliveries", table(columns))
    (tmp_path / "raw.jsonl").write_bytes(played(5).dump())
    for command in commands(tmp_path):
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, timeout=30, check=False)
        assert done.returncode == 0
        assert done.stderr == b"" or done.stderr.startswith(b"Exact copies dropped: ")  # the demo repeats some
        assert done.stdout
