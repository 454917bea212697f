"""The offload curve learnt from streams in service: which count, what wrong rates become, outliers, the next life."""

import random
from dataclasses import replace

import pytest

from gateway.accounts import Account
from gateway.config import GatewayConfig, ModelSpec
from gateway.lodging import Lodger, Lodging, Waiter
from gateway.offload_rates import FEW_TOKENS, OffloadRates
from gateway.swap_actions import plan
from gateway.swap_config import DeviceSpec, FootprintSpec
from gateway.swap_views import model_view
from predictor.hosts import host_profiles
from predictor.kept import Kept, KeptError
from predictor.offload import OffloadCurve

TRUTH = OffloadCurve(gpu_s=1 / 50, cpu_s=1 / 5)  # r = 10
WRONG = FootprintSpec(16.0, layers=32, gpu_tokens_per_s=40.0, cpu_tokens_per_s=20.0)  # r = 2
BACKENDS = {"e-m"}


def rates(spec: FootprintSpec = WRONG) -> OffloadRates:
    return OffloadRates(lambda model: spec if model == "m" else FootprintSpec())


def stream(begin_s: float, rate_per_s: float, tokens: int = 100, **fields: object) -> Account:
    """A whole stream of m, by that rate."""
    account = Account(begin_s)
    account.model, account.backend, account.stream, account.status, account.end = "m", "e-m", True, 200, "complete"
    account.dispatched_s, account.first_byte_s, account.output_tokens, account.prompt_tokens = begin_s, begin_s, tokens, 50
    account.finished_s = begin_s + (tokens - 1) / rate_per_s
    for name, value in fields.items():
        setattr(account, name, value)
    return account


def seen(made: OffloadRates) -> int:
    known = made.of("m")
    return known.fit.seen if known is not None else -1


def ratio(made: OffloadRates) -> float:
    known = made.of("m")
    assert known is not None
    return known.curve().ratio()


def serve(made: OffloadRates, fractions: list[float], noise: float = 0.1, seed: int = 1, at_s: float = 0.0) -> None:
    rng = random.Random(seed)
    for number, fraction in enumerate(fractions):
        rate = TRUTH.rate_per_s(fraction) * rng.lognormvariate(0.0, noise)
        made.over(stream(at_s + 1000.0 * (number + 1), rate), "g0", fraction, 0.0, BACKENDS)


@pytest.mark.parametrize("seed", range(5))
def test_noisy_streams_at_two_fractions_correct_a_wrong_ratio(seed: int) -> None:
    made = rates()
    assert (ratio(made), made.slowdown("m", 0.5)) == (pytest.approx(2.0), pytest.approx(1.5))
    serve(made, [1.0] * 15 + [0.5] * 15, seed=seed)
    assert ratio(made) == pytest.approx(TRUTH.ratio(), rel=0.25)
    assert made.slowdown("m", 0.5) == pytest.approx(TRUTH.slowdown(0.5), rel=0.2)
    assert made.slowdown("m", 1.0) == 1.0


def test_what_lies_far_off_counts_only_when_the_next_does_too() -> None:
    made = rates()
    serve(made, [1.0, 0.5] * 10, noise=0.02)
    before, count = made.slowdown("m", 0.5), seen(made)
    for at_s, rate in ((90_000.0, 0.05), (91_000.0, 5000.0)):  # a client that does not read; several answers in one
        made.over(stream(at_s, rate), "g0", 0.5, 0.0, BACKENDS)
    assert (made.slowdown("m", 0.5), seen(made)) == (before, count)
    for at_s in (92_000.0, 93_000.0, 94_000.0):
        made.over(stream(at_s, TRUTH.rate_per_s(0.5) / 3), "g0", 0.5, 0.0, BACKENDS)
    assert made.slowdown("m", 0.5) > 1.5 * before, "the machine is another one now"


