"""The Group Join/Leave Protocol between peers, step by step (M2MC, chapter 5; vectors GJLP-1 and GJLP-2)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.peers import directory
from precede.udfs.peers.directory import Directory, GroupInfo, RowState
from precede.udfs.peers.views import IN, OUT, members, merge
from tests.kernel.effort import effort


class Medium:
    """A broadcast medium: every process that is present receives each message, the sender itself first."""

    def __init__(self, *names: str, epoch: int = 0) -> None:
        self.peers = {name: Directory(name, epoch=epoch) for name in names}
        self.away: set[str] = set()
        self.told: list[tuple[str, list[str]]] = []
        """The processes that answered since the last advertisement, with the groups they named."""
        self.offered: list[tuple[str, str]] = []
        self.since_advertised: dict[str, set[str]] = {name: set() for name in names}

    def present(self) -> list[Directory]:
        return [peer for name, peer in self.peers.items() if name not in self.away]

    def say(self, *infos: GroupInfo) -> None:
        """A process tells what it knows of groups; all take it in, and are offered what is new."""
        for peer in self.present():
            for offered in peer.receive(infos):
                self.offered.append((peer.name, offered.group))
                assert offered.group not in self.since_advertised[peer.name], "a second offer"
                self.since_advertised[peer.name].add(offered.group)

    def tell(self, info: GroupInfo) -> None:
        """A process joined or left: those who know of the group take that in, as they take in its records."""
        for peer in self.present():
            if info.group in peer.known:
                assert peer.receive([info]) == []

    def connect(self, name: str) -> None:
        """A process advertises itself, and all that are present answer."""
        self.away.discard(name)
        self.told, self.offered = [], []
        self.since_advertised[name] = set()
        self.peers[name].advertise()
        for peer in self.present():
            if mine := peer.mine():
                self.told.append((peer.name, [info.group for info in mine]))
                self.say(*mine)

    def rows(self, name: str) -> dict[str, list[str] | str]:
        """The document's table GIIT: the members of each group of the process, N/A if it declined."""
        peer = self.peers[name]
        return {
            group: "N/A" if row is RowState.DECLINED else list(members(peer.known[group].view))
            for group, row in peer.rows.items()
            if row is not RowState.PENDING
        }


def test_the_illustration_of_the_document_goes_as_the_vector_gjlp_1_says() -> None:
    medium = Medium("A", "B", "C", "D")
    medium.away = {"B", "C", "D"}

    medium.connect("A")
    medium.say(medium.peers["A"].create("G1"))
    assert medium.rows("A") == {"G1": ["A"]}

    medium.connect("B")
    assert medium.told == [("A", ["G1"])]
    assert medium.offered == [("B", "G1")]

    medium.tell(medium.peers["B"].join("G1"))
    assert medium.rows("A") == medium.rows("B") == {"G1": ["A", "B"]}

    medium.connect("C")
    assert medium.told == [("A", ["G1"]), ("B", ["G1"])]
    assert medium.offered == [("C", "G1")], "two processes named it, and one offer was made"

    medium.peers["C"].decline("G1")
    medium.away |= {"A", "B"}  # so that G2 is not offered yet
    medium.say(medium.peers["C"].create("G2"))
    assert medium.rows("C") == {"G1": "N/A", "G2": ["C"]}

    medium.connect("D")
    assert medium.told == [("C", ["G2"])], "C does not name what it declined"
    assert medium.offered == [("D", "G2")]

    medium.tell(medium.peers["D"].join("G2"))
    assert medium.rows("C") == {"G1": "N/A", "G2": ["C", "D"]}
    assert medium.rows("D") == {"G2": ["C", "D"]}

    medium.connect("A")
    assert medium.told == [("A", ["G1"]), ("C", ["G2"]), ("D", ["G2"])]
    assert medium.offered == [("D", "G1"), ("A", "G2")], "C declined it and is not asked again"


def test_a_stale_view_does_not_put_out_who_left_and_came_back_as_the_vector_gjlp_2_says() -> None:
    medium = Medium("A", "B", "D", epoch=1)
    medium.say(medium.peers["A"].create("G"))
    for name in ("B", "D"):
        medium.connect(name)
        medium.tell(medium.peers[name].join("G"))
    medium.tell(medium.peers["B"].leave("G"))
    stale = medium.peers["D"].mine()
    medium.away = {"D"}
    medium.connect("B")
    medium.tell(medium.peers["B"].join("G"))
    medium.say(*stale)
    assert medium.peers["A"].known["G"].view == {"A": (1, False), "B": (2, False), "D": (1, False)}


