"""What was learnt of an engine must not keep away for good what would correct it."""

import itertools
from random import Random

import pytest

from gateway.config import ModelSpec, PolicyName
from gateway.desk import Desk
from gateway.jobs import Dispatch, Job
from gateway.policies.table import PROBING
from gateway.views import EngineView, View
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply

PROFILE = StepProfile(0.010, 100e-6, 50e-6, 0.0)
LIMITS = EngineLimits(10_000, 16, 64, 2048, 8192)
OUTPUT = 500
LENGTHS = LengthEstimate(OUTPUT, OUTPUT, OUTPUT, "test")


class Running:
    """A request's progress, which the test sets."""

    generated = 0
    computed = -1


class Light:
    """Two engines alike, one request at a time, a step of each takes what the profile says."""

    def __init__(self, rule: ModelSpec) -> None:
        self.desk = Desk(rule, Random(1))
        for name in "ab":
            self.desk.added(name, EngineView(PROFILE, LIMITS, learns=True))
        self.views = {view.name: view for view in self.desk._lanes.views}
        self.now_s = 0.0
        self.sent: list[tuple[float, str]] = []

    def crowded(self, name: str) -> None:
        """Its pace was learnt on a crowded machine."""
        mirror = self.views[name].mirror
        assert mirror is not None
        for _ in range(60):
            mirror.learned.window(1.0, 1.65)
        mirror.take_pace()

    def pace(self, name: str) -> float:
        mirror = self.views[name].mirror
        assert mirror is not None
        return mirror.pace

    def request(self) -> None:
        """From its arrival to its end, and a pause."""
        job = Job(str(len(self.sent)), "m", 100, LENGTHS, self.now_s)
        (action,) = self.desk.arrived(job, self.now_s)
        assert isinstance(action, Dispatch)
        self.sent.append((self.now_s, action.name))
        progress, mirror = Running(), self.views[action.name].mirror
        assert mirror is not None
        self.desk.started(job.id, progress)
        first_s = self.now_s + PROFILE.step_s(100, 0, 0)
        self.desk.first_token(job.id, first_s)
        for progress.generated in range(1, OUTPUT):
            self.now_s = first_s + progress.generated * PROFILE.step_s(0, 1, 0)
            mirror.look(self.now_s)
        self.desk.finished(job.id, OUTPUT, self.now_s)
        self.now_s += 1.0


def test_the_power_of_two_finds_out_that_an_engine_is_slow_no_longer() -> None:
    light = Light(ModelSpec("m", "po2"))
    light.crowded("b")
    assert light.pace("b") > 1.5
    for _ in range(600):
        light.request()
    assert light.pace("a") == light.pace("b") == 1.0
    names = [name for _, name in light.sent[-100:]]
    assert 25 < names.count("b") < 75


@pytest.mark.parametrize("name", ["po2", "pod", "fanout"])
def test_one_that_seems_slow_is_tried_now_and_then_while_it_is_idle(name: PolicyName) -> None:
    policy = PROBING[name](ModelSpec("m", name), Random(2))
    job = Job("j", "m", 100, LENGTHS, 0.0)

    def tried(token_s: float, running: int) -> list[float]:
        views, at_s = (View("a"), View("b")), []
        replies = {"a": _reply(1.0, 0.01, 0), "b": _reply(1.7, token_s, running)}
        for second in range(1000, 3000):
            chosen = policy.choose(job, views, float(second), replies)
            chosen.sent(float(second))
            chosen.left()
            if chosen is views[1]:
                at_s.append(float(second))
        return at_s

    at_s = tried(0.017, 0)
    assert 15 < len(at_s) < 30
    assert all(later - before >= 60.0 for before, later in itertools.pairwise(at_s))
    assert tried(0.017, 1) == [], "an engine that works teaches by that"
    assert tried(0.01, 0) == [], "it is not slow, it only has no prefix of this one"


def _reply(e2e_s: float, token_s: float, running: int) -> ProbeReply:
    return ProbeReply(Estimate(0.1, token_s, e2e_s), running, 0, 100, 0, 0, 0.0)
