"""A sender's saved state: one process at a time, and after a crash the old file or the new one is there."""

import multiprocessing
import time
from pathlib import Path

import pytest

from precede.ingest import sender_state
from precede.ingest.sender_state import KnownSender
from precede.udfs.errors import Refused


def take_seqs(path: Path, count: int) -> None:
    for _ in range(count):
        with sender_state.opened(path) as state:
            known = state.memory.find("log", "g", "ann") or state.memory.add(KnownSender("log", "g", "ann"))
            known.seq += 1
            time.sleep(0.001)  # long enough for another process to interfere, if it could
            state.save()


def test_what_is_saved_is_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "senders.json"
    take_seqs(path, 2)
    with sender_state.opened(path) as state:
        assert state.memory.senders == [KnownSender("log", "g", "ann", seq=2)]


def test_processes_that_work_with_one_file_take_each_seq_once(tmp_path: Path) -> None:
    path = tmp_path / "senders.json"
    fresh = multiprocessing.get_context("spawn")
    running = [fresh.Process(target=take_seqs, args=(path, 25)) for _ in range(3)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    with sender_state.opened(path) as state:
        assert state.memory.senders[0].seq == 75


def test_senders_of_other_groups_and_other_logs_are_others(tmp_path: Path) -> None:
    with sender_state.opened(tmp_path / "senders.json") as state:
        state.memory.add(KnownSender("log", "g", "ann", seq=5))
        for log, group, sender in (("other", "g", "ann"), ("log", "h", "ann"), ("log", "g", "bob")):
            assert state.memory.find(log, group, sender) is None


def test_what_is_not_saved_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "senders.json"
    take_seqs(path, 1)
    before = path.read_bytes()
    with sender_state.opened(path) as state:
        state.memory.senders[0].seq = 9
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["{", '{"version":1,"senders":[{"log":3}]}', '{"version":2}'])
def test_a_file_that_cannot_be_understood_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "senders.json"
    path.write_text(text)
    with pytest.raises(Refused, match="damaged|newer"), sender_state.opened(path):
        pass
    assert path.read_text() == text


def test_a_place_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used"), sender_state.opened(tmp_path / "file" / "senders.json"):
        pass
