"""`precede peer` as a user and a program run it: in processes of their own, on loopback."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.door.command import precede
from tests.door.peer_processes import PeerProcess
from tests.door.segment_links import loopback_url


class Room:
    """Processes on one segment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = loopback_url()
        self.running: list[PeerProcess] = []

    def start(self, name: str, *flags: str | Path, group: str = "travel") -> PeerProcess:
        one = PeerProcess(name, self.url, self.folder, *flags, group=group)
        self.running.append(one)
        return one

    def in_json(self, *names: str, first: str = "s_b") -> list[PeerProcess]:
        """Peers in the group, all of them known to the first."""
        found = [self.start(names[0], "--json", "--order", first)]
        found[0].event("view", members=[names[0]])
        found += [self.start(name, "--json") for name in names[1:]]
        for one in found:
            one.until(lambda line: sorted(json.loads(line).get("members", [])) == sorted(names))
        for one in found[1:]:
            one.event("synced")
        return found


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = Room(tmp_path)
    yield found
    for one in found.running:
        one.close()


def test_two_people_talk_and_answer_each_other(room: Room) -> None:
    ann = room.start("ann")
    ann.until(lambda line: line == "members: ann")
    bob = room.start("bob")
    ann.until(lambda line: line == "members: ann, bob")
    bob.until(lambda line: line.startswith("synced"))
    ann.say("Who comes along?")
    id_ = bob.until(lambda line: "Who comes along?" in line).split()[0]
    assert id_.startswith("ann@")
    bob.say(f"> {id_} I do.")
    answer = ann.until(lambda line: "I do." in line)
    assert answer.startswith("bob@")
    assert f":1 after {id_}  " in answer
    for one in (ann, bob):
        assert one.stop() == (0, "")


def test_in_json_every_event_has_the_form_of_the_contract(room: Room) -> None:
    ann, bob = room.in_json("ann", "bob", first="causal")
    ann.say('{"data": {"price": 1.50, "big": 1e400}}')
    sent = ann.event("sent")
    assert sent.keys() == {"event", "id"}
    assert [sent["id"][0], sent["id"][2]] == ["ann", 1]
    line = bob.until(lambda line: '"price"' in line)
    assert '"data":{"price": 1.50, "big": 1e400}' in line, "data passes byte for byte"
    assert line.startswith('{"event":"delivered","record":{"group":"travel","sender":"ann",')
    assert line.rpartition(',"waited_ms":')[2].removesuffix("}").isdecimal()
    bob.tell("answer", after=[sent["id"]])
    assert ann.delivered("answer")["after"] == [sent["id"]]
    ann.end_of_input()
    bob.tell("still there")
    ann.delivered("still there")  # at the end of input it stays
    assert (ann.stop(signal.SIGTERM), bob.stop(signal.SIGINT)) == ((0, ""), (0, ""))


@pytest.mark.parametrize("mode", [[], ["--json"]], ids=["text", "json"])
def test_with_leave_it_leaves_once_everyone_has_what_it_said(room: Room, mode: list[str]) -> None:
    (ann,) = room.in_json("ann")
    bob = room.start("bob", "--leave", *mode)
    bob.say("one" if not mode else '{"data": "one"}')
    bob.end_of_input()
    assert bob.ended() == (0, "")
    ann.delivered("one")
    ann.until(lambda line: json.loads(line).get("members") == ["ann"] and len(ann.seen) > 3)
    assert ann.stop() == (0, "")


def test_at_its_end_it_says_which_datagrams_of_others_it_dropped(room: Room, tmp_path: Path) -> None:
    key = tmp_path / "segment.key"
    key.write_text("7" * 64)
    key.chmod(0o600)
    (ann,) = room.in_json("ann")
    bob = room.start("bob", "--json", "--segment-key", key)
    bob.event("view", members=["bob"])  # it hears no one of its key
    for one, code in ((bob, "no_checksum"), (ann, "unexpected_checksum")):
        status, said = one.stop()
        assert status == 0
        assert re.fullmatch(rf"Datagrams that were dropped: [0-9]+ {code}\. docs/reference/frames.md .*\n", said), said


