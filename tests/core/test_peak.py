"""The predicted peak of KV against a simulation of it, token by token."""

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.peak import PeakCurve

parts = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 50)), max_size=8)


def simulated(requests: list[tuple[int, int]], base: int) -> int:
    """Everybody gains a token a step and leaves with all it has after its last one."""
    live, most = [list(request) for request in requests], base + sum(tokens for _, tokens in requests)
    while live:
        for request in live:
            request[0] -= 1
            request[1] += 1
        most = max(most, base + sum(tokens for _, tokens in live))
        live = [request for request in live if request[0] > 0]
    return most


@settings(max_examples=300, deadline=None)
@given(parts, st.integers(0, 100), st.integers(1, 30), st.integers(0, 50))
def test_it_is_what_a_simulation_finds(requests: list[tuple[int, int]], base: int, left: int, tokens: int) -> None:
    curve = PeakCurve(requests, base)
    assert curve.tokens == simulated(requests, base)
    assert curve.with_one(left, tokens) == simulated([*requests, (left, tokens)], base)


def test_some_by_hand() -> None:
    assert PeakCurve([], 0).with_one(5, 10) == 15
    assert PeakCurve([(10, 100)], 0).with_one(1, 50) == 152, "both gain one, then one leaves with 51"
    assert PeakCurve([(1, 50)], 7).with_one(10, 100) == 159


def test_how_long_memory_has_to_be_waited_for() -> None:
    """Requests of 100 tokens that end after 10, 20 and 30 steps: the peaks with one, two, three of them are 130, 240, 330."""
    curve = PeakCurve([(20, 100), (30, 100), (10, 100)], 0)
    assert [curve.steps_until(tokens) for tokens in (330, 329, 240, 239, 130, 129, 0)] == [0, 10, 10, 20, 20, 30, 30]
    assert PeakCurve([], 0).steps_until(5) == 0
