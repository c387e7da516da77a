"""Looking without Spark, on a real broker: what the real job wrote, and what came after it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import precede as door
from precede.inspect import findings, holding
from precede.inspect.knowledge import NoStateError, StreamKnowledge, look
from precede.local.embedded_broker import Broker
from precede.udfs.engine.held import Held
from precede.udfs.engine.inspection import OpenGap
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.records.wire import encode_message
from tests.door.command import lines, precede
from tests.records import conversation
from tests.system.stream import Stream

Looked = tuple[Stream, "dict[str, str]"]


def said(group: str, sender: str, seq: int, *after: tuple[str, int, int], **more: Any) -> tuple[bytes, bytes]:
    return group.encode(), encode_message(group, sender, 0, seq, after=list(after), **more)


BEFORE = [
    said("travel", "bob", 1, ("ann", 0, 1)),
    said("travel", "ann", 1),
    said("travel", "eli", 1, ("zoe", 0, 7)),
    said("travel", "mia", 1, ("mia", 0, 1)),
    (b"travel", b'{"group":"travel","sender":"ned","seq":1}'),
    said("travel", "kim", 1, ("lost", 0, 1)),
    (b"travel", b'{"group":"travel","kind":"abandon","ids":[["lost",0,1,1]]}'),
    said("travel", "pia", 1, data=1),
    said("travel", "pia", 1, data=2),
    said("filled", "bob", 1, ("ann", 0, 1)),
]
AFTER = [
    said("travel", "ann", 1),
    said("travel", "ann", 2),
    said("travel", "fay", 1, ("eli", 0, 1)),
    said("filled", "ann", 1),
    said("new", "bob", 1, ("ann", 0, 1)),
]


@pytest.fixture(scope="module")
def stream(broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """The job has run once, and more came after it."""
    stream = Stream(broker.bootstrap, tmp_path_factory.mktemp("looking"), tick_s=0.0)
    stream.send(BEFORE + conversation(400, groups=40))
    stream.once(spark)
    stream.send(AFTER)
    return stream


@pytest.fixture(scope="module")
def config(stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's config file."""
    path = tmp_path_factory.mktemp("config") / "precede.toml"
    names = ("raw_topic", "ordered_topic", "dead_letter_topic", "progress_topic", "control_topic", "delta")
    text = "".join(f'{name} = "{getattr(stream.settings, name)}"\n' for name in names)
    path.write_text(f'bootstrap = "{stream.settings.bootstrap}"\n{text}')
    return path


def whole(stream: Stream) -> Holdback:
    """A kernel that has read all of the raw log."""
    kernel = Holdback(partitions=2)
    for key, value, partition, offset, timestamp_ms in sorted(stream.raw(), key=lambda row: row[2:4]):
        kernel.receive(value, key, partition, offset, timestamp_ms)
    return kernel


def caught_up(stream: Stream, group: str | None = None) -> StreamKnowledge:
    knowledge = look(stream.settings, group)
    knowledge.catch_up()
    return knowledge


def test_what_is_held_and_missing_is_what_a_kernel_over_the_whole_log_holds(stream: Stream) -> None:
    kernel, knowledge = whole(stream), caught_up(stream)
    assert sum(len(groups) for groups in knowledge.by_partition.values()) > 40, "the job wrote state"
    assert list(holding.held(knowledge)) == list(kernel.held())
    assert list(holding.gaps(knowledge)) == list(kernel.gaps())
    one = caught_up(stream, "travel")
    assert list(holding.held(one)) == list(kernel.held("travel"))
    assert one.holdback.dump().keys() == {b"travel"}, "nothing else is loaded"


def test_the_command_held_says_the_same_as_the_kernel_and_needs_neither_spark_nor_a_checkpoint(
    stream: Stream, config: Path
) -> None:
    kernel = whole(stream)
    held = precede("held", "--json", "--config", config)
    assert (held.returncode, held.stderr) == (0, b"")
    assert msgspec.json.decode(b"[" + b",".join(held.stdout.splitlines()) + b"]", type=list[Held]) == [*kernel.held()]
    gaps = precede("held", "travel", "--gaps", "--json", "--config", config)
    assert msgspec.json.decode(b"[" + b",".join(gaps.stdout.splitlines()) + b"]", type=list[OpenGap]) == [
        *kernel.gaps("travel")
    ]
    shown = precede("held", "travel", "--config", config).stdout.decode()
    assert "zoe:7" in shown
    nothing = precede("held", "group-1", "--config", config)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"Nothing is held in group-1.\n")


