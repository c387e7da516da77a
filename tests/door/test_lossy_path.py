"""The lossy path between a member and the topic, which its seed determines."""

import pytest

from precede.demo.lossy_path import Courier, LossyPath


def fates(path: LossyPath, count: int = 1000) -> list[tuple[float, ...]]:
    return [path.fate().delays_s for _ in range(count)]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    plan = fates(LossyPath(seed=1, repeat=0.2, loss=0.2))
    assert plan == fates(LossyPath(seed=1, repeat=0.2, loss=0.2))
    assert plan != fates(LossyPath(seed=2, repeat=0.2, loss=0.2))


def test_another_share_of_repeats_leaves_the_delays_as_they_were() -> None:
    without = fates(LossyPath(seed=1))
    often = fates(LossyPath(seed=1, repeat=0.5))
    assert [delays[0] for delays in often] == [delays[0] for delays in without]


def test_losses_repeats_and_delays_are_as_frequent_and_long_as_asked() -> None:
    plan = fates(LossyPath(seed=3, delay_s=(1.0, 2.0), repeat=0.25, loss=0.1), 10_000)
    assert 0.08 < sum(len(delays) == 0 for delays in plan) / len(plan) < 0.12
    assert 0.2 < sum(len(delays) == 2 for delays in plan) / len(plan) < 0.25
    assert all(1.0 <= delays[0] <= 2.0 for delays in plan if delays)
    assert all(delays[1] >= delays[0] for delays in plan if len(delays) == 2)


def test_a_courier_hands_on_each_item_when_it_is_due_and_in_that_order() -> None:
    out: list[int] = []
    courier = Courier(out.append, LossyPath(seed=4, delay_s=(0.0, 10.0)))
    due = {number: courier.take(number, now_s=0.0).delays_s[0] for number in range(100)}
    assert courier.pump(now_s=5.0) == len(out)
    assert out == sorted((number for number, at in due.items() if at <= 5.0), key=due.__getitem__)
    courier.pump(now_s=10.0)
    assert out == sorted(due, key=due.__getitem__)
    assert courier.under_way == 0
    assert out != sorted(out), "a plan that reorders nothing would test nothing"


def test_what_is_lost_is_counted_and_never_comes() -> None:
    out: list[int] = []
    courier = Courier(out.append, LossyPath(seed=5, loss=1.0))
    assert courier.take(1, now_s=0.0).lost
    assert (courier.pump(now_s=99.0), courier.lost, out) == (0, 1, [])


def test_what_is_repeated_comes_twice() -> None:
    out: list[int] = []
    courier = Courier(out.append, LossyPath(seed=6, repeat=1.0))
    courier.take(1, now_s=0.0)
    courier.pump(now_s=99.0)
    assert (out, courier.repeated) == ([1, 1], 1)


@pytest.mark.parametrize("plan", [{"loss": 1.1}, {"repeat": -0.1}, {"delay_s": (2.0, 1.0)}, {"delay_s": (-1.0, 1.0)}])
def test_a_plan_that_cannot_be_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be|is a share"):
        LossyPath(seed=1, **plan)  # type: ignore[arg-type]  # wrong on purpose
