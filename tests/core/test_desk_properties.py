"""Whatever happens in whatever order: every job goes out at most once, none is lost, waiting is bounded."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import ModelSpec, PolicyName
from gateway.desk import Action, Desk, Dispatch, EngineView, Job, Probe
from gateway.policies.table import COUNTING, PROBING
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply

PROFILE = StepProfile(0.010, 100e-6, 50e-6, 0.0)
LIMITS = EngineLimits(1000, 16, 8, 512, 8192)
NAMES = ("a", "b", "c")


def job(name: str, prompt: int, output: int, at_s: float = 0.0, prefix: tuple[int, ...] = (), session: str = "") -> Job:
    return Job(name, "m", prompt, LengthEstimate(output, output, output, "test"), at_s, prefix, session, 100)


def desk(policy: PolicyName, names: tuple[str, ...], **rule: object) -> Desk:
    made = Desk(replace(ModelSpec("m", policy), **rule), Random(1))  # type: ignore[arg-type]
    for name in names:
        made.added(name, EngineView(PROFILE, LIMITS))
    return made


def sent(actions: list[Action]) -> list[str]:
    return [action.job.id for action in actions if isinstance(action, Dispatch)]


def reply(e2e_s: float) -> ProbeReply:
    return ProbeReply(Estimate(e2e_s / 2, 0.01, e2e_s), 0, 0, 500, 0, 0, 0.0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "arrive", "arrive", "token", "finish", "lose", "tick", "probed", "add", "remove")),
        st.integers(0, 99),
    ),
    max_size=60,
)


class Rig:
    """Drives a desk with any events and keeps its own account of who is where."""

    def __init__(self, policy: PolicyName, sidecar: bool, binding: str, seed: int) -> None:
        self.desk = desk(policy, (), binding=binding)
        self.view = EngineView(PROFILE, replace(LIMITS, max_num_seqs=2), max_in_flight=3, sidecar=sidecar)
        self.rng = Random(seed)
        self.names: set[str] = set()
        self.where: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.asked: dict[str, tuple[str, ...]] = {}
        self.now_s = 0.0
        self.count = 0
        for name in NAMES:
            self.add(name)

    def add(self, name: str) -> None:
        if name not in self.names:
            self.names.add(name)
            self.desk.added(name, self.view)

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Probe):
                assert action.job.id in self.waiting
                assert set(action.names) <= self.names
                self.asked[action.job.id] = action.names
            else:
                assert action.job.id in self.waiting, "dispatched twice, or never arrived"
                assert action.name in self.names
                self.waiting.discard(action.job.id)
                self.asked.pop(action.job.id, None)
                self.where[action.job.id] = action.name
        assert self.desk.waiting == len(self.waiting)
        for view in self.desk._lanes.views:
            there = [name for name in self.where.values() if name == view.name]
            assert view.mirror is not None
            assert len(view.mirror) == view.in_flight <= 3
            assert view.in_flight <= len(there)

    def step(self, what: str, which: int) -> None:
        self.now_s += 0.02 + which / 1000
        placed, asked = sorted(self.where), sorted(self.asked)
        if what == "arrive":
            self.count += 1
            self.waiting.add(str(self.count))
            prompt = 1 + (which * 97) % 3000
            prefix = tuple(range(prompt // 100)) if which % 2 else ()
            self.take(
                self.desk.arrived(job(str(self.count), prompt, 1 + which, self.now_s, prefix, str(which % 5)), self.now_s)
            )
        elif what in ("token", "finish", "lose") and placed:
            name = placed[which % len(placed)]
            if what == "token":
                self.take(self.desk.first_token(name, self.now_s))
            else:
                del self.where[name]
                self.take(self.desk.finished(name, 5, self.now_s) if what == "finish" else self.desk.lost(name, self.now_s))
        elif what == "lose" and self.waiting:
            name = sorted(self.waiting)[which % len(self.waiting)]
            self.waiting.discard(name)
            self.asked.pop(name, None)
            self.take(self.desk.lost(name, self.now_s))
        elif what == "tick":
            self.take(self.desk.tick(self.now_s))
        elif what == "probed" and asked:
            self.answer(asked[which % len(asked)], which)
        elif what == "add":
            self.add(NAMES[which % 3])
        elif what == "remove" and len(self.names) > 1:
            name = sorted(self.names)[which % len(self.names)]
            self.names.discard(name)
            self.desk.removed(name)

    def answer(self, name: str, which: int) -> None:
        replies: dict[str, ProbeReply | None] = {n: reply(1.0 + which % 3) for n in self.asked.pop(name)}
        if which % 4 == 0:
            replies.popitem()
        elif which % 4 == 1:
            replies[next(iter(replies))] = None
        self.take(self.desk.probed(name, replies, self.now_s))

    def settle(self) -> None:
        """Everything ends, with no new arrivals: then nobody may be left."""
        for _ in range(3 * self.count + 10):
            for which in range(3):
                self.step("add", which)
            for name in sorted(self.asked):
                self.answer(name, 2)
            for name in sorted(self.where):
                del self.where[name]
                self.take(self.desk.finished(name, 5, self.now_s))
            self.take(self.desk.tick(self.now_s))
            if not self.waiting and not self.where:
                return
        raise AssertionError(f"still waiting: {self.waiting}")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(("plan", *sorted({*COUNTING, *PROBING}))),
    st.booleans(),
    st.sampled_from(("late", "early")),
    st.integers(0, 99),
    EVENTS,
)
def test_every_job_is_dispatched_at_most_once_and_none_is_lost(
    policy: PolicyName, sidecar: bool, binding: str, seed: int, events: list[tuple[str, int]]
) -> None:
    rig = Rig(policy, sidecar, binding, seed)
    for what, which in events:
        rig.step(what, which)
    rig.settle()


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_waiting_is_bounded_however_many_shorter_ones_come(seed: int) -> None:
    """Ten times what can be served: who comes long enough after a long one does not overtake it."""
    by_size = last_to_overtake(seed, turn_after=0.0)
    assert 15.0 < by_size <= 25.0, "(900 + 0.3 x 7000) / 120 = 25 s of waiting weigh as much as its length"
    assert last_to_overtake(seed, age_s=40.0) <= 40.0


def last_to_overtake(seed: int, **rule: float) -> float:
    """When the last one came that went before a long one, which came first of all."""
    rng, made, now_s = Random(seed), desk("plan", ("a",), age_rate=120.0, **rule), 0.0
    live = sent(made.arrived(job("first", 2000, 20), now_s))
    for number in range(40):
        assert made.arrived(job(f"0 {number}", 300, 20), now_s) == []
    assert made.arrived(job("long", 7000, 900), now_s) == []
    came_s = dict.fromkeys(("first", *(f"0 {number}" for number in range(40))), 0.0)
    overtook_s = 0.0
    while "long" not in live:
        now_s += 0.1
        for number in range(4):
            name = f"{now_s:.1f} {number}"
            came_s[name] = now_s
            live += sent(made.arrived(job(name, rng.randint(50, 500), 20, now_s), now_s))
        overtook_s = max([overtook_s, *(came_s[name] for name in live if name != "long")])
        for name in live[:1]:
            live += sent(made.first_token(name, now_s)) + sent(made.finished(name, 20, now_s))
        live = live[1:] if "long" not in live else live
        assert now_s < 200.0
    return overtook_s