def test_the_groups_and_those_that_hold_most_come_from_the_state(stream: Stream, config: Path) -> None:
    listed = lines(precede("groups", "--json", "--config", config).stdout)
    assert [(one["group"], one["order"], one["position"]) for one in listed if one["group"] == "travel"] == [
        ("travel", "s_b", 6)
    ]
    assert len(listed) == 43, "also those of which everything is held"
    top = lines(precede("groups", "--top", "held", "--json", "--config", config).stdout)
    assert [(one["group"], one["held"], one["gaps"]) for one in top] == [("travel", 2, 1), ("new", 1, 1)]
    longest = lines(precede("groups", "--top", "wait", "--count", "1", "--json", "--config", config).stdout)
    assert [one["group"] for one in longest] == ["travel"]
    assert len(lines(precede("groups", "--top", "bytes", "--json", "--config", config).stdout)) == 20
    assert b"travel" in precede("groups", "--top", "wait", "--config", config).stdout


ENDS = [
    ("bob:1", "delivered", "delivered at position 2 ("),
    ("ann:1", "delivered", "An exact copy came "),
    ("ann:2", "delivered", "The job has not written this to the ordered topic yet"),
    ("eli:1", "held", "It waits for zoe:7."),
    ("fay:1", "held", "It waits for zoe:7."),
    ("zoe:7", "missing", "eli:1 has waited for it"),
    ("mia:1", "refused", "refused as self_parent"),
    ("ned:1", "refused", "refused as missing_stamp"),
    ("lost:1", "abandoned", "A record without data stands in its place at position 3."),
    ("kim:1", "delivered", "for lost:1 to be given up."),
    ("pia:1", "delivered", "A record with this id was refused as equivocation"),
    ("kim:2", "unseen", "The highest seq seen of kim is 1."),
]


@pytest.mark.parametrize("places", ["delta", "topics"])
@pytest.mark.parametrize(("message", "end", "sentence"), ENDS)
def test_every_end_of_a_message_is_found(
    stream: Stream, config: Path, tmp_path: Path, places: str, message: str, end: str, sentence: str
) -> None:
    delta = stream.settings.delta if places == "delta" else tmp_path / "none"
    answer = door.why("travel", message, config=config, delta=delta)
    assert answer.end == end
    assert sentence in str(answer)
    raw = {(partition, offset): value for _, value, partition, offset, _ in stream.raw()}
    for delivery in answer.deliveries:
        assert message.partition(":")[0].encode() in (raw[delivery.partition, delivery.offset] or b"")
    if message == "bob:1":
        assert str(answer).endswith("for ann:1.")


@pytest.mark.parametrize("message", ["kim:2", "mia:1"], ids=["never seen", "refused"])
def test_of_the_dead_letters_only_those_that_delta_does_not_have_are_read_from_the_topic(
    stream: Stream, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    for name in ("STEP_RECORDS", "NEW_RECORDS", "TELL_EVERY"):
        monkeypatch.setattr(findings, name, 1)

    def read(delta: Path | str) -> int:
        told: list[str] = []
        door.why("travel", message, config=config, delta=delta, tell=lambda what, _: told.append(what))
        return sum(stream.settings.dead_letter_topic in what for what in told)

    assert 0 < read(stream.settings.delta) < read(tmp_path / "none")


def test_the_command_why_tells_it_in_words_and_as_json(config: Path) -> None:
    told = precede("why", "travel", "bob:1", "--config", config)
    assert (told.returncode, told.stderr) == (0, b"")
    assert told.stdout.startswith(b"bob:1 in travel was delivered at position 2 (")
    (fields,) = lines(precede("why", "travel", "eli@0:1", "--json", "--config", config).stdout)
    assert (fields["end"], fields["waits"][0]["missing"]) == ("held", [["zoe", 0, 7]])
    wrong = precede("why", "travel", "bob", "--config", config)
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)


def test_a_stream_without_a_state_topic_is_told_in_a_sentence(stream: Stream) -> None:
    nobody = msgspec.structs.replace(stream.settings, ordered_topic="another.ordered")
    with pytest.raises(NoStateError, match="no job has written it yet"):
        look(nobody)
    with pytest.raises(Refused, match="no job has run there yet"):
        look(msgspec.structs.replace(stream.settings, progress_topic="another.progress"))
