"""Who may pass whom in the line, by how sizes compare with those that came."""

from random import Random

import pytest

from gateway.config import ModelSpec, OrderName
from gateway.desk import Desk, Job
from gateway.handicap import KNOWN, WINDOW, Sizes
from predictor.request import LengthEstimate


def seen(*sizes: float) -> Sizes:
    made = Sizes()
    for size in sizes:
        made.saw(size)
    return made


@pytest.mark.parametrize(
    ("sizes", "size", "share"),
    [
        ((), 7.0, 1.0),  # nobody to compare with: in order of arrival
        ((10.0,), 5.0, 0.5),
        ((10.0, 20.0, 30.0), 10.0, 0.5),
        ((10.0, 20.0, 30.0), 20.0, 1.0),
        ((10.0, 20.0, 30.0), 9999.0, 1.0),  # too few to know the longest
        ((0.0, 0.0, 0.0), 3.0, 1.0),
        ((100.0,) * KNOWN, 100.0, 1.0),  # all alike: nobody is the longest
        ((100.0,) * KNOWN, 101.0, 1.5),
    ],
)
def test_the_share_of_the_overtaking(sizes: tuple[float, ...], size: float, share: float) -> None:
    assert seen(*sizes).handicap_s(size, 20.0) == pytest.approx(20.0 * share)


def test_one_in_two_hundred_stands_back() -> None:
    rng = Random(3)
    sizes = [rng.expovariate(0.01) for _ in range(WINDOW)]
    known = seen(*sizes)
    shares = [known.handicap_s(size, 1.0) for size in sizes]
    assert sum(share > 1.0 for share in shares) == int(WINDOW * 0.005)
    assert sum(share < 1.0 for share in shares) == WINDOW // 2
    assert max(shares) == 1.5


def test_only_the_last_arrivals_count() -> None:
    known = seen(*[1000.0] * WINDOW, *[10.0] * WINDOW)
    assert known.handicap_s(5.0, 20.0) == pytest.approx(10.0)
    assert known.handicap_s(11.0, 20.0) == pytest.approx(30.0)


def line(overtaking_s: float, order: OrderName = "sjf") -> list[str]:
    """Who waits at a desk whose one replica takes nobody, in order: one that comes late among them."""
    desk = Desk(ModelSpec("m", "plan", order=order, overtaking_s=overtaking_s), Random(1))
    for name, output, at_s in (
        ("old", 1000, 0.0),
        ("short", 100, 1.0),
        ("second", 1000, 2.0),
        ("long", 2000, 3.0),
        ("late", 50, 30.0),
    ):
        desk.arrived(Job(name, "m", 10, LengthEstimate(output, output, output, "test"), at_s), at_s)
    return [ticket.job.id for ticket in desk.line]


def test_a_desk_lets_the_short_pass_but_not_for_longer_than_that() -> None:
    assert line(20.0) == ["short", "old", "second", "long", "late"]
    assert line(20.0, "fcfs") == ["old", "short", "second", "long", "late"]


def test_a_length_that_is_told_later_changes_the_place() -> None:
    desk = Desk(ModelSpec("m", "plan", order="sjf", overtaking_s=20.0), Random(1))
    for name, output in (("a", 100), ("b", 100), ("c", 100)):
        desk.arrived(Job(name, "m", 10, LengthEstimate(output, output, output, "test"), 0.0), 0.0)
    desk.revise("c", LengthEstimate(10, 10, 10, "test"), 1.0)
    assert [ticket.job.id for ticket in desk.line] == ["c", "a", "b"]
