"""The what-if kernel, from source and compiled: equal to the step-by-step engine, careful about what it is given, fast."""

import time
from dataclasses import replace
from itertools import product
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import kernel
from predictor.profile import ORDERS, EngineLimits, StepProfile
from predictor.request import Request
from predictor.snapshot import Resident, Snapshot, settle
from predictor.stepwise import simulate
from tests.core.states import FORMS, PAPER, PAPER_LIMITS, busy_state, has_compiler, is_compiled, random_state

SEEDS = 240
LIMITS = EngineLimits(kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=128)
DECODER = Resident("d", prompt_tokens=10, computed_tokens=12, generated_tokens=3, output_tokens=9)


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def test_the_compiled_form_is_there_where_it_can_be_built() -> None:
    assert is_compiled(kernel) == has_compiler(), kernel.__file__
    assert [module.COMPILED for module in FORMS.values()] == [name == "compiled" for name in FORMS]


def same(left: float, right: float) -> bool:
    return abs(left - right) <= 1e-9 * max(1.0, abs(right))


def check(form: ModuleType, seed: int) -> int:
    """One state in both orders: until the request ends, then until all have ended. Returns the steps compared."""
    profile, snapshot, request = random_state(seed)
    states = [replace(snapshot, limits=replace(snapshot.limits, order=order)) for order in ORDERS]
    return sum(check_order(form, seed, profile, state, request) for state in states)


def check_order(form: ModuleType, seed: int, profile: StepProfile, snapshot: Snapshot, request: Request) -> int:
    assert settle(snapshot) is snapshot
    hit_blocks = (request.prompt_tokens - 1) // snapshot.limits.block_size if seed % 3 == 0 else 0
    counts = (request.prompt_tokens, request.output_tokens, hit_blocks * snapshot.limits.block_size, hit_blocks * (seed % 2))
    target = Resident("new", counts[0], counts[2], 0, counts[1], counts[3])
    engine = form.Kernel(snapshot.limits, profile.coefficients)
    assert engine.load(snapshot.running, snapshot.waiting, snapshot.free_blocks) == 0
    steps = 0
    places = (-1, seed % (len(snapshot.waiting) + 1))  # at the end of the queue, and somewhere in it
    for drain, place in product((False, True), places):
        truth = simulate(profile, snapshot, target, drain=drain, steps_max=200_000, place=place)
        assert truth.complete
        assert engine.predict(*counts, drain, place)
        assert (engine.steps, engine.preemptions, engine.peak_blocks) == (truth.steps, truth.preemptions, truth.peak_blocks)
        pairs = [(engine.wait_s, truth.wait_s), (engine.ttft_s, truth.ttft_s), (engine.e2e_s, truth.e2e_s)]
        if drain:
            pairs.append((engine.ends_sum_s, truth.ends_sum_s))
        assert all(same(left, right) for left, right in pairs), (seed, drain, place, pairs)
        steps += truth.steps
    return steps


@pytest.mark.parametrize("start", range(0, SEEDS, 40))
def test_equal_to_the_engine_step_by_step_on_seeded_states(form: ModuleType, start: int) -> None:
    assert sum(check(form, seed) for seed in range(start, start + 40)) > 10_000


@settings(max_examples=60, deadline=None)
@given(st.integers(1_000, 2**40))
def test_equal_to_the_engine_step_by_step_on_any_state(seed: int) -> None:
    for module in FORMS.values():
        check(module, seed)


def test_hits_are_not_computed_and_shared_blocks_not_taken(form: ModuleType) -> None:
    snapshot = Snapshot(0.0, LIMITS, (DECODER,), (), 61)
    engine = form.Kernel(LIMITS, PAPER.coefficients)
    engine.load(snapshot.running, snapshot.waiting, snapshot.free_blocks)
    seen = []
    for hit, shared in ((0, 0), (12, 0), (12, 2)):
        assert engine.predict(18, 5, hit, shared)
        truth = simulate(PAPER, snapshot, Resident("new", 18, hit, 0, 5, shared))
        assert same(engine.ttft_s, truth.ttft_s)
        assert engine.peak_blocks == truth.peak_blocks
        seen.append((engine.steps, engine.peak_blocks))
    assert [steps for steps, _ in seen] == [6, 5, 5], "18 tokens beside a decoder take two steps of 16, 6 take one"
    assert [peak - seen[0][1] for _, peak in seen] == [0, 0, -2]


@pytest.mark.parametrize("seed", range(0, 120, 10))
def test_a_run_leaves_nothing_behind(form: ModuleType, seed: int) -> None:
    """Many runs on one state, and many states in one object, give what a fresh object gives."""
    profile, snapshot, request = random_state(seed)
    used = form.Kernel(snapshot.limits, profile.coefficients)
    for other in (seed, seed + 1, seed):
        if random_state(other)[1].limits == snapshot.limits:
            used.load(*loaded(random_state(other)[1]))
    used.predict(3, 7)
    used.drain_all()
    assert used.predict(request.prompt_tokens, request.output_tokens)
    fresh = form.Kernel(snapshot.limits, profile.coefficients)
    fresh.load(*loaded(snapshot))
    assert fresh.predict(request.prompt_tokens, request.output_tokens)
    assert (used.steps, used.e2e_s, used.peak_blocks) == (fresh.steps, fresh.e2e_s, fresh.peak_blocks)


