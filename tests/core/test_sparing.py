"""For which models the encoder is spared: judged by what its word changed, in the line and where KV is short."""

from gateway.jobs import Job
from gateway.sparing import CHANGING_MIN, Sparing, fits_alike
from gateway.views import View
from predictor.layers import LayerReport
from predictor.mirror import Mirror
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate

STEPS = StepProfile(0.010, 100e-6, 50e-6, 1e-9)
LIMITS = EngineLimits(400, 16, 8, 512, 4096)
ON, OFF = (LayerReport("encoder", on, 0.0, 0.5, 1000) for on in (True, False))


def told(tokens: int) -> LengthEstimate:
    return LengthEstimate(tokens, tokens, tokens, "told")


def job(name: str, prompt: int, tokens: int) -> Job:
    return Job(name, "m", prompt, told(tokens), 0.0)


def engine(name: str, *tokens: int) -> View:
    """With 6,400 tokens of KV and requests of so many tokens in it."""
    mirror = Mirror(STEPS, LIMITS)
    for number, output in enumerate(tokens):
        mirror.dispatched(job(f"{name} {number}", 400, output), 0, 0.0)
    return View(name, mirror=mirror)


def test_a_length_matters_where_one_engine_of_several_would_take_it_or_not() -> None:
    empty, half, full = engine("empty"), engine("half", 3000), engine("full", 2900, 2900)
    new = job("new", 400, 100)
    assert fits_alike(new, [empty, half], 0.05, told(100), told(1500))
    assert not fits_alike(new, [empty, half], 0.05, told(100), told(5000))
    assert fits_alike(new, [full], 0.05, told(1500), told(5000)), "it has no room for either"
    assert fits_alike(new, [View("nothing is known of it")], 0.05, told(1), told(5000))


def test_it_is_spared_after_hundreds_that_fit_alike_and_asked_again_after_few_that_do_not() -> None:
    sparing = Sparing()
    asked = 0
    while not sparing.held("m", by_length=False):
        sparing.saw("m", changed=False)
        asked += 1
    assert 400 < asked < 800
    assert sparing.fitting["m"] < CHANGING_MIN
    assert not sparing.held("other", by_length=False)
    sparing.saw("m", changed=True)
    assert not sparing.held("m", by_length=False)


def test_where_the_line_goes_by_length_it_must_be_settled_too() -> None:
    sparing = Sparing()
    sparing.fitting["m"] = 0.0
    assert not sparing.held("m", by_length=True)
    sparing.judge("m", [ON], moving=0.01)
    assert sparing.held("m", by_length=True)
    assert sparing.in_line("m")
    sparing.judge("m", [ON], moving=0.5)
    assert not sparing.held("m", by_length=True)
    assert not sparing.in_line("m")


def test_a_layer_that_is_off_is_spared_everywhere() -> None:
    sparing = Sparing()
    sparing.judge("m", [OFF], moving=1.0)
    assert sparing.helpless("m")
    assert sparing.in_line("m")
    assert sparing.held("m", by_length=True)
    sparing.judge("m", [LayerReport("encoder", False, 0.0, 0.5, 150)], moving=1.0)
    assert not sparing.helpless("m"), "too few answers to tell"
    sparing.clear()
    assert not sparing.in_line("m")


def test_one_question_in_ten_is_put_all_the_same() -> None:
    sparing = Sparing()
    assert sum(sparing.asks(spared=True) for _ in range(50)) == 5
    assert all(sparing.asks(spared=False) for _ in range(50))