def test_what_is_held_is_shown_with_what_it_waits_for(room: Room) -> None:
    (ann, bob) = room.in_json("ann", "bob", first="lamport")
    cid = room.start("cid")
    cid.until(lambda line: line.startswith("synced"))
    bob.running.send_signal(signal.SIGSTOP)  # its clock is not heard any more, so the others wait for it
    for number in range(5):
        ann.tell(number)  # bob has given his word for the first ones
    last = json.loads(ann.until(lambda line: '"sent"' in line and ",5]" in line))["id"]
    assert ann.event("held", id=last)["missing"] == []
    assert cid.until(lambda line: ":5 is held" in line).endswith("is held, waits for a word of other members")
    bob.running.send_signal(signal.SIGCONT)
    assert ann.delivered(4)["seq"] == 5
    assert "  (held " in cid.until(lambda line: ":5  4" in line)


BAD_JSON = [
    ("{", "it is not "),
    ("[]", "it is not "),
    ('{"after": []}', "it is not "),
    ('{"data": 1, "more": 2}', "unknown field `more`"),
    ('{"data": NaN}', "it is not "),
    ('{"data": 1, "after": ["ann", 0, 1]}', "it is not "),
    ('{"data": 1, "after": [["ann", 0, 1]]}', "has not been delivered to ann"),
    ('{"data": 1, "after": [["ann", -1, 1]]}', "in an id the epoch must be"),
    ('{"data": 1, "to": ["bob"]}', "every message is for the whole group"),
    ('{"data": "\\udfff\xff"}', "it is not "),
    ('{"data": "' + "x" * 600_000 + '"}', "524,288 are allowed"),
    ('{"data": "' + "x" * 1_200_000 + '"}', "longer than any message may be"),
    ('{"data": ' + "[" * 5_000 + "]" * 5_000 + "}", "it is not "),
]


def test_bad_lines_of_json_are_refused_one_by_one_and_harm_nothing(room: Room) -> None:
    (ann,) = room.in_json("ann")
    for bad, _ in BAD_JSON:
        ann.say(bad.encode("latin-1") if "\xff" in bad else bad)
    ann.say("")
    ann.tell("good")
    assert ann.delivered("good")["seq"] == 1
    found = [json.loads(line) for line in ann.seen if '"refused"' in line]
    assert len(found) == len(BAD_JSON)
    for number, (told, (bad, reason)) in enumerate(zip(found, BAD_JSON, strict=True), start=1):
        assert told["reason"].startswith(f"Line {number} was not sent: "), bad[:50]
        assert reason in told["reason"], bad[:50]
        assert told["code"] in ("malformed", "refused")
    assert ann.stop() == (0, "")


def test_bad_lines_of_text_are_refused_one_by_one_and_harm_nothing(room: Room) -> None:
    ann = room.start("ann")
    ann.until(lambda line: line == "members: ann")
    for bad in (b"> ", b"> ann:1", b"> nothing I do.", b"> bob:1 I do.", b"\xff\xfe", b"x" * 1_200_000, b"x" * 600_000):
        ann.say(bad)
    ann.say("   ")
    ann.say("good \x1b[31m")
    ann.until(lambda line: "good" in line)
    refused = [line.partition(" was not sent: ")[2] for line in ann.seen if line.startswith("refused")]
    assert refused[0] == refused[1] == "an answer is written as > ID text."
    assert refused[2].startswith("> nothing is no id")
    assert "has not been delivered to ann" in refused[3]
    assert refused[4] == "it is not UTF-8."
    assert refused[5].startswith("it is longer than any message may be")
    assert "524,288 are allowed" in refused[6]
    assert len(refused) == 7
    assert "\x1b" not in "".join(ann.seen), "what others say moves no cursor"
    assert ann.stop() == (0, "")


def test_a_peer_that_was_killed_comes_back_with_a_new_epoch_and_all_that_it_said(room: Room) -> None:
    ann, bob = room.in_json("ann", "bob")
    ann.tell("before")
    first = bob.delivered("before")
    ann.stop(signal.SIGKILL)
    again = room.start("ann", "--json")
    again.tell("after")
    second = bob.delivered("after")
    assert (second["epoch"] > first["epoch"], second["seq"]) == (True, 1)
    bob.tell("to ann")
    again.delivered("to ann")
    cid = room.start("cid", "--json")
    assert cid.delivered("before") == first
    assert cid.delivered("after") == second


