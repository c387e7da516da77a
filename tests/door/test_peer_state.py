"""What a peer keeps on disk: marked as taken, complete only at the end, cut by crashes, locked, and never guessed."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from precede.ingest.segment.peer_state import PeerState, opened_state, peer_file
from precede.udfs.errors import Refused

SEGMENT = "udp://239.255.70.80:1"
DUMPED: dict[str, Any] = {"v": 1, "name": "ann", "groups": {}}


def first(path: Path) -> None:
    """One process that ended well."""
    with opened_state(path, SEGMENT, "ann") as state:
        assert state.dumped is None
        state.begin_next()
        state.save(DUMPED, is_complete=True)


def crash(path: Path, *seqs: int) -> None:
    """One process that was killed after it had said something."""
    state = PeerState(path, SEGMENT, "ann")
    state.begin_next()
    state.save(DUMPED)
    for seq in seqs:
        state.add(("G", 5, seq, b"record"))
    state.flush()


def test_a_complete_state_is_complete_for_the_next_start_only(tmp_path: Path) -> None:
    path = tmp_path / "ann"
    first(path)
    with opened_state(path, SEGMENT, "ann") as state:
        assert (state.dumped, state.is_clean, state.said) == (DUMPED, True, [])
    with opened_state(path, SEGMENT, "ann") as state:
        assert (state.dumped, state.is_clean) == (DUMPED, False), "the one before was not told to save"


def test_what_was_said_after_the_state_was_written_comes_back_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "ann"
    crash(path, 1, 2, 3)
    with opened_state(path, SEGMENT, "ann") as state:
        assert not state.is_clean
        assert state.said == [("G", 5, seq, b"record") for seq in (1, 2, 3)]
        state.begin_next()
        state.add(("G", 6, 1, b"more"))
        state.flush()
        # Killed before it could save: both files count.
    with opened_state(path, SEGMENT, "ann") as state:
        assert [said[1:3] for said in state.said] == [(5, 1), (5, 2), (5, 3), (6, 1)]
        state.begin_next()
        state.save(DUMPED)
    with opened_state(path, SEGMENT, "ann") as state:
        assert state.said == []
    assert len(list(tmp_path.glob("ann.said-*"))) == 1


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_that_a_crash_has_cut_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ann"
    crash(path, 1, 2)
    said = next(tmp_path.glob("ann.said-*"))
    said.write_bytes(said.read_bytes()[:-cut])
    with opened_state(path, SEGMENT, "ann") as state:
        assert [one[2] for one in state.said] == [1]


def test_two_processes_do_not_share_a_state(tmp_path: Path) -> None:
    path = tmp_path / "ann"
    with (
        opened_state(path, SEGMENT, "ann"),
        pytest.raises(Refused, match="is in use: a peer can be open in only one place"),
        opened_state(path, SEGMENT, "ann"),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b"{}", b"\xc1", b"\x80", b"x" * 100])
def test_a_damaged_state_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ann"
    path.write_bytes(content)
    with (
        pytest.raises(Refused, match="is damaged .*: move it away, and ann goes on with a new epoch"),
        opened_state(path, SEGMENT, "ann"),
    ):
        pass


def test_the_state_of_another_peer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ann"
    first(path)
    for segment, name in ((SEGMENT, "bob"), ("udp://239.255.70.81:1", "ann")):
        with pytest.raises(Refused, match="is of ann on .*: name another one"), opened_state(path, segment, name):
            pass


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(Refused, match="The state file .* cannot be used: File exists"),
        opened_state(tmp_path / "file" / "ann", SEGMENT, "ann"),
    ):
        pass


@pytest.fixture(params=["a file system that is full", "a limit on the size of files"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder with little room, and what makes more."""
    if request.param == "a limit on the size of files":
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        try:
            yield tmp_path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100k", "none", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    filled = folder / "filled"
    filled.write_bytes(bytes(100_000))

    def grow() -> None:
        subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)

    try:
        yield folder, grow
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_what_was_said_while_the_disk_became_full_is_whole_once_there_is_room(
    small_disk: tuple[Path, Callable[[], None]],
) -> None:
    folder, make_room = small_disk
    with opened_state(folder / "ann", SEGMENT, "ann") as state:
        state.begin_next()
        state.save(DUMPED)
        for seq in range(1, 9):
            state.add(("G", 5, seq, b"%d" % seq * 200_000))
            if seq % 2 == 0:
                state.flush()
        assert state.trouble is not None
        assert "What is said cannot be written to" in state.trouble
        with pytest.raises(Refused, match="Make room on that disk, and send it again"):
            state.make_room(100)
        make_room()
        state.make_room(100)
        # Killed here.
    with opened_state(folder / "ann", SEGMENT, "ann") as state:
        assert state.said == [("G", 5, seq, b"%d" % seq * 200_000) for seq in range(1, 9)]


def test_a_message_is_refused_before_it_is_said_where_the_disk_has_no_room(
    small_disk: tuple[Path, Callable[[], None]],
) -> None:
    folder, make_room = small_disk
    said = []
    with opened_state(folder / "ann", SEGMENT, "ann") as state:
        state.begin_next()
        state.save(DUMPED)
        for seq in range(1, 21):
            record = b"%d" % (seq % 10) * 100_000
            try:
                state.make_room(len(record))
            except Refused as refusal:
                refused = str(refusal)
                break
            state.add(("G", 5, seq, record))
            said.append(("G", 5, seq, record))
            if seq % 3 == 0:
                state.flush()
        assert 5 <= len(said) < 12
        assert "What is said cannot be written to" in refused
        state.flush()
        assert state.trouble is None, "its room was set aside"
        make_room()
        state.make_room(100_000)
        said.append(("G", 5, 99, b"later"))
        state.add(said[-1])
        state.flush()
        # Killed here.
    with opened_state(folder / "ann", SEGMENT, "ann") as state:
        assert state.said == said


def test_the_largest_epoch_is_kept_though_its_group_was_left(tmp_path: Path) -> None:
    path = tmp_path / "ann"
    with opened_state(path, SEGMENT, "ann") as state:
        state.epoch = 7
        state.begin_next()
        state.save(DUMPED, is_complete=True)
    for _ in range(2):
        with opened_state(path, SEGMENT, "ann") as state:
            assert state.epoch == 7


def test_each_peer_and_group_has_a_file_of_its_own_beside_that_of_the_senders(tmp_path: Path) -> None:
    senders = str(tmp_path / "senders.json")
    files = {
        peer_file(segment, name, group, senders)
        for segment in (SEGMENT, "udp://239.1.1.1:1")
        for name in ("ann", "bob")
        for group in (None, "G", "H")
    }
    assert len(files) == 12
    assert {file.parent for file in files} == {tmp_path / "peers"}