def test_context_is_learnt_too() -> None:
    truth = OffloadCurve(1 / 50, 1 / 5, gpu_ctx_s=2e-6, cpu_ctx_s=3e-5)
    made, rng = rates(), random.Random(3)
    for number in range(200):
        fraction, prompt = rng.choice((0.5, 1.0)), rng.choice((100, 8000))
        rate = truth.rate_per_s(fraction, prompt + 50) * rng.lognormvariate(0.0, 0.1)
        made.over(stream(1000.0 * (number + 1), rate, prompt_tokens=prompt), "g0", fraction, 0.0, BACKENDS)
    known = made.of("m")
    assert known is not None
    for context in (150.0, 8050.0):
        assert known.fit.at(context).token_s(0.5) == pytest.approx(truth.token_s(0.5, context), rel=0.15)
    assert 3000 < known.context_tokens < 5000
    assert made.slowdown("m", 0.5) == pytest.approx(known.fit.at(known.context_tokens).slowdown(0.5))


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"end": "client_gone"},
        {"end": "failed_in_stream"},
        {"status": 400},
        {"first_byte_s": -1.0},
        {"output_tokens": FEW_TOKENS - 1},
        {"finished_s": 1000.01},
        {"dispatched_s": 400.0},
        {"model": "n"},
    ],
    ids="-".join,
)
def test_streams_that_tell_nothing(fields: dict[str, object]) -> None:
    made = rates()
    made.over(stream(1000.0, 40.0, **fields), "g0", 0.5, 500.0, BACKENDS)
    assert seen(made) == 0
    made.over(stream(2000.0, 40.0), "g0", 0.5, 500.0, BACKENDS)
    assert seen(made) == 1


def test_a_stream_counts_if_it_ran_as_good_as_alone_on_a_known_part() -> None:
    made = rates()
    made.over(stream(1000.0, 40.0), "g0", None, 0.0, BACKENDS)
    assert seen(made) == 0, "nobody knows which part lay there"
    made.over(stream(1000.5, 40.0), "g0", 0.5, 0.0, BACKENDS)
    assert seen(made) == 0, "the first one ran at the same time"
    made.over(stream(1000.6, 40.0), "g1", 0.5, 0.0, BACKENDS)
    assert seen(made) == 1, "elsewhere"
    made.over(stream(1002.8, 40.0), "g0", 0.5, 0.0, BACKENDS)
    assert seen(made) == 2, "a tenth of it together"
    asked = []
    made.beside = lambda backends, at_s: asked.append((backends, at_s)) is None
    one = stream(3000.0, 40.0)
    made.over(one, "g0", 0.5, 0.0, BACKENDS)
    assert seen(made) == 2, "another one was there, and goes on"
    assert asked == [(BACKENDS, one.finished_s)]


def test_the_next_life_goes_on_where_this_one_was() -> None:
    made, anew = rates(), rates()
    serve(made, [1.0, 0.5] * 20)
    (state,) = made.states()
    anew.restore(Kept(as_json(state)))
    assert ratio(anew) == ratio(made)
    assert list(anew.states()) == [state]
    assert list(rates().states()) == [], "nothing learnt, nothing kept"


def as_json(state: object) -> object:
    import orjson

    return orjson.loads(orjson.dumps(state))


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "n"},
        {"ends": [50.0, 5.0]},
        {"context": -1.0},
        {"context": "long"},
        {"mean": [1e9, 0.1, 0.0, 0.0]},
        {"mean": [0.02, -1e9, 0.0, 0.0]},
        {"mean": [0.02, 0.1, 0.0, 1e6]},
        {"mean": [0.02]},
        {"cov": [-1.0] * 16},
        {"cov": [1e-6] * 4 + [9.0] + [1e-6] * 11},
        {"cov": [1e-6, 1e-3, 0.0, 0.0, 1e-3, *[1e-6] * 11]},
        {"seen": -1},
    ],
    ids=str,
)
def test_records_that_make_no_sense_are_refused_and_change_nothing(fields: dict[str, object]) -> None:
    made, anew = rates(), rates()
    serve(made, [1.0, 0.5] * 5)
    (state,) = made.states()
    with pytest.raises(KeptError):
        anew.restore(Kept({**as_json(state), **fields}))  # type: ignore[dict-item]
    assert (ratio(anew), seen(anew)) == (pytest.approx(2.0), 0)


