"""A lease: one process at a time, by nobody's clock but the watcher's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from precede.streaming.places import lease
from precede.streaming.places.lease import EXPIRES_S, Lease, LeaseRecord, only_one, take
from precede.streaming.places.place import LocalPlace, Place
from precede.udfs.errors import Refused, TakenOver

REFUSAL = "Another job uses it."


class Watcher:
    """A process that wants the lease, with a clock of its own that only its pauses move."""

    def __init__(self, folder: LocalPlace, now: float = 0.0) -> None:
        self.folder = folder
        self.now = now
        self.said: list[str] = []
        self.lost: list[Refused] = []
        self.while_it_waits: Iterator[object] = iter(())

    def pause(self, seconds: float) -> None:
        self.now += seconds
        next(self.while_it_waits, None)

    def take(self, refusal: str | None = REFUSAL) -> Lease:
        (taken,) = take(
            {self.folder: refusal},
            say=lambda sentence, **_: self.said.append(sentence),
            lost=self.lost.append,
            pause=self.pause,
            clock=lambda: self.now,
        )
        return taken


@pytest.fixture
def folder(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path / "lease")


def killed(taken: Lease) -> None:
    """What kill -9 does to a holder: it renews no more, and releases nothing."""
    taken._monitor.finish()


def test_a_free_lease_is_taken_at_once_and_without_a_word(folder: LocalPlace) -> None:
    watcher = Watcher(folder)
    watcher.take().release()
    assert (watcher.now, watcher.said) == (0.0, [])


def test_a_released_lease_is_taken_at_once(folder: LocalPlace) -> None:
    Watcher(folder).take().release()
    second = Watcher(folder)
    second.take().release()
    assert second.now == 0.0


def test_the_lease_of_a_killed_holder_is_taken_after_thirty_seconds_without_a_renewal(folder: LocalPlace) -> None:
    killed(Watcher(folder).take())
    second = Watcher(folder)
    second.take().release()
    assert EXPIRES_S <= second.now <= EXPIRES_S + 2 * lease.LOOK_S
    assert "waiting until it has not been renewed for 30 s" in second.said[0]
    assert len(second.said) == 1


def test_two_leases_of_a_killed_holder_expire_at_the_same_time(folder: LocalPlace) -> None:
    both: dict[Place, str | None] = {folder / "order": REFUSAL, folder / "history": REFUSAL}
    watcher = Watcher(folder)
    about = {"say": lambda *_, **__: None, "lost": watcher.lost.append, "pause": watcher.pause}
    for taken in take(both, **about):  # type: ignore[arg-type]
        killed(taken)
    for taken in take(both, clock=lambda: watcher.now, **about):  # type: ignore[arg-type]
        taken.release()
    assert watcher.now <= EXPIRES_S + 2 * lease.LOOK_S


def test_where_one_of_two_leases_is_refused_the_other_is_given_back(folder: LocalPlace) -> None:
    first, second = Watcher(folder / "history").take(), Watcher(folder)
    second.while_it_waits = iter(first.renew, None)
    both: dict[Place, str | None] = {folder / "order": REFUSAL, folder / "history": REFUSAL}
    with pytest.raises(Refused):
        take(both, say=lambda *_, **__: None, lost=second.lost.append, pause=second.pause, clock=lambda: second.now)
    third = Watcher(folder / "order")
    third.take().release()
    assert third.now == 0.0
    first.release()


@pytest.mark.parametrize("now", [-10_000.0, 0.0, 86_400.0], ids=["behind", "equal", "ahead"])
def test_clocks_that_differ_by_hours_change_nothing(folder: LocalPlace, now: float) -> None:
    killed(Watcher(folder, now=7_000.0).take())
    second = Watcher(folder, now=now)
    second.take().release()
    assert EXPIRES_S <= second.now - now <= EXPIRES_S + 2 * lease.LOOK_S


def test_who_finds_a_lease_that_is_renewed_is_refused_with_the_name_of_the_holder(folder: LocalPlace) -> None:
    first, second = Watcher(folder).take(), Watcher(folder)
    second.while_it_waits = iter(first.renew, None)
    with pytest.raises(Refused, match=r"Another job uses it; process \d+ on .* renews its lease\."):
        second.take()
    first.release()


def test_who_has_no_refusal_waits_until_the_holder_is_done(folder: LocalPlace) -> None:
    first, second = Watcher(folder).take(), Watcher(folder)

    def work() -> Iterator[object]:
        for _ in range(50):
            yield first.renew()
        first.release()
        yield None

    second.while_it_waits = work()
    second.take(refusal=None).release()
    assert second.now > EXPIRES_S


def test_of_many_that_take_an_expired_lease_at_once_one_gets_it(folder: LocalPlace) -> None:
    killed(Watcher(folder).take())
    taken: list[Lease] = []
    refused: list[Refused] = []
    ready = threading.Barrier(8)

    def race() -> None:
        watcher = Watcher(folder)
        watcher.while_it_waits = iter(lambda: ready.wait(10) if watcher.now >= EXPIRES_S else None, 0)
        try:
            taken.append(watcher.take())
        except (Refused, threading.BrokenBarrierError) as error:
            refused.append(error)  # type: ignore[arg-type]

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        ready.abort()
    assert len(taken) == 1
    assert len(refused) == 7
    taken[0].release()


def test_a_holder_that_slept_sees_that_it_has_lost_the_lease_and_harms_nobody(folder: LocalPlace) -> None:
    sleeper = Watcher(folder)
    asleep = sleeper.take()
    killed(asleep)
    second = Watcher(folder).take()
    asleep._write()  # it was just about to renew
    assert second.renew()
    assert not asleep.renew()
    assert isinstance(sleeper.lost[0], TakenOver)
    assert "has taken" in str(sleeper.lost[0])
    asleep.release()
    third = Watcher(folder)
    third.while_it_waits = iter(second.renew, None)
    with pytest.raises(Refused):
        third.take()
    second.release()


def test_a_lease_that_was_written_by_half_counts_as_one_that_is_not_renewed(folder: LocalPlace) -> None:
    (folder / "3").create(b'{"token": "ab')
    watcher = Watcher(folder)
    watcher.take().release()
    assert watcher.now >= EXPIRES_S
    assert watcher.said[0].startswith("A lease of another process is in")


def test_a_store_that_fails_for_a_while_does_not_cost_the_lease(
    folder: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    fails = threading.Event()
    failed = threading.Semaphore(0)
    replace = LocalPlace.replace

    def failing(place: LocalPlace, content: bytes, *, durable: bool = True) -> None:
        if fails.is_set():
            failed.release()
            raise OSError(5, "503 Slow Down")
        replace(place, content, durable=durable)

    monkeypatch.setattr(LocalPlace, "replace", failing)
    fails.set()
    watcher = Watcher(folder)
    taken = watcher.take()
    for _ in range(3):
        assert failed.acquire(timeout=10)
    fails.clear()
    second = Watcher(folder)
    second.while_it_waits = iter(lambda: threading.Event().wait(0.2), None)
    with pytest.raises(Refused):
        second.take()
    taken.release()
    assert watcher.lost == []


def test_who_is_told_to_stop_while_it_waits_takes_nothing(folder: LocalPlace) -> None:
    first = Watcher(folder).take()
    free = LocalPlace(folder.path / "free")
    wanted: dict[Place, str | None] = {free: REFUSAL, folder: REFUSAL}
    assert take(wanted, say=lambda *_, **__: None, lost=lambda _: None, pause=lambda _: True) == []
    Watcher(free).take().release()
    assert first.renew()
    first.release()


def test_on_this_machine_the_system_s_lock_needs_no_waiting(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path)
    with only_one(place, "order", refusal=REFUSAL), pytest.raises(Refused, match=REFUSAL):
        only_one(place, "order", refusal=REFUSAL).__enter__()
    with only_one(place, "order", refusal=REFUSAL):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".order.lock"]


def test_a_lease_names_its_holder(folder: LocalPlace) -> None:
    taken = Watcher(folder).take()
    held = lease._read((folder / "1").read())
    assert isinstance(held, LeaseRecord)
    assert held.who.startswith("process ")
    taken.release()
