"""`precede.Groups` and `precede groups`: joining and leaving the groups of a real log."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import precede
from precede.ingest import sender_state
from precede.ingest.sending import log_of, send_one
from precede.ingest.signing import key_in, make_key, public_text
from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused
from tests.door.command import precede as command_line
from tests.system.relay import Relay


@pytest.fixture
def relay(broker: Broker) -> Iterator[Relay]:
    with Relay(broker) as running:
        yield running


def topics_of(relay: Relay) -> dict[str, str]:
    return {"raw_topic": relay.raw, "ordered_topic": relay.ordered, "dead_letter_topic": relay.dead_letters}


class People:
    """Each with its own state file, as on separate machines."""

    def __init__(self, relay: Relay, folder: Path) -> None:
        self.relay = relay
        self.folder = folder

    def groups(self, name: str, **more: Any) -> precede.Groups:
        given = {"bootstrap": self.relay.bootstrap, "state": self.folder / f"{name}.json"}
        return precede.Groups(name, **{**given, **topics_of(self.relay), **more})

    def say(self, group: str, name: str, key: Path | None = None) -> tuple[str, int, int]:
        state = self.folder / f"{name}.json"
        said: dict[str, Any] = {"group": group, "sender": name, "after": [], "data": "hello", "key": key_in(key)}
        return send_one(self.relay.bootstrap, self.relay.raw, state, **said)

    def sequence(self, group: str, count: int) -> list[str]:
        """The first records of a group, in short notation."""
        with precede.follow(group, bootstrap=self.relay.bootstrap, topic=self.relay.ordered) as follower:
            found = [next(follower) for _ in range(count)]
        return [f"{one.kind} {one.sender} {one.epoch}" for one in found]


@pytest.fixture
def people(relay: Relay, tmp_path: Path) -> People:
    return People(relay, tmp_path)


def test_a_group_is_created_offered_once_joined_left_and_joined_again(people: People) -> None:
    with people.groups("ann") as ann, people.groups("bob") as bob:
        assert ann.discover() == bob.discover() == []
        assert ann.create("travel", closed=True, window=500).position == 1

        (offer,) = bob.discover()
        assert (offer.group, offer.order, offer.closed, offer.members) == ("travel", "s_b", True, {"ann": 0})
        assert offer.options == {"closed": True, "window": 500}
        assert bob.offers() == [], "one offer, while bob decides"
        assert bob.discover() == [], "and he has not decided yet"
        assert bob.join("travel") == (0, 2, True)
        assert bob.join("travel") == (0, None, False), "a member need not join"
        assert ann.members("travel") == bob.members("travel") == {"ann": 0, "bob": 0}
        assert bob.mine() == ["travel"]

        assert people.say("travel", "bob") == ("bob", 0, 1)
        assert bob.leave("travel") == (0, 4, True)
        assert ann.members("travel") == {"ann": 0}
        with pytest.raises(Refused, match="bob is not in travel any more"):
            bob.leave("travel")

        assert [one.group for one in bob.discover()] == ["travel"]
        assert bob.join("travel") == (1, 5, True)
        assert people.say("travel", "bob") == ("bob", 1, 1), "his messages continue under the new epoch"
        assert ann.members("travel") == {"ann": 0, "bob": 1}
    assert people.sequence("travel", 6) == [
        "create ann 0",
        "join bob 0",
        "message bob 0",
        "leave bob 0",
        "join bob 1",
        "message bob 1",
    ]


def test_what_was_declined_is_offered_again_only_after_the_next_discover(people: People) -> None:
    with people.groups("ann") as ann, people.groups("bob") as bob:
        ann.create("chess", order="total")
        assert [one.group for one in bob.offers()] == ["chess"]
        bob.decline("chess")
        ann.create("cards")
        assert [one.group for one in bob.offers()] == ["cards"]
        assert [one.group for one in bob.discover()] == ["chess"]
        with pytest.raises(Refused, match="not$|is not"):
            bob.decline("nowhere")
        assert [one.group for one in bob.all()] == ["cards", "chess"]


def test_who_was_put_out_is_offered_the_group_again_and_its_old_epoch_is_fenced(people: People) -> None:
    with people.groups("ann") as ann, people.groups("bob") as bob:
        ann.create("travel", members=["ann", "bob"])
        assert bob.discover() == []
        assert ann.evict("travel", "bob", cut=0) == (0, 2, True)
        assert bob.offers() == []
        assert [one.group for one in bob.discover()] == ["travel"]
        assert bob.join("travel").epoch == 1


def test_what_the_group_refuses_is_told_with_its_code_and_reason(people: People) -> None:
    with people.groups("ann") as ann:
        ann.create("travel")
        with pytest.raises(Refused, match="There is a group travel already"):
            ann.create("travel")
        with pytest.raises(Refused, match=r"refused it \(unknown_member\): 'zoe' was never seen"):
            ann.evict("travel", "zoe", cut=0)
        with pytest.raises(Refused, match="There is no order 'alphabetical': choose one of s_b"):
            ann.create("other", order="alphabetical")
        with pytest.raises(Refused, match="This cannot be a `create` record"):
            ann.create("other", window=0)
        with pytest.raises(Refused, match="There is no group nowhere"):
            ann.members("nowhere")
        with pytest.raises(Refused, match="ann is not in nowhere"):
            ann.leave("nowhere")


def test_who_has_left_is_told_so_by_send_until_it_joins_again(people: People, relay: Relay, tmp_path: Path) -> None:
    create = b'{"group":"travel","kind":"create","options":{},"members":["ann","bob"]}'
    relay.publish(relay.raw, create, group="travel")
    assert people.say("travel", "bob") == ("bob", 0, 1)
    with people.groups("bob") as bob:
        bob.leave("travel")
        with pytest.raises(Refused, match="`precede groups join travel bob` brings it back"):
            people.say("travel", "bob")
        with pytest.raises(Refused, match="is not in travel any more"):
            bob.leave("travel")
        with pytest.raises(Refused, match="has left travel"):
            people.say("travel", "bob")
        bob.join("travel")
    assert people.say("travel", "bob") == ("bob", 1, 1)
    assert people.say("travel", "ann") == ("ann", 0, 1)
    member_file = sender_state.member_file(relay_log(relay), "travel", "ann", str(tmp_path / "ann.json"))
    with relay.member("ann", group="travel", state=member_file) as ann:  # the member is another sender to the log
        assert ann.send("hello") == ("ann", 1, 1)
        ann.leave()
    with pytest.raises(Refused, match="ann has left travel"):
        people.say("travel", "ann")


def test_a_group_says_what_it_is_about_and_closed_groups_say_that_they_are_closed(people: People, relay: Relay) -> None:
    with people.groups("ann") as ann, people.groups("bob") as bob:
        ann.create("travel", description="Who comes along?")
        (offer,) = bob.discover()
        assert offer.description == "Who comes along?"
        with pytest.raises(
            ValueError, match="the description of a group may have 1,000 characters, and this has 1,001"
        ):
            ann.create("other", description="x" * 1_001)
        relay.publish(relay.dead_letters, b"no JSON", group="travel")
        assert bob.join("travel").position == 2, "what another program wrote among the dead letters is passed over"
    ann.close()
    for call in (ann.all, ann.discover, lambda: ann.join("travel"), lambda: ann.create("more")):
        with pytest.raises(precede.Closed, match="The list of groups of ann is closed"):
            call()


def test_a_leave_that_the_group_refuses_is_none(people: People) -> None:
    with people.groups("bob") as bob:
        assert people.say("travel", "bob") == ("bob", 0, 1)
        with pytest.raises(precede.Rejected) as said:
            bob.evict("travel", "zed", cut=0)
        assert said.value.code == "unknown_member"
    assert people.say("travel", "bob") == ("bob", 0, 2)


def relay_log(relay: Relay) -> str:
    return log_of(relay.bootstrap, relay.raw, partitions=2, replicas=-1, say=None)


def test_a_member_whose_memory_is_lost_comes_back_above_its_old_epoch_and_leaves_only_knowing_its_last_seq(
    people: People,
) -> None:
    with people.groups("ann") as ann:
        ann.create("travel")
    people.say("travel", "ann")
    (people.folder / "ann.json").unlink()
    with people.groups("ann") as ann:
        with pytest.raises(Refused, match="--last"):
            ann.leave("travel")
        assert ann.join("travel").epoch == 1
        assert ann.leave("travel").position == 4


def test_a_group_with_keys_takes_signed_records_alone(people: People, tmp_path: Path) -> None:
    key, other = tmp_path / "ann.key", tmp_path / "bob.key"
    public = public_text(make_key(key))
    make_key(other)
    with people.groups("ann", key=key) as ann, people.groups("bob") as unsigned, people.groups("bob", key=other) as bob:
        ann.create("vault", keys={"ann": public})
        with pytest.raises(Refused, match="forged"):
            unsigned.join("vault")
        assert bob.join("vault").position == 2
        assert bob.leave("vault").position == 3
        assert ann.leave("vault").position == 4


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """The public keys of these names; the private ones are in files named after them."""
    names = ("ann", "ann2", "ann3", "cem", "dan", "precede")
    return {name: public_text(make_key(tmp_path / f"{name}.key")) for name in names}


@pytest.mark.parametrize("order", ["s_b", "lamport"])
def test_a_member_changes_its_key_and_goes_on_with_the_new_one(
    people: People, tmp_path: Path, keys: dict[str, str], order: str
) -> None:
    of: dict[str, Any] = {"group": "vault", "state": tmp_path / "ann-as-a-member.json"}
    with people.groups("ann", key=tmp_path / "ann.key") as ann:
        ann.create("vault", order=order, closed=True, keys={name: keys[name] for name in ("ann", "precede")})
        with pytest.raises(Refused, match="is no public key"):
            ann.join("vault", new_key="ann2")
        assert ann.join("vault", new_key=keys["ann2"]) == (1, 2, True)
    with people.relay.member("ann", key=tmp_path / "ann2.key", **of) as member:
        assert member.send("with the new key") == ("ann", 2, 1)
    assert people.relay.dead == []
    with people.groups("precede", key=tmp_path / "precede.key") as service:
        assert service.admit("vault", "ann", key=keys["ann3"]).epoch == 3
    with people.relay.member("ann", key=tmp_path / "ann3.key", **of) as member:
        assert member.send("after the old one was lost") == ("ann", 3, 1)
    assert people.relay.dead == []


def test_who_speaks_with_a_key_that_the_group_does_not_know_is_told_so(
    people: People, tmp_path: Path, keys: dict[str, str]
) -> None:
    with people.groups("ann", key=tmp_path / "ann.key") as ann:
        ann.create("open", keys={"ann": keys["ann"]})
        ann.create("clocks", order="lamport", keys={"ann": keys["ann"]})
    another = tmp_path / "ann2.key"
    for key, why in ((None, "accepts only signed records"), (another, "is not the one that .* knows of ann")):
        of: dict[str, Any] = {"key": key, "state": tmp_path / "ann-as-a-member.json"}
        with people.relay.member("ann", group="open", **of) as member, pytest.raises(Refused, match=why):
            member.send("hello")
        with pytest.raises(Refused, match=why):
            people.relay.member("ann", group="clocks", **of)
    assert people.relay.dead == []


def test_a_newcomer_to_a_closed_group_with_keys_is_let_in_by_its_service_and_told_so_until_then(
    people: People, tmp_path: Path, keys: dict[str, str]
) -> None:
    with people.groups("ann", key=tmp_path / "ann.key") as ann:
        ann.create("vault", closed=True, keys={name: keys[name] for name in ("ann", "precede")})
        with pytest.raises(Refused, match="forged"):
            ann.admit("vault", "cem", key=keys["cem"])
    before = len(people.relay.dead)
    of: dict[str, Any] = {"group": "vault", "key": tmp_path / "cem.key", "state": tmp_path / "cem.json"}
    with pytest.warns(UserWarning, match="admit vault cem .* Until then cem can only listen"):
        member = people.relay.member("cem", **of)
    with member:
        with pytest.raises(Refused, match="closed and has no key of cem"):
            member.send("hello")
        with people.groups("precede", key=tmp_path / "precede.key") as service:
            assert service.admit("vault", "cem", key=keys["cem"]) == (0, 2, True)
            assert service.admit("vault", "dan", key=keys["dan"]) == (0, 3, True)
        while not member.members.count("cem"):
            member.poll(0.2)
        assert member.send("hello") == ("cem", 0, 1)
    with people.relay.member("cem", **of) as again:
        assert again.send("again") == ("cem", 0, 2)
    assert people.say("vault", "dan", tmp_path / "dan.key") == ("dan", 0, 1)
    sequence = ["create ann 0", "join cem 0", "join dan 0", "message cem 0", "message cem 0", "message dan 0"]
    assert people.sequence("vault", 6) == sequence
    assert len(people.relay.dead) == before


def test_a_member_goes_on_under_the_epoch_that_was_joined(
    people: People, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PRECEDE_STATE", str(tmp_path / "state" / "senders.json"))
    with people.groups("ann") as ann, people.groups("bob", state=None) as bob:
        ann.create("travel", order="lamport")
        assert bob.join("travel").epoch == 0
        with people.relay.member("bob", group="travel") as member:
            assert member.epoch == 0
            member.send("hello")
            with pytest.raises(Refused, match="close the other"):
                bob.leave("travel")
        assert bob.leave("travel").position == 3
        assert bob.join("travel").epoch == 1
        with people.relay.member("bob", group="travel") as member:
            assert member.send("again") == ("bob", 1, 1)
    assert people.relay.dead == []


# ── the command line ──────────────────────────────────────────────────────────────────────────────────────────────


class Command:
    """`precede groups` over the topics of one relay."""

    def __init__(self, relay: Relay, state: Path) -> None:
        self.variables = {
            "PRECEDE_BOOTSTRAP": relay.bootstrap,
            "PRECEDE_STATE": str(state),
            **{f"PRECEDE_{name.upper()}": topic for name, topic in topics_of(relay).items()},
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return command_line("groups", *arguments, variables=self.variables)

    def says(self, *arguments: str) -> str:
        done = self(*arguments)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr
        return done.stdout.decode().strip()


def test_the_commands_create_join_leave_and_show_groups(relay: Relay, tmp_path: Path) -> None:
    command = Command(relay, tmp_path / "senders.json")
    assert command.says("create", "travel", "ann", "--order", "causal", "--member", "bob", "--closed") == (
        "travel is created, with the members ann, bob (position 1)."
    )
    assert command.says("join", "travel", "chen") == "chen is in travel with epoch 0 (position 2)."
    assert command.says("join", "travel", "chen") == "chen is in travel with epoch 0 already."
    assert command.says("leave", "travel", "bob", "--last", "0") == "bob has left travel (position 3)."
    assert command.says("evict", "travel", "ann", "chen", "--cut", "0") == (
        "chen is out of travel, after its seq 0 (position 4)."
    )
    (line,) = command.says("--json").splitlines()
    assert json.loads(line) == {
        "group": "travel",
        "order": "causal",
        "created": True,
        "closed": True,
        "members": {"ann": 0},
        "options": {"order": "causal", "closed": True},
        "position": 4,
    }
    shown = command.says()
    for word in ("travel", "causal", "its members", "ann"):
        assert word in shown
    assert command.says("abandon", "travel", "ann", "ann:1", "--last", "3") == (
        "travel has abandoned ann:1 to 3 (position 5)."
    )
    again = command("abandon", "travel", "ann", "ann:2")
    assert (again.returncode, again.stdout) == (1, b"")
    assert b"The group refused it (late): Every message it would give up is already" in again.stderr
    wrong = command("abandon", "travel", "ann", "ann:4", "--last", "3")
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    refused = command("evict", "travel", "ann", "zoe", "--cut", "0")
    assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)
    wrong = command("create", "x", "ann", "--conflict", "deposit")
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    wrong = command("create", "x", "ann", "--description", "x" * 1_001)
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    assert b"--description: the description of a group may have 1,000 characters, and this has 1,001." in wrong.stderr


def test_keys_are_changed_by_the_commands_of_the_security_page(
    relay: Relay, tmp_path: Path, keys: dict[str, str]
) -> None:
    command = Command(relay, tmp_path / "senders.json")

    def send(key: str) -> str:
        given = ("send", "travel", "ann", "hello", "--key", tmp_path / f"{key}.key")
        return command_line(*given, variables=command.variables).stdout.decode().strip()

    named = [f"--public-key={name}={keys[name]}" for name in ("ann", "precede")]
    command.says("create", "travel", "ann", "--closed", *named, "--key", f"{tmp_path}/ann.key")
    assert send("ann") == "ann:1"
    assert command.says("join", "travel", "ann", f"--key={tmp_path}/ann.key", "--new-key", keys["ann2"]) == (
        "ann is in travel with epoch 1 and a new key (position 3)."
    )
    assert send("ann2") == "ann@1:1"
    assert command.says("admit", "travel", "ann", keys["ann3"], f"--key={tmp_path}/precede.key") == (
        "ann is in travel with epoch 2 and the given key (position 5)."
    )
    assert command.says("join", "travel", "ann", f"--key={tmp_path}/ann3.key") == (
        "ann is in travel with epoch 3 (position 6)."
    )
    assert send("ann3") == "ann@3:1"
    assert command.says("join", "travel", "precede", f"--key={tmp_path}/precede.key", "--new-key", keys["dan"]) == (
        "precede is in travel with epoch 1 and a new key (position 8)."
    )
    assert command.says("evict", "travel", "precede", "ann", "--cut", "1", f"--key={tmp_path}/dan.key") == (
        "ann is out of travel, after its seq 1 (position 9)."
    )
    assert relay.dead == []


def test_without_a_job_the_commands_say_that_nobody_has_ordered_it(broker: Broker, tmp_path: Path) -> None:
    command = Command(Relay(broker), tmp_path / "senders.json")
    assert command("--json").stderr == b"There are no groups yet.\n" or command("--json").stdout == b""
    done = command("join", "travel", "ann", "--wait", "1")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"the job has not ordered it within 1 s: is `precede run` running?" in done.stderr