def test_other_rates_in_the_configuration_begin_anew_and_models_that_go_are_forgotten() -> None:
    spec = WRONG
    made = OffloadRates(lambda _: spec)
    serve(made, [1.0, 0.5] * 5)
    spec = replace(WRONG, gpu_tokens_per_s=60.0)
    assert (seen(made), ratio(made)) == (0, pytest.approx(3.0))
    serve(made, [1.0], at_s=100_000.0)
    made.only({"m"}, {"g0"})
    assert seen(made) == 1
    made.only({"n"}, {"g1"})
    assert list(made.states()) == []
    made.over(stream(500.0, 40.0), "g0", 1.0, 0.0, BACKENDS)
    assert seen(made) == 1, "nor is it known when something was there last"


def share(cpu_tokens_per_s: float) -> Lodging:
    """m, of which a part fits, with somebody who waits for it, beside n."""
    spec = replace(WRONG, weight_gb=12.0, cpu_tokens_per_s=cpu_tokens_per_s)
    models = (ModelSpec("m", footprint=spec), ModelSpec("n", footprint=FootprintSpec(10.0)))
    made = Lodging(GatewayConfig(devices=(DeviceSpec("g0", 20.0, "rtx-5000-ada"),), models=models), host_profiles)
    away = Lodger("e-m", "m", "g0", parts=True, fraction=0.5, ours=True)
    made.lodge([away, Lodger("e-n", "n", "g0", phase="in", place="gpu", running=1)], 0.0)
    return made


def test_the_planner_and_what_is_shown_use_what_was_learnt() -> None:
    made = share(20.0)
    for _ in range(50):
        made.arrived("n", 5999.0, 6005.0)
    (before,) = [tenant for tenant in made.view([], 6000.0).tenants if tenant.name == "m"]
    step = plan(made.view([Waiter("m", 5999.0, 6010.0)], 6000.0), made.costs, made.settings()).steps[0]
    assert step.fraction < 1, "beside n, with a part of its layers"
    slow = OffloadCurve(1 / 40, 8.0)
    for number, fraction in enumerate([1.0, 0.5] * 15):
        made.lodgers["e-m"].fraction = fraction
        made.over(stream(1000.0 * number, slow.rate_per_s(fraction), 20))
    (after,) = [tenant for tenant in made.view([], 6000.0).tenants if tenant.name == "m"]
    assert before.slowdown(0.5) == pytest.approx(1.5)
    assert after.slowdown(0.5) == pytest.approx(slow.slowdown(0.5), rel=0.1)
    shown = model_view(made, "m", [], 6000.0).offload
    assert shown is not None
    assert (shown.ratio, shown.gpu_tokens_per_s) == (pytest.approx(320, rel=0.2), pytest.approx(40, rel=0.1))
    assert (shown.context_tokens, shown.gpu_error < 0.1) == (60, True)
    assert model_view(made, "n", [], 6000.0).offload is None
    steps = plan(made.view([Waiter("m", 5999.0, 6010.0)], 6000.0), made.costs, made.settings()).steps
    assert all(one.fraction == 1 for one in steps if one.model == "m"), "not worth it any more"


def test_what_answers_take_is_learnt_as_if_all_layers_were_there() -> None:
    made = share(20.0)
    account = stream(1.0, 40.0, first_byte_s=2.5, finished_s=1.0 + 30.0)
    made.lodgers["e-n"].running = 0
    made.over(account)
    assert made.habits("m").hold_s == pytest.approx(5.0 + (20.0 - 5.0) / 5)
    made.lodgers["e-m"].phase, made.lodgers["e-m"].running = "in", 1
    (one,) = [resident for resident in made.view([], 100.0).residents if resident.model == "m"]
    assert one.drain_s == pytest.approx(made.habits("m").drain([0.0], made.offload.slowdown("m", 0.5))[0])
