"""The table of replicas: legal moves, the breaker, trial and poison, and its views."""

from itertools import product
from typing import get_args

import pytest

from backends.base import Identity, Kind
from gateway.admin_views import routing
from gateway.config import BackendSpec, Health
from gateway.fleet import ROUTES_CACHED, TRANSITIONS_KEPT, Fleet, Transition
from gateway.replica import MOVES, Replica, State

HEALTH = Health(failures=3, poison_ttl_s=60.0)
FOUND = Identity("vllm", "0.32", ("m",), "generate", 4096)
STATES: tuple[State, ...] = get_args(State)


def spec(name: str, *models: str, url: str = "http://h", max_in_flight: int = 4) -> BackendSpec:
    return BackendSpec(name, url, models=models, max_in_flight=max_in_flight)


def fleet(*names: str) -> Fleet:
    """Replicas that are ready for the model m."""
    made = Fleet(HEALTH)
    for name in names:
        made.probed(made.added(spec(name)), FOUND, 0.0)
    made.transitions()
    return made


def one(made: Fleet, name: str = "a") -> Replica:
    replica = made.get(name)
    assert replica is not None
    return replica


# -- moves


def test_every_state_has_its_moves_and_every_state_can_be_left_and_reached() -> None:
    assert set(MOVES) == set(STATES)
    assert all(MOVES.values())
    reached = set().union(*MOVES.values())
    assert reached == set(STATES)


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)))
def test_an_illegal_move_is_an_assertion(before: State, after: State) -> None:
    made = fleet("a")
    replica = one(made)
    replica.state = before
    version = made.version
    if before == after:
        made._move(replica, after, "again")
        assert (made.transitions(), made.version, replica.reason) == ((), version, "again")
    elif after in MOVES[before]:
        made._move(replica, after, "why")
        assert made.transitions() == (Transition("a", before, after, "why"),)
        assert (replica.state, replica.reason, made.version) == (after, "why", version + 1)
    else:
        with pytest.raises(AssertionError, match=f"a: {before} -> {after}"):
            made._move(replica, after, "why")
        assert (replica.state, made.transitions()) == (before, ())


def test_a_replica_starts_unknown_and_is_used_after_its_first_probe() -> None:
    made = Fleet(HEALTH)
    replica = made.added(spec("a"))
    assert (replica.state, replica.models, made.routable("m"), made.hopeful("m")) == ("starting", (), (), True)
    made.probed(replica, FOUND, 1.0)
    assert (replica.state, replica.models, made.routable("m"), made.hopeful("m")) == ("ready", ("m",), (replica,), False)
    assert repr(made) == "<Fleet a:ready:0>"
    assert repr(replica) == "<Replica a ready in_flight=0 failures=0>"


def test_one_failed_probe_is_enough_before_the_first_use() -> None:
    made = Fleet(HEALTH)
    replica = made.added(spec("a", "m"))
    made.probe_failed(replica, "refused", 1.0)
    assert (replica.state, replica.reason, made.hopeful("m")) == ("down", "refused", False)
    made.probe_failed(replica, "still", 2.0)
    assert (replica.state, replica.reason, replica.last_probe_s) == ("down", "still", 2.0)


# -- the breaker


def play(made: Fleet, story: str) -> None:
    """Events of replica a by letter: c t s = connect, timeout, status; 1-9 = reset with that body, r = without one;
    v w x y z = 500 to such a body; A = answered; p P = probe failed, went well; d u = dispatched, released."""
    replica = one(made)
    for letter in story:
        if letter in "cts":
            kinds = {"c": "connect", "t": "timeout", "s": "status"}
            made.failed(replica, kinds[letter], letter, None, 1.0)  # type: ignore[arg-type]
        elif letter == "r" or letter.isdigit():
            made.failed(replica, "reset", letter, None if letter == "r" else int(letter), 1.0)
        elif letter in "vwxyz":
            made.responded(replica, 500, {}, ord(letter), 1.0, 1.0)
        elif letter == "A":
            made.answered(replica, None, 1.0)
        elif letter == "p":
            made.probe_failed(replica, "probe", 1.0)
        elif letter == "P":
            made.probed(replica, FOUND, 1.0)
        elif letter == "d":
            made.dispatched(replica, 1.0, stream=False)
        else:
            made.released(replica, stream=False)


