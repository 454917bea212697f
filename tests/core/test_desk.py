"""The desk: every job goes out at most once, none is lost, and what cannot be predicted goes down the ladder."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from gateway.config import ModelSpec, PolicyName
from gateway.desk import Action, Desk, Dispatch, EngineView, Job, Probe
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply

PROFILE = StepProfile(0.010, 100e-6, 50e-6, 0.0)
LIMITS = EngineLimits(1000, 16, 8, 512, 8192)
NAMES = ("a", "b", "c")


def job(
    name: str, prompt: int = 1000, output: int = 50, at_s: float = 0.0, prefix: tuple[int, ...] = (), session: str = ""
) -> Job:
    return Job(name, "m", prompt, LengthEstimate(output, output, output, "test"), at_s, prefix, session, 100)


def desk(
    policy: PolicyName = "plan", names: tuple[str, ...] = NAMES, *, own: bool = True, reserves: bool = False, **rule: object
) -> Desk:
    spec = replace(ModelSpec("m", policy, ahead_tokens=0), **rule)  # type: ignore[arg-type]
    made = Desk(spec, Random(1), own_dispatches=own, reserves=reserves)
    for name in names:
        made.added(name, EngineView(PROFILE, LIMITS))
    return made


def beside(
    policy: PolicyName, names: tuple[str, ...] = NAMES, *, own: bool = True, reserves: bool = False, **rule: object
) -> Desk:
    """A desk whose replicas have sidecars."""
    made = desk(policy, (), own=own, reserves=reserves, **rule)
    for name in names:
        made.added(name, EngineView(PROFILE, LIMITS, sidecar=True))
    return made


def reply(e2e_s: float, age_s: float = 0.0, **changed: int) -> ProbeReply:
    return replace(ProbeReply(Estimate(e2e_s / 2, 0.01, e2e_s), 0, 0, 500, 0, 0, age_s), **changed)  # type: ignore[arg-type]


def sent(actions: list[Action]) -> list[tuple[str, str]]:
    assert all(isinstance(action, Dispatch) for action in actions)
    return [(action.job.id, action.name) for action in actions if isinstance(action, Dispatch)]


# -- the plan's life


def test_a_dialogue() -> None:
    made = desk(names=("a", "b"))
    assert sent(made.arrived(job("1"), 0.0)) == [("1", "a")]
    assert sent(made.arrived(job("2"), 0.0)) == [("2", "b")]
    assert (made.arrived(job("3"), 0.0), made.waiting, made.held_total) == ([], 1, 1)
    assert made.due_s == pytest.approx(0.0612), "then the last chunk of the first prompt begins"
    assert made.tick(0.03) == []
    assert sent(made.tick(made.due_s)) == [("3", "a")]
    assert (made.waiting, made.due_s) == (0, math.inf)
    assert made.first_token("1", 0.13) == []
    assert made.finished("1", 50, 0.9) == []
    assert made.lost("2", 0.9) == []
    assert [view.in_flight for view in made._lanes.views] == [1, 0]


def test_a_first_token_or_an_end_or_a_loss_lets_the_next_one_go() -> None:
    for event in ("first_token", "finished", "lost"):
        made = desk(names=("a",))
        made.arrived(job("1", 8000), 0.0)
        assert made.arrived(job("2"), 0.0) == []
        actions = {
            "first_token": lambda made=made: made.first_token("1", 0.2),
            "finished": lambda made=made: made.finished("1", 5, 0.2),
            "lost": lambda made=made: made.lost("1", 0.2),
        }[event]()
        assert sent(actions) == [("2", "a")], event


def test_an_estimate_and_a_hit_come_with_the_dispatch() -> None:
    made = desk(names=("a",))
    prefix = tuple(range(10))
    (first,) = made.arrived(job("1", prefix=prefix), 0.0)
    made.first_token("1", 0.12)
    made.finished("1", 50, 0.5)
    (second,) = made.arrived(job("2", prefix=prefix), 1.0)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert (first.hit_tokens, second.hit_tokens, second.reason) == (0, 900, "plan")
    assert first.estimate_s == pytest.approx(0.12)
    assert second.estimate_s == pytest.approx(0.02)


def test_early_binding_holds_nobody_back() -> None:
    made = desk(binding="early")
    assert len([made.arrived(job(str(n)), 0.0) for n in range(30)]) == 30
    assert made.waiting == 0
    assert sorted(view.in_flight for view in made._lanes.views) == [10, 10, 10]


def test_early_and_late_price_alike() -> None:
    prefix = tuple(range(10))
    for binding in ("early", "late"):
        made = desk(binding=binding)
        ((_, home),) = sent(made.arrived(job("1", prefix=prefix), 0.0))
        made.finished("1", 50, 0.5)
        assert sent(made.arrived(job("2", prefix=prefix), 1.0)) == [("2", home)]


@pytest.mark.parametrize("binding", ["late", "early"])
def test_who_seemed_slow_once_is_tried_again_while_others_are_idle(binding: str) -> None:
    """One request after another, each over before the next: without a try nobody would ever learn that it is slow no more.
    One that is slow indeed gets one in twenty at most, and none within a minute."""
    made = desk(names=("a", "b"), binding=binding)
    made._lanes.all[1].mirror.pace = 2.0
    homes = []
    for number in range(300):
        ((_, home),) = sent(made.arrived(job(str(number)), 2.0 * number))
        made.first_token(str(number), 2.0 * number + 0.2)
        made.finished(str(number), 50, 2.0 * number + 1.0)
        homes.append(home)
    tries = [number for number, home in enumerate(homes) if home == "b"]
    assert len(tries) == 9
    assert min(later - earlier for earlier, later in pairwise(tries)) > 30, "a minute after the last one ended"
    made._lanes.all[1].mirror.pace = 1.0
    assert {sent(made.arrived(job(f"{number} more"), 601.0))[0][1] for number in range(2)} == {"a", "b"}


def test_a_try_is_one_request_of_a_burst() -> None:
    made = desk(names=("a", "b"), ahead_tokens=100_000)
    made._lanes.all[1].mirror.pace = 20.0
    homes = [sent(made.arrived(job(str(number), 10, 20), 100.0))[0][1] for number in range(7)]
    assert homes == ["a"] * 7, "it was passed by too few"
    for number in range(7):
        made.finished(str(number), 20, 101.0)
    for number in range(13):
        ((_, home),) = sent(made.arrived(job(f"{number} later", 10, 20), 200.0 + number))
        assert home == "a"
        made.finished(f"{number} later", 20, 200.5 + number)
    homes = [sent(made.arrived(job(f"{number} at last", 10, 20), 300.0))[0][1] for number in range(6)]
    assert homes == ["b"] + ["a"] * 5


def test_nobody_there_means_waiting_until_somebody_comes() -> None:
    for policy in ("plan", "po2", "random"):
        made = desk(policy, ())
        assert (made.arrived(job("1"), 0.0), made.waiting) == ([], 1)
        made.added("a", EngineView(PROFILE, LIMITS))
        assert sent(made.tick(1.0)) == [("1", "a")], policy


def test_a_removed_replica_gets_nothing_and_its_jobs_end() -> None:
    made = desk(names=("a", "b"))
    made.arrived(job("1"), 0.0)
    made.removed("a")
    assert sent(made.arrived(job("2"), 0.0)) == [("2", "b")]
    assert made.arrived(job("3"), 0.0) == []
    assert made.first_token("1", 0.01) == []
    assert made.finished("1", 3, 0.02) == []
    assert sent(made.first_token("2", 0.3)) == [("3", "b")]


def test_who_failed_there_may_arrive_again_and_goes_elsewhere() -> None:
    made = desk(names=("a", "b"))
    assert sent(made.arrived(job("1"), 0.0)) == [("1", "a")]
    made.lost("1", 0.1)
    assert sent(made.arrived(job("1"), 0.1, frozenset("a"))) == [("1", "b")]
    made.lost("1", 0.2)
    assert (made.arrived(job("1"), 0.2, frozenset("ab")), made.waiting) == ([], 1)
    assert made.lost("1", 0.3) == []
    assert made.waiting == 0


def test_who_insists_waits_no_longer() -> None:
    made = desk(names=("a", "b"))
    made.sync([EngineView(PROFILE, LIMITS, max_in_flight=2).view(name) for name in ("a", "b")])
    for name in "1234":
        made.arrived(job(name, 8000), 0.0)
    assert made.waiting == 2
    assert sent(made.insist("4", 0.01)) == [("4", "a")]
    assert made.insist("4", 0.01) == []
    assert made.insist("unknown", 0.01) == []
    assert sent(made.insist("3", 0.01)) == [("3", "b")]
    made.arrived(job("5"), 0.02)
    assert (made.insist("5", 0.03), made.waiting) == ([], 1), "nobody has a place at all"


def test_others_views_may_be_shared() -> None:
    made = desk(names=())
    views = (EngineView(PROFILE, LIMITS).view("a"), EngineView(PROFILE, LIMITS).view("b"))
    made.sync(views)
    lanes = made._lanes.all
    made.sync(views)
    assert made._lanes.all is lanes
    assert sent(made.arrived(job("1"), 0.0)) == [("1", "a")]
    assert views[0].in_flight == 1
    made.sync(views[:1])
    assert made._lanes.all[0] is lanes[0]


# -- what cannot be predicted


def test_a_wrong_profile_s_score_goes_down_the_ladder_and_waits_for_nobody() -> None:
    made = desk(names=("a", "b"))
    for lane in made._lanes.all:
        lane.mirror.pace = math.nan
    got = [sent(made.arrived(job(str(n)), 0.0))[0][1] for n in range(6)]
    assert (sorted(got), made.waiting) == (["a"] * 3 + ["b"] * 3, 0)
    assert made.ladder.counts == {"nan": 6}
    assert made.rule.binding == "late"


@pytest.mark.parametrize("binding", ["late", "early"])
def test_an_error_above_its_limit_is_not_planned_with(binding: str) -> None:
    made = desk(binding=binding, error_limit=4.0)
    made._lanes.all[1].mirror.error = math.log(4.1)
    (action,) = made.arrived(job("1"), 0.0)
    assert isinstance(action, Dispatch)
    assert action.reason == "fallback: error"
    assert made.ladder.counts == {"error": 1}


def test_who_is_off_too_far_holds_back_all_the_same() -> None:
    """A burst of prompts while first tokens come much later than foretold: one for each engine, the rest in their order as
    those answer. All at once they would queue in the engines, where first tokens would come later still."""
    made = desk(names=("a", "b"), error_limit=4.0, age_rate=0.0)
    for lane in made._lanes.all:
        lane.mirror.error = math.log(9.0)
    prompts = {"1": 4000, "2": 4000, "long": 3000, "short": 500, "middle": 1500}
    first = [sent(made.arrived(job(name, prompt), 0.0)) for name, prompt in prompts.items()]
    assert sorted(name for pairs in first for _, name in pairs) == ["a", "b"]
    assert made.waiting == 3
    order = []
    for answered in ("1", "2", "short"):
        order += [name for name, _ in sent(made.first_token(answered, 0.001))]
    assert order == ["short", "middle", "long"]
    assert made.ladder.counts == {"error": 5}
    assert made.waiting == 0


def test_a_line_held_by_what_is_off_too_far_looks_again_by_itself() -> None:
    made = desk(names=("a",), error_limit=4.0)
    made._lanes.all[0].mirror.error = math.log(9.0)
    assert len(sent(made.arrived(job("1"), 0.0))) == 1
    assert made.arrived(job("2"), 0.0) == []
    assert 0.0 < made.due_s < math.inf
    assert len(sent(made.tick(made.due_s))) == 1


def test_a_view_without_a_mirror_cannot_be_planned_with() -> None:
    made = desk()
    made.sync([*made._lanes.views[:2], EngineView(PROFILE, LIMITS).view("d")])
    made._lanes.views[1].mirror = None
    made.sync(list(made._lanes.views))
    (action,) = made.arrived(job("1"), 0.0)
    assert isinstance(action, Dispatch)
    assert (action.reason, made.ladder.counts) == ("fallback: missing", {"missing": 1})


def test_probing_goes_out_comes_back_and_decides() -> None:
    made = beside("po2", ("a", "b"))
    (probe,) = made.arrived(job("1"), 0.0)
    assert isinstance(probe, Probe)
    assert (sorted(probe.names), made.waiting) == (["a", "b"], 1)
    (action,) = made.probed("1", {"a": reply(2.0), "b": reply(1.0)}, 0.03)
    assert isinstance(action, Dispatch)
    assert (action.name, action.reason, action.estimate_s, made.waiting) == ("b", "po2", 0.5, 0)
    assert made.probed("1", {"a": reply(2.0)}, 0.04) == [], "an answer twice"
    assert made.probed("unknown", {}, 0.04) == []


BAD: dict[str, Mapping[str, ProbeReply | None]] = {
    "late": {"a": reply(1.0)},
    "missing": {"a": reply(1.0), "b": None},
    "stale": {"a": reply(1.0), "b": reply(0.5, age_s=3.0)},
    "nan": {"a": reply(1.0), "b": reply(math.nan)},
    "negative": {"a": reply(1.0), "b": reply(-3.0)},
    "garbage": {"a": reply(1.0), "b": reply(math.inf)},
    "error": {"a": reply(1.0), "b": replace(reply(1.0), estimate=Estimate(0.1, 0.1, 0.2, spread=99.0))},
}


@pytest.mark.parametrize("cause", sorted(BAD))
def test_one_bad_reply_sends_all_candidates_down_the_ladder(cause: str) -> None:
    made = beside("po2", ("a", "b"))
    made.arrived(job("busy"), 0.0)
    made.probed("busy", {"a": reply(1.0), "b": reply(2.0)}, 0.0)
    made.arrived(job("1"), 0.0)
    (action,) = made.probed("1", BAD[cause], 0.02)
    assert isinstance(action, Dispatch)
    assert (action.name, action.reason) == ("b", f"fallback: {cause}"), "a has the other one's tokens"
    assert made.ladder.counts == {cause: 1}


def test_own_dispatches_are_added_to_what_a_reply_could_not_know() -> None:
    """Two arrive together and get the same replies: the second does not follow the first."""
    for own, second in ((True, "b"), (False, "a")):
        made = beside("po2", ("a", "b"), own=own)
        made.arrived(job("1"), 0.0)
        made.arrived(job("2"), 0.0)
        replies = {"a": reply(1.0, age_s=0.2), "b": reply(1.05, age_s=0.2)}
        assert sent(made.probed("1", replies, 0.1)) == [("1", "a")]
        assert sent(made.probed("2", replies, 0.1)) == [("2", second)]


def test_a_dispatch_that_was_reserved_before_the_probe_counts_once() -> None:
    replies = {"a": reply(1.0, age_s=0.2), "b": reply(1.05, age_s=0.2)}
    for reserves, second in ((False, "b"), (True, "a")):
        made = beside("po2", ("a", "b"), reserves=reserves)
        made.arrived(job("1"), 0.0)
        assert sent(made.probed("1", replies, 0.1)) == [("1", "a")]
        made.arrived(job("2"), 0.11)
        assert sent(made.probed("2", replies, 0.12)) == [("2", second)], "the reply at 0.12 knows of the reservation at 0.1"
    made.arrived(job("3"), 0.13)
    made.arrived(job("4"), 0.13)
    assert sent(made.probed("3", replies, 0.14)) == [("3", "a")]
    assert sent(made.probed("4", replies, 0.14)) == [("4", "b")], "asked before the third was reserved"


def test_counts_know_own_dispatches_as_well() -> None:
    made = beside("llumnix", ("a", "b"))
    for name in "12":
        made.arrived(job(name), 0.0)
    replies = {"a": reply(1.0, 0.2, free_blocks=100), "b": reply(1.0, 0.2, free_blocks=90)}
    assert sent(made.probed("1", replies, 0.1)) == [("1", "a")]
    assert sent(made.probed("2", replies, 0.1)) == [("2", "b")]


def test_where_it_stood_in_the_line_is_asked_with_and_told_after_the_probe() -> None:
    made = Desk(ModelSpec("m", "po2", order="mh"), Random(1))
    made.added("a", EngineView(PROFILE, LIMITS, max_in_flight=1, sidecar=True))
    made.arrived(job("first"), 0.0)
    made.probed("first", {"a": reply(1.0)}, 0.0)
    assert made.arrived(replace(job("doomed", at_s=0.1), deadline_s=0.3), 0.1) == []
    assert made.tick(1.1) == []
    (probe,) = made.finished("first", 50, 2.1)
    assert isinstance(probe, Probe)
    assert (probe.tier, probe.job.deadline_s) == (2, 0.3)
    (action,) = made.probed("doomed", {"a": reply(1.0)}, 2.2)
    assert isinstance(action, Dispatch)
    assert (action.tier, action.second_s) == (2, probe.second_s)
    assert probe.second_s > 0.5


def test_a_length_that_comes_while_it_is_probed_is_what_it_goes_with() -> None:
    made = beside("po2")
    made.arrived(job("1"), 0.0)
    longer = LengthEstimate(300, 400, 500, "late")
    assert made.revise("1", longer, 0.01) == []
    (action,) = made.probed("1", {name: reply(1.0) for name in NAMES}, 0.02)
    assert isinstance(action, Dispatch)
    assert action.job.lengths == longer
    (seat,) = next(view.mirror.seats for view in made._lanes.views if view.name == action.name and view.mirror is not None)
    assert seat.rest.median == 400


def test_a_job_that_leaves_while_it_is_probed_is_gone() -> None:
    made = beside("po2")
    made.arrived(job("1"), 0.0)
    assert made.lost("1", 0.01) == []
    assert (made.probed("1", {}, 0.02), made.waiting) == ([], 0)


def test_candidates_that_closed_meanwhile_are_replaced() -> None:
    made = beside("po2", ("a", "b", "c"))
    (probe,) = made.arrived(job("1"), 0.0)
    assert isinstance(probe, Probe)
    made.removed(probe.names[0])
    left = probe.names[1]
    assert sent(made.probed("1", {name: reply(1.0) for name in probe.names}, 0.1)) == [("1", left)]
    (probe,) = made.arrived(job("2"), 0.2)
    assert isinstance(probe, Probe)
    for name in probe.names:
        made.removed(name)
    assert (made.probed("2", {}, 0.3), made.waiting) == ([], 1)


def test_without_sidecars_predictions_are_made_here() -> None:
    made = desk("po2", ("a", "b"))
    made.arrived(job("1", 5000), 0.0)
    first = made._lanes.views[0].in_flight
    (action,) = made.arrived(job("2"), 0.001)
    assert isinstance(action, Dispatch)
    assert (action.name, action.reason) == ("b" if first else "a", "po2")
    assert action.estimate_s == pytest.approx(0.12)
