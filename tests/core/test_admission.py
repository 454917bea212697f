"""The waiting line keeps everybody once and in order; second attempts stay a share of the traffic; waits are announced."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission import DrainRate, RetryBudget, WaitingLine
from gateway.config import Queue, Retry

MODELS = ("a", "b", "c")
operation = st.one_of(
    st.tuples(st.just("push"), st.sampled_from(MODELS), st.just(0)),
    st.tuples(st.just("release"), st.sampled_from(MODELS), st.integers(0, 4)),
    st.tuples(st.just("remove"), st.sampled_from(MODELS), st.integers(0, 30)),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(operation, max_size=40), st.integers(0, 6))
def test_nobody_is_lost_doubled_or_overtaken(operations: list[tuple[str, str, int]], size: int) -> None:
    line: WaitingLine[int] = WaitingLine(Queue(size=size))
    model: dict[str, list[int]] = {name: [] for name in MODELS}
    placed: list[int] = []
    pushed = 0
    for what, name, number in operations:
        if what == "push":
            assert line.full == (sum(map(len, model.values())) >= size)
            if not line.full:
                line.push(name, pushed)
                model[name].append(pushed)
                pushed += 1
        elif what == "release":
            room = iter([True] * number + [False] * 99)
            offered: list[int] = []
            line.release(name, lambda item, offered=offered, room=room: offered.append(item) or next(room))  # type: ignore[misc, func-returns-value]
            assert offered == model[name][: number + 1]
            placed += model[name][:number]
            del model[name][:number]
        else:
            assert line.remove(name, number) == (number in model[name])
            if number in model[name]:
                model[name].remove(number)
        assert len(line) == sum(map(len, model.values())) <= size
        assert {name: line.waiting(name) for name in MODELS} == {name: len(waiting) for name, waiting in model.items()}
        assert set(line.models()) == {name for name, waiting in model.items() if waiting}
    assert len(set(placed)) == len(placed)


def test_a_full_line_takes_nobody() -> None:
    line: WaitingLine[str] = WaitingLine(Queue(size=1))
    line.push("a", "x")
    with pytest.raises(AssertionError):
        line.push("b", "y")
    assert WaitingLine(Queue(size=0)).full


def test_placing_may_take_itself_or_others_out() -> None:
    """A request that is placed leaves the line by itself, and a client that is told may leave, too."""
    line: WaitingLine[str] = WaitingLine(Queue(size=9))
    for item in "wxyz":
        line.push("a", item)
    seen = []

    def place(item: str) -> bool:
        seen.append(item)
        if item == "w":
            line.remove("a", "w")
        if item == "x":
            line.remove("a", "y")
        return True

    line.release("a", place)
    assert (seen, len(line), line.models()) == (["w", "x", "z"], 0, ())
    line.release("a", place)
    line.release("unknown", place)
    assert len(seen) == 3


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.booleans(), max_size=200),
    st.sampled_from((0.0, 0.1, 0.25, 1.0)),
    st.integers(0, 5),
)
def test_second_attempts_never_exceed_their_share(asks: list[bool], ratio: float, burst: int) -> None:
    budget = RetryBudget(Retry(ratio=ratio, burst=burst))
    requests = spent = 0
    for retry in asks:
        if retry:
            granted = budget.spend()
            assert granted or spent > 0 or burst == 0
            spent += granted
        else:
            budget.request()
            requests += 1
        assert spent <= Fraction(ratio) * requests + burst + Fraction(1, 10**9)


def test_the_retry_budget_by_example() -> None:
    budget = RetryBudget(Retry(ratio=0.5, burst=2))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.request()
    assert not budget.spend()
    budget.request()
    assert [budget.spend(), budget.spend()] == [True, False]
    for _ in range(100):
        budget.request()
    assert [budget.spend() for _ in range(3)] == [True, True, False], "never more than the burst is saved up"


@pytest.mark.parametrize("per_s", [0.5, 2.0, 50.0])
def test_the_drain_rate_settles_at_the_true_rate_and_fades(per_s: float) -> None:
    drain = DrainRate()
    assert drain.retry_after_s(1000, 0.0) == 1
    for number in range(int(100 * per_s)):
        drain.left(1000.0 + number / per_s)
    now_s = 1100.0
    assert drain.rate_per_s(now_s) == pytest.approx(per_s, rel=0.1)
    assert drain.rate_per_s(now_s + 10.0) == pytest.approx(drain.rate_per_s(now_s) / 2)
    assert drain.retry_after_s(int(10 * per_s) - 1, now_s) == pytest.approx(10, abs=1)
    assert drain.retry_after_s(0, now_s) >= 1
    assert drain.retry_after_s(100_000, now_s) == 60
    assert drain.retry_after_s(100_000, now_s + 1000.0) == 1, "nothing is known any more"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), max_size=30), st.integers(0, 2000))
def test_an_announced_wait_is_between_a_second_and_a_minute(gaps_s: list[float], waiting: int) -> None:
    drain, now_s = DrainRate(), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        drain.left(now_s)
        assert 1 <= drain.retry_after_s(waiting, now_s) <= 60
        assert drain.retry_after_s(waiting, now_s) <= drain.retry_after_s(waiting + 1, now_s)


def test_the_nearest_deadline_goes_first_and_the_patient_keep_their_order() -> None:
    line: WaitingLine[str] = WaitingLine(Queue(size=9))
    for name, until_s in (("a", 30.0), ("b", 31.0), ("soon", 5.0), ("c", 32.0), ("sooner", 4.0), ("b too", 31.0)):
        line.push("m", name, until_s)
    assert line.remove("m", "soon")
    assert not line.remove("m", "soon")
    went: list[str] = []

    def take(name: str) -> bool:
        went.append(name)
        return True

    line.release("m", take)
    assert went == ["sooner", "a", "b", "b too", "c"]
    assert len(line) == 0
