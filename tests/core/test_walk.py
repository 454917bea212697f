"""From roots to leaves, and sums over grams: from source and compiled, the same to the last bit."""

import math
import random
from array import array
from types import ModuleType

import pytest

from predictor import walk
from tests.core.states import has_compiler, is_compiled, source_form

FORMS = {"source": source_form("walk")} | ({"compiled": walk} if is_compiled(walk) else {})
WIDTH, BUCKETS, LEAST = 6, 500, 1e-9


def test_the_compiled_form_is_there_where_it_can_be_built() -> None:
    assert is_compiled(walk) == has_compiler(), walk.__file__
    assert [module.COMPILED for module in FORMS.values()] == [name == "compiled" for name in FORMS]


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


class Nodes:
    """Random trees, each of three levels at most, whose leaves count for any of the targets."""

    def __init__(self, rng: random.Random) -> None:
        self.roots: list[int] = []
        self.feature: list[int] = []
        self.limit: list[float] = []
        self.low: list[int] = []
        self.high: list[int] = []
        for _ in range(40):
            self.roots.append(self._add(rng, 3))

    def _add(self, rng: random.Random, levels: int) -> int:
        number = len(self.feature)
        leaf = not levels or rng.random() < 0.2
        self.feature.append(-1 - rng.randrange(3) if leaf else rng.randrange(WIDTH))
        self.limit.append(rng.gauss(0.0, 1.0))
        self.low.append(0)
        self.high.append(0)
        if not leaf:
            self.low[number], self.high[number] = self._add(rng, levels - 1), self._add(rng, levels - 1)
        return number

    def reached(self, root: int, numbers: list[float]) -> tuple[int, float]:
        """Target and value of the leaf, by going down one step at a time."""
        if self.feature[root] < 0:
            return -1 - self.feature[root], self.limit[root]
        below = self.low if numbers[self.feature[root]] <= self.limit[root] else self.high
        return self.reached(below[root], numbers)


def test_sums_are_those_of_the_leaves_that_are_reached(form: ModuleType) -> None:
    rng = random.Random(3)
    nodes = Nodes(rng)
    made = form.Walk(nodes.roots, nodes.feature, nodes.limit, nodes.low, nodes.high, WIDTH)
    for _ in range(200):
        numbers = [rng.choice((rng.gauss(0.0, 1.0), rng.choice(nodes.limit), math.inf, -math.inf)) for _ in range(WIDTH)]
        wanted = [0.0, 0.0, 0.0]
        for root in nodes.roots:
            target, value = nodes.reached(root, numbers)
            wanted[target] += value
        assert made.sums(tuple(numbers)) == tuple(wanted)


def test_another_count_of_numbers_is_refused(form: ModuleType) -> None:
    made = form.Walk([0], [-1], [1.0], [0], [0], WIDTH)
    assert made.sums([0.0] * WIDTH) == (1.0, 0.0, 0.0)
    for width in (0, WIDTH - 1, WIDTH + 1):
        with pytest.raises(ValueError, match=f"{width} numbers for {WIDTH}"):
            made.sums([0.0] * width)


def test_grams_are_weighed_as_in_exact_sums(form: ModuleType) -> None:
    rng = random.Random(5)
    weights, scales = (array("f", [rng.uniform(low, 2.0) for _ in range(BUCKETS)]) for low in (-2.0, 0.0))
    table = form.Table(weights, scales)
    for count in (0, 1, 7, 300):
        grams = tuple(rng.choices(range(BUCKETS), k=count))
        square = math.fsum([LEAST, *[scales[gram] for gram in grams]])
        exact = math.fsum([weights[gram] for gram in grams]) / math.sqrt(square)
        assert table.weighed(grams, LEAST) == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_a_gram_beyond_the_table_is_an_error(form: ModuleType) -> None:
    with pytest.raises(IndexError):
        form.Table([0.0] * BUCKETS, [1.0] * BUCKETS).weighed((BUCKETS,), LEAST)
