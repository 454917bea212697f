"""The poison rule in the table of replicas: what one body does is held against it, or against who fails at it."""

import pytest

from backends.base import Identity
from tests.core.test_fleet import FOUND, fleet, one, play


def test_a_body_that_works_elsewhere_is_held_against_who_dropped_it() -> None:
    made = fleet("a", "b", "c")
    a, b, c = (one(made, name) for name in "abc")
    made.failed(a, "reset", "closed", 7, 1.0)
    made.failed(b, "reset", "closed", 7, 1.1)
    assert (made.has_drops, a.failures, b.failures) == (True, 0, 0)
    made.answered(b, 7, 2.0)
    assert (a.failures, b.failures, made.has_drops) == (1, 0, False)
    assert a.reason == "failed at a request that works elsewhere"
    made.answered(c, 7, 2.0)
    assert a.failures == 1, "told once"
    made.failed(a, "reset", "closed", 8, 3.0)
    made.failed(a, "reset", "closed", 9, 3.0)
    assert a.state == "down"


def test_a_body_that_every_backend_drops_is_held_against_nobody() -> None:
    made = fleet("a", "b", "c")
    for number, replica in enumerate(made):
        made.failed(replica, "reset", "closed", 7, 10.0 * number)
    assert [(r.state, r.failures) for r in made] == [("ready", 0)] * 3
    assert made.droppers(7, 20.0) == {"a", "b", "c"}
    assert made.droppers(8, 20.0) == frozenset()
    assert made.droppers(7, 61.0) == {"b", "c"}
    made.forget(81.0)
    assert (made.has_drops, made.droppers(7, 81.0)) == (False, frozenset())


def test_an_answer_of_5xx_to_what_works_elsewhere_counts() -> None:
    made = fleet("a", "b")
    a, b = one(made, "a"), one(made, "b")
    for times in (1, 2, 3):
        made.responded(a, 500, {}, 7, 1.0, 0.5)
        assert (made.refusers(7, 1.0), made.droppers(7, 1.0)) == ({"a"}, frozenset())
        made.answered(b, 7, 1.5)
        assert a.failures == times
    assert (a.state, b.state, a.reason) == ("down", "ready", "breaker: failed at a request that works elsewhere")


@pytest.mark.parametrize("status", [501, 505])
def test_what_a_server_cannot_do_is_no_failure_of_it(status: int) -> None:
    made = fleet("a")
    for number in range(9):
        made.responded(one(made), status, {}, number, 1.0, 0.5)
    assert (one(made).state, one(made).failures, one(made).failed_total) == ("ready", 0, 0)


def test_a_backend_that_fails_at_one_body_only_is_asked_for_a_token() -> None:
    made = fleet("a")
    replica = one(made)
    play(made, "vv")
    assert not made.doubted(replica)
    play(made, "v")
    assert made.doubted(replica)
    made.proven(replica)
    assert (replica.state, made.doubted(replica), replica.failures) == ("ready", False, 0)
    play(made, "vvvA")
    assert not made.doubted(replica), "it answered somebody meanwhile"
    play(made, "111")
    assert made.doubted(replica)
    made.unproven(replica)
    assert (replica.state, replica.reason, replica.wedged) == ("down", "fails at requests, and gives no token", True)
    made.probed(replica, FOUND, 2.0)
    assert replica.state == "down", "health alone proves nothing"
    made.unproven(replica)
    made.proven(replica)
    assert replica.state == "down"
    made.revived(replica, 3.0)
    assert (replica.state, made.doubted(replica)) == ("ready", False)


def test_several_bodies_with_5xx_open_the_breaker_of_who_has_a_peer() -> None:
    """Who is the only one ready for its models is asked for a token first."""
    made = fleet("a", "b")
    replica = one(made)
    play(made, "vwxy")
    assert (replica.state, replica.failures) == ("down", 3)
    made.revived(replica, 1.0)
    made.probed(one(made, "b"), Identity("vllm", models=("other",)), 2.0)
    play(made, "vwxy")
    assert (replica.state, made.doubted(replica)) == ("ready", True)
    made.unproven(replica)
    assert (replica.state, replica.wedged) == ("down", True)


def test_blame_skips_who_left_or_is_not_in_use() -> None:
    made = fleet("a", "b", "c")
    for name in "ab":
        made.failed(one(made, name), "reset", "closed", 7, 1.0)
    made.drain(one(made, "a"), 9.0)
    made.removed("b")
    made.answered(one(made, "c"), 7, 2.0)
    assert (one(made, "a").failures, one(made, "a").state, len(made)) == (0, "draining", 2)
