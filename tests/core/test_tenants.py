"""What tenants are charged: by expectation at first, by what was produced in the end."""

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.line import Line
from gateway.plan import Ticket, order_key
from gateway.tenants import FAIR_LEAD_TOKENS, TENANTS_MAX, Tenants
from predictor.request import LengthEstimate

IN_ENGINES = 4
OUTPUT_MAX = 1000
PROMPT = 200


def ticket(name: str, tenant: str, expected: int = 100, weight: float = 1.0, prompt: int = PROMPT) -> Ticket:
    return Ticket(
        Job(name, "m", prompt, LengthEstimate(1, expected, expected, "test"), 0.0, tenant=tenant, tenant_weight=weight)
    )


def charged(made: Tenants, *tickets: Ticket) -> None:
    for one in tickets:
        made.comes(one.job.tenant)
        made.goes(one, sent=True)


def watched() -> Tenants:
    """With somebody who waits all the time, at a counter that is far ahead."""
    made = Tenants()
    made.comes("other")
    made.comes("other")
    made.goes(ticket("ahead", "other", expected=50_000), sent=True)
    return made


@pytest.mark.parametrize(("produced", "spent"), [(400, 500.0), (0, 100.0), (100, 200.0), (-1, 200.0)])
def test_in_the_end_the_real_output_counts(produced: int, spent: float) -> None:
    made = watched()
    made.comes("t")
    made.comes("t")
    before = made.spent("t")
    made.goes(ticket("a", "t", weight=2.0), sent=True)
    assert made.spent("t") - before == 200.0
    made.settle("a", produced)
    made.settle("a", produced)  # once only
    assert made.spent("t") - before == spent


def test_what_never_began_is_given_back_and_may_be_sent_again() -> None:
    made = watched()
    made.comes("t")
    made.comes("t")
    before = made.spent("t")
    one = ticket("a", "t")
    made.goes(one, sent=True)
    made.refund("a")
    assert made.spent("t") == before
    made.comes("t")
    made.goes(one, sent=True)
    made.settle("a", 100)
    assert made.spent("t") - before == 400.0


def test_who_leaves_the_line_for_good_is_charged_nothing() -> None:
    made = watched()
    made.comes("t")
    before = made.spent("t")
    made.goes(ticket("a", "t"), sent=False)
    made.settle("a", 500)
    assert made.spent("t") == before


def test_credit_from_before_is_not_saved_up() -> None:
    made = Tenants()
    made.comes("other")
    made.comes("other")
    charged(made, ticket("a", "t", expected=500))
    made.goes(ticket("ahead", "other", expected=50_000), sent=True)
    made.comes("t")  # is put level with the other
    level = made.spent("t")
    assert level == made.spent("other")
    made.settle("a", 1)
    assert made.spent("t") == level, "it would have been put level all the same"


def test_debt_from_before_counts_as_far_as_it_would_have() -> None:
    made = Tenants()
    made.comes("other")
    made.comes("other")
    charged(made, ticket("a", "t", expected=500), ticket("b", "t", expected=500))
    made.goes(ticket("ahead", "other", expected=5000), sent=True)
    made.comes("t")
    level = made.spent("t")
    made.settle("a", 4400)  # 7,800 tokens more than charged: as much as it was put level by
    assert made.spent("t") == level
    made.settle("b", 1000)
    assert made.spent("t") == level + 1000


def test_when_nobody_waits_nobody_owes() -> None:
    made = Tenants()
    charged(made, ticket("a", "t"))
    made.settle("a", 9000)
    assert made.spent("t") == 0.0


def test_tenants_are_bounded() -> None:
    made = watched()
    for number in range(TENANTS_MAX + 50):
        charged(made, ticket(str(number), f"t{number}"))
    assert sum(made.spent(f"t{number}") > 0 for number in range(TENANTS_MAX + 50)) < TENANTS_MAX
    made.settle("0", 5000)  # of one that is forgotten
    assert made.spent("t0") == 0.0


class Crowd:
    """Tenants that always have somebody waiting, each with a weight and a bias of what is predicted for it."""

    def __init__(self, rng: Random, weights: list[float], biases: list[float]) -> None:
        self.rng, self.rule = rng, ModelSpec("m", "plan", order="fcfs")
        self.line = Line(self.rule)
        self.weights = {f"t{number}": weight for number, weight in enumerate(weights)}
        self.biases = {f"t{number}": bias for number, bias in enumerate(biases)}
        self.real: dict[str, int] = {}
        self.served = dict.fromkeys(self.weights, 0.0)
        self.running: deque[Ticket] = deque()
        for tenant in self.weights:
            for _ in range(4):
                self.come(tenant)

    def come(self, tenant: str) -> None:
        name, output = str(len(self.real)), self.rng.randint(1, OUTPUT_MAX)
        self.real[name] = output
        one = ticket(name, tenant, max(1, round(output * self.biases[tenant])), self.weights[tenant])
        one.key = order_key(one, self.rule)
        self.line.join(one, 0.0, (0.0, 0.0))

    def turn(self, *, corrects: bool) -> None:
        """One is sent, one comes; of those in engines the oldest ends."""
        one = self.line.in_order(0.0)[0]
        self.line.remove(one, 0.0, sent=True)
        self.come(one.job.tenant)
        self.running.append(one)
        if len(self.running) > IN_ENGINES:
            ended = self.running.popleft().job
            self.served[ended.tenant] += (PROMPT + 2 * self.real[ended.id]) / ended.tenant_weight
            self.line.tenants.settle(ended.id, self.real[ended.id] if corrects else -1)

    @property
    def gap(self) -> float:
        """Between the tenant served most and the one served least, by weight."""
        return max(self.served.values()) - min(self.served.values())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.floats(0.1, 6.0)), min_size=2, max_size=4),
)
def test_long_run_shares_follow_the_weights_however_biased_predictions_are(
    seed: int, tenants: list[tuple[float, float]]
) -> None:
    """What was really served, by weight, stays within the lead and what is in engines, however long it goes on."""
    crowd = Crowd(Random(seed), [weight for weight, _ in tenants], [bias for _, bias in tenants])
    dearest = PROMPT + 2 * OUTPUT_MAX * max(1.0, *[bias for _, bias in tenants])
    bound = FAIR_LEAD_TOKENS + 2 * (IN_ENGINES + 1) * dearest
    for _ in range(400):
        crowd.turn(corrects=True)
        assert crowd.gap <= bound


def test_without_the_correction_they_would_not() -> None:
    gaps = {}
    for corrects in (True, False):
        crowd = Crowd(Random(5), [1.0, 1.0], [0.2, 3.0])
        for _ in range(2000):
            crowd.turn(corrects=corrects)
        gaps[corrects] = crowd.gap / sum(crowd.served.values())
    assert gaps[True] < 0.02
    assert gaps[False] > 0.4