def test_a_leave_that_overtakes_its_join_is_not_undone_by_it() -> None:
    peer = Directory("A")
    peer.create("G")
    for standing in ((0, OUT), (0, IN)):
        peer.receive([GroupInfo("G", None, {"B": standing})])
    assert members(peer.known["G"].view) == {"A": 0}


def test_who_left_tells_nobody_of_the_group_and_is_offered_it_again_only_when_it_advertises_itself() -> None:
    medium = Medium("A", "B")
    medium.say(medium.peers["A"].create("G"))
    medium.tell(medium.peers["B"].join("G"))
    medium.tell(medium.peers["A"].leave("G"))
    assert medium.peers["A"].mine() == []
    medium.connect("B")
    assert medium.offered == []
    medium.connect("A")
    assert medium.offered == [("A", "G")]


def test_what_was_declined_is_offered_once_more_after_the_own_next_advertisement() -> None:
    medium = Medium("A", "B")
    medium.say(medium.peers["A"].create("G"))
    medium.peers["B"].decline("G")
    medium.connect("A")
    assert medium.offered == []
    medium.connect("B")
    medium.connect("B")
    assert medium.offered == [], "it is already offered and not yet decided"
    assert medium.peers["B"].rows == {"G": RowState.PENDING}


def test_a_process_that_starts_again_joins_with_an_epoch_above_what_others_know_of_it() -> None:
    medium = Medium("A", "B")
    medium.say(medium.peers["A"].create("G"))
    medium.tell(medium.peers["B"].join("G"))
    medium.peers["B"] = Directory("B")
    medium.connect("B")
    joined = medium.peers["B"].join("G")
    assert joined.view["B"] == (1, IN)
    medium.tell(joined)
    assert members(medium.peers["A"].known["G"].view) == {"A": 0, "B": 1}


def test_who_is_put_out_by_others_tells_nobody_of_the_group_any_more() -> None:
    peer = Directory("A")
    peer.create("G")
    peer.receive([GroupInfo("G", None, {"A": (0, OUT)})])
    assert peer.rows == {"G": RowState.DECLINED}
    assert peer.mine() == []


def test_a_process_that_knows_to_have_been_in_a_group_is_a_member_without_an_offer_unless_it_was_put_out() -> None:
    peer = Directory("A")
    peer.remember(GroupInfo("G", None, {"A": (2, False)}))
    peer.remember(GroupInfo("H", None, {"A": (2, True)}))
    assert peer.rows == {"G": RowState.MEMBER, "H": RowState.DECLINED}
    assert [info.group for info in peer.mine()] == ["G"]
    assert peer.leave("G").view["A"] == (2, OUT)


def test_joining_declining_and_leaving_what_one_may_not_are_errors_that_say_so() -> None:
    peer = Directory("A")
    peer.create("G")
    for wrong in (lambda: peer.create("G"), lambda: peer.join("G"), lambda: peer.decline("G"), lambda: peer.leave("H")):
        with pytest.raises(ValueError, match="A "):
            wrong()


def test_groups_beyond_the_limit_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "GROUPS_MAX", 2)
    peer = Directory("A")
    offers = peer.receive([GroupInfo(name, None, {}) for name in ("G1", "G2", "G3")])
    assert [offer.group for offer in offers] == ["G1", "G2"]


@effort(60)
@given(st.randoms(use_true_random=False))
def test_once_all_have_told_all_members_agree_however_lossy_it_was_and_nobody_is_asked_twice(
    random: Random,
) -> None:
    medium = Medium("A", "B", "C", "D")
    for _ in range(30):
        name = random.choice("ABCD")
        peer = medium.peers[name]
        medium.away = {other for other in "ABCD" if random.random() < 0.4}
        pending = [group for group, row in peer.rows.items() if row is RowState.PENDING]
        ours = [group for group, row in peer.rows.items() if row is RowState.MEMBER]
        what = random.choice(["create", "connect", "join", "leave", "decline"])
        if what == "create" and f"G{name}" not in peer.rows:
            medium.say(peer.create(f"G{name}"))
        elif what == "connect":
            medium.connect(name)
        elif what == "join" and pending:
            medium.tell(peer.join(random.choice(pending)))
        elif what == "decline" and pending:
            peer.decline(random.choice(pending))
        elif what == "leave" and ours:
            medium.tell(peer.leave(random.choice(ours)))
    medium.away = set()
    for _ in range(2):
        for peer in medium.peers.values():
            medium.say(*peer.mine())
    for group in ("GA", "GB", "GC", "GD"):
        views = [peer.known[group].view for peer in medium.peers.values() if peer.rows.get(group) is RowState.MEMBER]
        assert all(view == merge(*views) for view in views)
        for peer in medium.peers.values():
            if peer.rows.get(group) is RowState.MEMBER and views:
                assert peer.known[group].view[peer.name][1] is not OUT