@pytest.mark.parametrize(
    ("story", "state", "failures"),
    [
        ("", "ready", 0),
        ("cc", "ready", 2),
        ("ccc", "down", 3),
        ("ttt", "down", 3),
        ("sss", "down", 3),
        ("rrr", "down", 3),
        ("ctr", "down", 3),
        ("ppp", "down", 3),
        ("pcp", "down", 3),
        ("ppPpp", "ready", 2),  # probes count in a row only
        ("pPpPpPpP", "ready", 0),
        ("cpPp", "ready", 2),
        ("ppAcc", "ready", 2),
        ("ppAccP", "ready", 2),
        ("ccAcc", "ready", 2),
        ("ssAssAss", "ready", 2),
        ("A" * 40, "ready", 0),
        ("1", "ready", 0),  # it may be the request
        ("1111", "ready", 0),  # the same request again is no news
        ("12", "ready", 1),
        ("123", "ready", 2),
        ("1234", "down", 3),
        ("1212", "ready", 1),
        ("c1", "ready", 2),  # it has failed already: the drop counts
        ("c11", "ready", 2),
        ("1c", "ready", 1),
        ("1A2", "ready", 0),
        ("12A3", "ready", 0),
        ("v", "ready", 0),  # a 5xx is judged as a reset is
        ("vvvvvvvv", "ready", 0),
        ("vwvwvw", "ready", 1),
        ("vwxy", "down", 3),
        ("vwAxyA", "ready", 0),
        ("1w2", "ready", 2),
        ("cv", "ready", 2),
        ("cccPv", "down", 3),
        ("cccPvPv", "ready", 2),  # the same body that ended the trial ends no second one
        ("cccPvPvw", "down", 3),
        ("ccc" + "c" * 9, "down", 3),
        ("cccP", "ready", 2),
        ("cccPA", "ready", 0),
        ("cccPc", "down", 3),
        ("cccPp", "down", 3),
        ("cccpppP", "ready", 2),
        ("tttP", "down", 3),  # time-outs opened it: health alone proves nothing
        ("tttPPP", "down", 3),
        ("ttcP", "ready", 2),
        ("cctP", "down", 3),
    ],
)
def test_what_opens_and_closes_the_breaker(story: str, state: State, failures: int) -> None:
    made = fleet("a", "b")
    play(made, story)
    assert (one(made).state, one(made).failures) == (state, failures)
    assert one(made, "b").failures == 0
    assert made.routable("m") == tuple(r for r in made if r.state == "ready")


def test_the_breaker_says_why() -> None:
    made = fleet("a")
    for _ in range(3):
        made.failed(one(made), "connect", "connection refused", None, 1.0)
    assert made.transitions() == (Transition("a", "ready", "down", "breaker: connection refused"),)
    assert (one(made).reason, one(made).failed_total) == ("breaker: connection refused", 3)


def test_a_replica_on_trial_takes_one_request() -> None:
    made = fleet("a")
    play(made, "cccP")
    replica = one(made)
    assert (replica.trial, replica.reason, replica.open(2.0)) == (True, "on trial", True)
    play(made, "d")
    assert not replica.open(2.0)
    play(made, "A")
    assert (replica.trial, replica.reason, replica.open(2.0)) == (False, "", True)
    play(made, "ucccPdc")
    assert (replica.state, replica.trial) == ("down", False)


