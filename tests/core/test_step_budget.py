"""An engine's step budget, from its histogram of tokens per step: what proves it, what refutes it, what says nothing."""

from hypothesis import given
from hypothesis import strategies as st

from predictor.step_budget import PROOFS, StepBudget

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, float("inf"))


class Engine:
    """Counts steps as vLLM does, and computes prompts alone."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.steps: list[int] = []

    def prompt(self, tokens: int) -> None:
        while tokens > 0:
            self.steps.append(min(tokens, self.budget))
            tokens -= self.steps[-1]

    def report(self) -> list[tuple[float, float]]:
        return [(bound, float(sum(step <= bound for step in self.steps))) for bound in BOUNDS]


def told(engine: Engine, learner: StepBudget, now_s: float, *prompts: int) -> int:
    for tokens in prompts:
        engine.prompt(tokens)
        learner.computed(now_s - 1.0, tokens)
    return learner.report(engine.report(), now_s)


def test_long_prompts_prove_a_small_budget() -> None:
    engine, learner = Engine(512), StepBudget()
    found = [told(engine, learner, 5.0 * number, 4000) for number in range(PROOFS + 2)]
    assert found == [0, 0, 0, 512, 512], "the first reading has nothing to be compared with"


def test_short_prompts_prove_nothing() -> None:
    engine, learner = Engine(512), StepBudget()
    assert {told(engine, learner, 5.0 * number, 100, 120) for number in range(20)} == {0}


def test_a_larger_step_refutes_it() -> None:
    engine, learner = Engine(512), StepBudget()
    for number in range(6):
        told(engine, learner, 5.0 * number, 4000)
    engine.budget = 2048
    assert told(engine, learner, 30.0, 4000) == 0
    assert [told(engine, learner, 35.0 + 5.0 * number, 6000) for number in range(3)][-1] == 2048


def test_what_began_before_the_last_reading_is_no_proof() -> None:
    engine, learner = Engine(512), StepBudget()
    for number in range(1, 10):
        engine.prompt(64)  # the rest of it was computed before
        learner.computed(5.0 * (number - 1) - 0.1, 8000)
        assert learner.report(engine.report(), 5.0 * number) == 0


def test_an_engine_without_a_histogram_or_that_starts_anew() -> None:
    learner = StepBudget()
    assert [learner.report([], float(now_s)) for now_s in range(5)] == [0] * 5
    engine = Engine(256)
    for number in range(5):
        told(engine, learner, 5.0 * number, 4000)
    engine.steps.clear()
    engine.budget = 128
    assert told(engine, learner, 30.0) == 0, "counts that fell: another process, maybe with other settings"
    assert [told(engine, learner, 35.0 + 5.0 * number, 4000) for number in range(3)] == [0, 0, 128]


@given(
    st.integers(32, 4096),
    st.lists(st.lists(st.integers(1, 20000), max_size=4), max_size=30),
    st.floats(0.7, 1.4),
)
def test_it_never_believes_less_than_the_truth(budget: int, rounds: list[list[int]], error: float) -> None:
    """With estimates of prompts off by less than MARGIN, whatever is believed is at least the budget, and at most twice it
    where the histogram's bounds are powers of two."""
    engine, learner = Engine(budget), StepBudget()
    for number, prompts in enumerate(rounds):
        for tokens in prompts:
            engine.prompt(tokens)
            learner.computed(5.0 * number, int(tokens * error))
        found = learner.report(engine.report(), 5.0 * number + 0.5)
        assert found == 0 or budget <= found < 2 * budget
