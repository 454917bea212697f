"""Reservations: idempotent, five seconds at most, over when seen or when they ought to have been."""

import pytest

from predictor.request import LengthEstimate
from predictor.reservations import LIFE_S, RESERVATIONS_MAX, SETTLE_S, Reservations
from predictor.wire import Ask


def ask(name: str) -> Ask:
    return Ask(name, "m", 10, LengthEstimate(1, 2, 3, "t"))


def ids(reservations: Reservations) -> list[str]:
    return [one.id for one in reservations.pending()]


def nothing(_: str) -> bool:
    return False


def test_same_id_again_changes_nothing() -> None:
    made = Reservations()
    assert made.make(ask("a"), 10.0) == 10.0 + LIFE_S
    version = made.version
    assert made.make(ask("a"), 12.0) == 10.0 + LIFE_S
    assert (ids(made), made.version) == (["a"], version)


@pytest.mark.parametrize(
    ("name", "taken_s", "left"),
    [
        ("seen at once", 10.001, ["b"]),
        ("neither is there yet", 10.0 + SETTLE_S - 0.01, ["b"]),
        ("b should be there and is not", 10.0 + SETTLE_S, []),
    ],
)
def test_state_that_shows_a_request_ends_its_reservation(name: str, taken_s: float, left: list[str]) -> None:
    made = Reservations()
    made.make(ask("a"), 10.0)
    made.make(ask("b"), 10.0)
    made.seen({"a"}.__contains__, taken_s)
    assert ids(made) == left


def test_state_taken_before_it_was_made_says_nothing() -> None:
    made = Reservations()
    made.make(ask("a"), 10.0)
    made.seen(nothing, 9.0)
    assert ids(made) == ["a"]


def test_life_ends_by_itself_and_the_id_may_come_again() -> None:
    made = Reservations()
    made.make(ask("a"), 10.0)
    made.make(ask("b"), 11.0)
    made.expire(10.0 + LIFE_S)
    assert ids(made) == ["b"]
    assert made.make(ask("a"), 16.0) == 16.0 + LIFE_S
    assert ids(made) == ["a"]  # b's five seconds were over, too


def test_version_changes_with_the_list_only() -> None:
    made = Reservations()
    versions = [made.version]
    for act in (
        lambda: made.make(ask("a"), 10.0),
        lambda: made.expire(11.0),
        lambda: made.seen(nothing, 10.5),
        lambda: made.seen({"a"}.__contains__, 10.6),
        lambda: made.expire(99.0),
    ):
        act()
        versions.append(made.version)
    assert versions == [0, 1, 1, 1, 2, 2]


def test_list_is_bounded_and_the_oldest_goes() -> None:
    made = Reservations()
    for number in range(RESERVATIONS_MAX + 1):
        made.make(ask(str(number)), 10.0)
    assert len(made) == RESERVATIONS_MAX
    assert ids(made)[0] == "1"