def test_a_peer_that_was_stopped_goes_on_with_its_seqs(room: Room) -> None:
    ann, bob = room.in_json("ann", "bob")
    ann.tell("before")
    first = bob.delivered("before")
    assert ann.stop() == (0, "")
    bob.tell("meanwhile")
    again = room.start("ann", "--json")
    again.tell("after")
    second = bob.delivered("after")
    assert (second["epoch"], second["seq"]) == (first["epoch"], 2)
    again.delivered("meanwhile")
    assert not any('"before"' in line for line in again.seen), "it was delivered before the stop"


def test_a_state_that_was_lost_is_a_new_epoch_and_a_damaged_one_a_sentence(room: Room) -> None:
    ann, bob = room.in_json("ann", "bob")
    ann.tell("before")
    first = bob.delivered("before")
    assert ann.stop() == (0, "")
    state = room.folder / "ann"
    state.write_bytes(state.read_bytes()[:-10])
    status, said = room.start("ann", "--json").ended()
    assert status == 1
    assert "is damaged" in said
    assert "move it away, and ann goes on with a new epoch" in said
    state.unlink()
    room.start("ann", "--json").tell("after")
    second = bob.delivered("after")
    assert (second["epoch"] > first["epoch"], second["seq"]) == (True, 1)


@pytest.mark.parametrize("mode", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--segment", "udp://10.0.0.1:17080"], 2, "is not a multicast address"),
        (["--segment", "eth0"], 2, "is not the address of a segment"),
        (["--segment", "udp://239.255.70.80:17080%nix0"], 1, "There is no network interface nix0"),
        (["--segment", "udp://239.1.2.3:9%lo,udp://239.1.2.4:9%lo"], 1, "names 2: name one"),
        (["--order", "total"], 1, "The order total is the log's own, so it needs the log"),
        (["--order", "nothing"], 2, "There is no order nothing"),
        (["--segment-key", "no.key"], 1, "The segment key no.key cannot be read"),
        (["--key", "no.key"], 1, "The key file no.key cannot be read"),
        (["--nothing"], 2, "No such option: --nothing"),
    ],
)
def test_wrong_flags_are_a_sentence(tmp_path: Path, mode: list[str], flags: list[str], status: int, said: str) -> None:
    given = flags if "--segment" in flags else [*flags, "--segment", loopback_url()]
    done = precede("peer", "travel", "ann", "--state", tmp_path / "ann", *given, *mode)
    assert (done.returncode, done.stdout) == (status, b"")
    text = done.stderr.decode()
    assert said in " ".join(text.split())
    assert "Traceback" not in text


@pytest.mark.parametrize("names", [("", "ann"), ("travel", ""), ("travel", "x" * 256), (b"\xff", "ann")])
def test_wrong_names_are_a_sentence(names: tuple[str | bytes, str]) -> None:
    group = names[0].decode("utf-8", "surrogateescape") if isinstance(names[0], bytes) else names[0]
    done = precede("peer", group, names[1], "--segment", loopback_url())
    assert done.returncode == 2
    assert b"must have 1 to 255 bytes" in done.stderr or b"is not UTF-8" in done.stderr


def test_a_port_in_use_and_a_state_in_use_are_sentences(room: Room) -> None:
    room.in_json("ann")
    status, said = room.start("bob", "--state", room.folder / "ann").ended()
    assert (status, "is in use: a peer can be open in only one place" in said) == (1, True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))
        url = f"udp://239.255.70.80:{other.getsockname()[1]}%lo"
        done = precede("peer", "travel", "bob", "--segment", url, "--state", room.folder / "other")
    assert done.returncode == 1
    assert b"is in use by a program that does not share it" in done.stderr


def test_a_reader_that_leaves_early_ends_it_without_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precede", "peer", "travel", "ann", "--json", "--segment", loopback_url()]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--state", tmp_path / "ann"], stdin=pipe, stdout=pipe, stderr=pipe) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        assert b'"view"' in running.stdout.readline()
        running.stdout.close()
        running.stdin.write(b'{"data": "anyone?"}\n')
        running.stdin.flush()
        assert running.wait(20) == 0
        assert running.stderr.read() == b""


def test_no_client_of_kafka_is_loaded_for_a_peer() -> None:
    program = "import precede, sys; precede.Peer; precede.Segment; print('confluent_kafka' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=30)
    assert done.stdout == b"False\n"
