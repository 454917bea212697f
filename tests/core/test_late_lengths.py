"""A length that is told late: the picture of the engine that has the job is as if it had been told in time."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ModelSpec
from gateway.desk import Desk, Dispatch, EngineView
from gateway.jobs import Job
from predictor.forecast import Forecast
from predictor.mirror import Mirror
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate, Request

STEPS = StepProfile(0.010, 100e-6, 50e-6, 1e-9)
LIMITS = EngineLimits(400, 16, 8, 512, 4096)
FIRST_S, LATER_S = 0.5, 0.8


def told(tokens: int) -> LengthEstimate:
    return LengthEstimate(max(1, tokens // 2), tokens, 2 * tokens, "test")


def job(name: str, prompt: int, tokens: int) -> Job:
    return Job(name, "m", prompt, told(tokens), 0.0)


def played(believed: int, late: int | None, others: list[tuple[int, int]], *, running: bool) -> Mirror:
    """An engine with one job of that length, told late or in time, among others."""
    made = Mirror(STEPS, LIMITS)
    made.dispatched(job("it", 300, believed), 0, 0.0)
    for number, (prompt, tokens) in enumerate(others):
        made.dispatched(job(f"other {number}", prompt, tokens), 0, 0.01 * number)
    if running:
        made.first_token("it", FIRST_S)
    made.fits(job("asked before", 500, 500), 0.05)  # what was reckoned for that must not stand any longer
    if late is not None:
        assert made.revised("it", told(late))
    made.look(LATER_S)
    return made


def forecast_s(made: Mirror) -> tuple[float, float]:
    forecast = Forecast(STEPS, LIMITS)
    forecast.load(made.snapshot(LATER_S))
    estimate = forecast.reply(Request("new", 500, 100, LATER_S), hit_tokens=0).estimate
    return estimate.ttft_s, estimate.e2e_s


lengths = st.integers(10, 3000)
others = st.lists(st.tuples(st.integers(1, 1500), lengths), max_size=6)


@given(believed=lengths, late=lengths, among=others, running=st.booleans(), ask=lengths)
def test_a_job_told_late_is_foretold_like_one_told_in_time(
    believed: int, late: int, among: list[tuple[int, int]], running: bool, ask: int
) -> None:
    corrected = played(believed, late, among, running=running)
    in_time = played(late, None, among, running=running)
    assert corrected.snapshot(LATER_S) == in_time.snapshot(LATER_S)
    assert forecast_s(corrected) == forecast_s(in_time)
    new = job("new", 500, ask)
    assert corrected.fits(new, 0.05) == in_time.fits(new, 0.05)
    assert corrected.roomy_tokens(0.05) == in_time.roomy_tokens(0.05)
    waits = [mirror.frees_steps(new, 0.05, mirror.memory.crowd(LATER_S)) for mirror in (corrected, in_time)]
    assert waits[0] == waits[1]


def test_a_length_that_was_wrong_changes_the_forecast() -> None:
    """So that the test above cannot pass by looking at nothing."""
    among = [(1000, 900), (900, 900)]
    assert forecast_s(played(100, 3000, among, running=True)) != forecast_s(played(100, None, among, running=True))
    assert not Mirror(STEPS, LIMITS).revised("nobody", told(10))


def test_room_that_a_late_length_shows_is_used_at_once() -> None:
    """One job seems to fill the engine's KV and holds the next one back; told that it is short, the next one goes."""
    desk = Desk(ModelSpec("m", "plan"), Random(1))
    desk.added("r0", EngineView(STEPS, LIMITS))
    assert desk.arrived(job("long", 400, 5500), 0.0)
    desk.first_token("long", 0.2)
    assert desk.arrived(job("next", 400, 5000), 0.3) == []
    (sent,) = desk.revise("long", told(200), 0.4) or []
    assert isinstance(sent, Dispatch)
    assert sent.job.id == "next"
    assert desk.hindsight.compared == 0, "a place in the line was not at stake"