def test_requests_from_before_a_trial_do_not_hold_it_up() -> None:
    """Streams that went on through the breakdown may run for an hour."""
    made = fleet("a")
    play(made, "dd")
    replica = one(made)
    for at_s, what in ((1.0, "probe_failed"), (2.0, "probe_failed"), (3.0, "probe_failed"), (4.0, "probed")):
        made.probed(replica, FOUND, at_s) if what == "probed" else made.probe_failed(replica, "timed out", at_s)
    assert (replica.state, replica.trial, replica.in_flight) == ("ready", True, 2)
    assert (replica.open(4.0), replica.usable(4.0), routing(replica, 4.0)[0]) == (True, True, True)
    made.dispatched(replica, 5.0, stream=False)
    made.released(replica, stream=False, sent_s=0.0)
    assert (replica.in_flight, replica.open(5.0), replica.usable(5.0), routing(replica, 5.0)[0]) == (2, False, False, False)
    made.released(replica, stream=False, sent_s=5.0)
    assert (replica.trial, replica.open(6.0)) == (True, True), "its client left: that tells nothing"
    made.dispatched(replica, 7.0, stream=False)
    made.answered(replica, None, 8.0)
    assert (replica.trial, replica.open(8.0)) == (False, True)


def test_full_and_overloaded_replicas_are_not_open() -> None:
    made = fleet("a")
    replica = one(made)
    play(made, "dddd")
    assert (replica.in_flight, replica.open(1.0)) == (4, False)
    play(made, "u")
    assert replica.open(1.0)
    made.responded(replica, 429, {b"retry-after": b"7"}, None, 1.0, 0.5)
    made.responded(replica, 503, {b"retry-after": b"4"}, None, 1.0, 0.5)
    assert (replica.open(7.9), replica.open(8.0), replica.state, replica.failures) == (False, True, "ready", 0)
    assert made.routable("m") == (replica,), "overload is no failure"


def test_a_wedged_replica_comes_back_by_a_token_only() -> None:
    made = fleet("a")
    replica = one(made)
    made.wedged(replica)
    assert (replica.state, replica.reason) == ("down", "in flight but no token")
    made.probed(replica, FOUND, 1.0)
    assert replica.state == "down"
    made.revived(replica, 2.0)
    assert (replica.state, replica.wedged, replica.failures, replica.last_byte_s) == ("ready", False, 0, 2.0)
    made.revived(replica, 3.0)
    made.wedged(replica)
    made.wedged(replica)
    assert replica.state == "down"


def test_what_was_lost_in_a_breakdown_that_is_over_does_not_count() -> None:
    made = fleet("a")
    replica = one(made)
    for _ in range(3):
        made.failed(replica, "timeout", "no first byte in time", None, 5.0, sent_s=1.0)
    assert (replica.state, replica.wedged) == ("down", True)
    made.revived(replica, 6.0)
    for _ in range(5):  # sent into the same breakdown, timed out after it
        made.failed(replica, "timeout", "no first byte in time", None, 7.0, sent_s=4.0)
    assert (replica.state, replica.failures, replica.failed_total) == ("ready", 0, 8)
    for _ in range(3):
        made.failed(replica, "reset", "closed", None, 8.0, sent_s=7.0)
    assert replica.state == "down"
    made.probed(replica, FOUND, 9.0)
    made.failed(replica, "connect", "took too long", None, 9.5, sent_s=8.5)
    assert (replica.state, replica.trial) == ("ready", True), "a trial is not over by what was sent before it"
    made.failed(replica, "connect", "refused", None, 9.6, sent_s=9.5)
    assert replica.state == "down"


def test_draining_proves_nothing_for_a_wedged_replica() -> None:
    made = fleet("a")
    replica = one(made)
    made.wedged(replica)
    made.drain(replica, 9.0)
    made.undrained(replica)
    made.probed(replica, FOUND, 1.0)
    assert (replica.state, made.routable("m")) == ("starting", ())
    made.revived(replica, 2.0)
    assert (replica.state, made.routable("m")) == ("ready", (replica,))