def loaded(snapshot: Snapshot) -> tuple[tuple[Resident, ...], tuple[Resident, ...], int]:
    return snapshot.running, snapshot.waiting, snapshot.free_blocks


def test_blocks_that_nobody_accounts_for_are_reported(form: ModuleType) -> None:
    engine = form.Kernel(LIMITS, PAPER.coefficients)
    assert engine.load((DECODER,), (), 61) == 0
    assert engine.load((DECODER,), (), 60) == 1
    assert engine.load((DECODER,), (), 64) == -3


HALF = Resident("h", prompt_tokens=40, computed_tokens=16, generated_tokens=0, output_tokens=5)


@pytest.mark.parametrize(
    ("running", "waiting", "free"),
    [
        ((HALF, DECODER), (), 50),  # a half-done prompt before a decoder
        ((HALF, HALF), (), 40),
        ((DECODER,) * 5, (), 40),  # more than can run
        ((Resident("x", 10, 12, 3, 3),), (), 61),  # nothing left to produce
        ((Resident("x", 0, 0, 0, 3),), (), 61),
        ((Resident("x", 10, 13, 3, 9),), (), 60),  # more computed than it has
        ((Resident("x", 10, -1, 0, 9),), (), 61),
        ((), (Resident("x", 10, 10, 0, 9),), 64),  # all of a waiting prompt is cached
        ((), (Resident("x", 10, 0, 0, 9, shared_blocks=3),), 64),
        ((), (Resident("x", 10, 0, 0, 9, shared_blocks=-1),), 64),
        ((), (Resident("x", 200, 0, 0, 57),), 64),  # longer than the cache
        ((), (Resident("x", 10, 0, 2**31, 2**31 + 9),), 64),
        ((), (), 65),
        ((), (), -1),
    ],
)
def test_states_outside_of_its_conditions_are_refused(
    form: ModuleType, running: tuple[Resident, ...], waiting: tuple[Resident, ...], free: int
) -> None:
    engine = form.Kernel(LIMITS, PAPER.coefficients)
    engine.load((), (), 64)
    with pytest.raises(form.UnfitError):
        engine.load(running, waiting, free)
    with pytest.raises(form.UnfitError):
        engine.predict(4, 4)
    assert not engine.drain_all(), "nothing is loaded any more"


@pytest.mark.parametrize("call", [(0, 4), (4, 0), (4, 4, 4), (4, 4, -1), (4, 4, 0, 2), (4, 4, 0, -1), (200, 57), (2**31, 1)])
def test_requests_out_of_range_are_refused(form: ModuleType, call: tuple[int, ...]) -> None:
    engine = form.Kernel(LIMITS, PAPER.coefficients)
    engine.load((), (), 64)
    with pytest.raises(form.UnfitError):
        engine.predict(*call)


def test_limits_outside_of_its_conditions_are_refused(form: ModuleType) -> None:
    for limits in (
        EngineLimits(64, 2**17, 4, 16, 128),
        EngineLimits(2**31, 1, 4, 16, 128),
    ):
        with pytest.raises(form.UnfitError):
            form.Kernel(limits, PAPER.coefficients)


def test_caps_end_a_run_without_a_result(form: ModuleType) -> None:
    engine = form.Kernel(PAPER_LIMITS, PAPER.coefficients)
    engine.load(*loaded(busy_state(1)))
    assert engine.predict(100, 100)
    turns, steps = engine.turns, engine.steps
    for cap, value in (("turns_max", turns - 1), ("steps_max", steps - 1)):
        setattr(engine, cap, value)
        assert not engine.predict(100, 100)
        setattr(engine, cap, 1_000_000)
    engine.turns_max, engine.steps_max = turns, steps
    assert engine.predict(100, 100)


def test_room_grows_with_the_state(form: ModuleType) -> None:
    engine = form.Kernel(LIMITS, PAPER.coefficients)
    queue = tuple(Resident(f"w{number}", 5, 0, 0, 3) for number in range(700))
    assert engine.load((), queue, 64) == 0
    assert engine.predict(5, 3, 0, 0, True)
    truth = simulate(PAPER, Snapshot(0.0, LIMITS, (), queue, 64), Resident("new", 5, 0, 0, 3), drain=True)
    assert (engine.steps, same(engine.ends_sum_s, truth.ends_sum_s)) == (truth.steps, True)


def test_a_new_step_time_holds_from_the_next_run(form: ModuleType) -> None:
    engine = form.Kernel(PAPER_LIMITS, PAPER.coefficients)
    engine.load(*loaded(busy_state(2)))
    engine.predict(100, 100)
    before = engine.e2e_s
    engine.tune(PAPER.scaled(2.0).coefficients)
    engine.predict(100, 100)
    assert same(engine.e2e_s, 2 * before)


def test_compiled_means_fast() -> None:
    """Built without its .pxd the module passes everything above, and is slower than not built at all; with it, it takes a
    hundredth of the source's time."""
    best_s: dict[str, float] = {}
    for name, module in FORMS.items():
        engine = module.Kernel(PAPER_LIMITS, PAPER.coefficients)
        engine.load(*loaded(busy_state(3)))
        spent = []
        for _ in range(20):
            begin = time.perf_counter()
            assert engine.predict(200, 300)
            spent.append(time.perf_counter() - begin)
        best_s[name] = min(spent)
    assert 20 * best_s.get("compiled", 0.0) < best_s["source"], best_s