def test_draining_and_back() -> None:
    made = fleet("a", "b")
    replica = one(made)
    play(made, "d")
    made.drain(replica, 9.0)
    made.drain(replica, 10.0)
    assert (replica.state, replica.drain_until_s, made.routable("m")) == ("draining", 10.0, (one(made, "b"),))
    play(made, "cccpP")
    assert replica.state == "draining"
    play(made, "u")
    made.undrained(replica)
    assert (replica.state, replica.drain_until_s) == ("starting", None)
    made.probed(replica, FOUND, 1.0)
    assert made.routable("m") == (replica, one(made, "b"))
    assert made.models() == ("m",)


# -- views


@pytest.mark.parametrize("asked", get_args(Kind))
def test_kinds(asked: Kind) -> None:
    made = Fleet(HEALTH)
    for kind in get_args(Kind):
        made.probed(made.added(spec(kind)), Identity("vllm", models=("m",), kind=kind), 0.0)
    names = {r.name for r in made.routable("m", asked)}
    assert names == (set(get_args(Kind)) if asked == "unknown" else {"unknown", asked})
    assert made.routable("other", asked) == ()


def test_declared_models_count_until_the_server_says() -> None:
    made = Fleet(HEALTH)
    replica = made.added(spec("a", "x", "y"))
    assert (made.models(), made.hopeful("x"), made.hopeful("m")) == (("x", "y"), True, False)
    made.probed(replica, FOUND, 1.0)
    assert (made.models(), made.routable("x"), made.routable("m")) == (("m",), (), (replica,))
    made.drain(replica, 9.0)
    assert made.models() == ()


def test_the_route_cache_is_bounded_and_never_stale() -> None:
    made = fleet("a")
    for number in range(3 * ROUTES_CACHED):
        assert made.routable(f"unknown-{number}") == ()
    assert len(made._routes) <= ROUTES_CACHED
    first = made.routable("m")
    assert made.routable("m") is first
    made.probed(made.added(spec("b")), FOUND, 1.0)
    assert [r.name for r in made.routable("m")] == ["a", "b"]
    made.probed(one(made, "b"), Identity("vllm", models=("n",)), 2.0)
    assert [[r.name for r in made.routable(model)] for model in "mn"] == [["a"], ["b"]]
    version = made.version
    made.probed(one(made, "b"), Identity("vllm", models=("n",)), 3.0)
    assert made.version == version
    made.removed("a")
    assert made.routable("m") == ()


def test_transitions_are_given_once_and_bounded() -> None:
    made = fleet("a")
    for _ in range(TRANSITIONS_KEPT):
        play(made, "cccP")
    assert len(made.transitions()) == TRANSITIONS_KEPT
    assert made.transitions() == ()


def test_a_new_address_starts_over_and_other_settings_do_not() -> None:
    made = fleet("a")
    replica = one(made)
    play(made, "dd")
    same = made.respecified("a", spec("a", max_in_flight=2))
    assert (same is replica, same.in_flight, same.open(1.0), same.state) == (True, 2, False, "ready")
    moved = made.respecified("a", spec("a", url="http://other"))
    assert (moved is replica, moved.in_flight, moved.state, made.routable("m")) == (False, 0, "starting", ())
    made.released(replica, stream=False)
    assert (replica.in_flight, moved.in_flight) == (1, 0), "what went to the old address ends there"
    with pytest.raises(AssertionError):
        made.added(spec("a"))


def test_dispatches_count_for_a_minute() -> None:
    made = fleet("a")
    replica = one(made)
    for now_s in (100.0, 110.0, 159.9):
        made.dispatched(replica, now_s, stream=True)
    assert [replica.minute.count(now_s) for now_s in (159.9, 160.0)] == [3, 2]
    made.dispatched(replica, 160.0, stream=False)
    assert (replica.minute.count(160.0), replica.dispatched_total, replica.in_flight, replica.streams) == (3, 4, 4, 3)


def test_what_was_not_dispatched_cannot_be_released() -> None:
    made = fleet("a")
    with pytest.raises(AssertionError):
        made.released(one(made), stream=False)
