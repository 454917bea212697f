"""Policies that rest on reports, predictions or the mirror: a table of cases for each, and what judges a reply."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from gateway.config import ModelSpec, PolicyName
from gateway.jobs import Job
from gateway.policies.base import PAIR_VIEWS_MAX, pair
from gateway.policies.counts import Ring
from gateway.policies.ladder import Ladder, judge
from gateway.policies.peers import LlmDHeadroom
from gateway.policies.table import PROBING
from gateway.views import View
from predictor.mirror import Mirror
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply

PROFILE = StepProfile(0.010, 100e-6, 50e-6, 1e-9)
LIMITS = EngineLimits(1000, 16, 8, 512, 8192)
LENGTHS = LengthEstimate(10, 50, 100, "test")
README = Path(__file__).parents[2] / "README.md"


def job(name: str = "new", prompt: int = 1000, prefix: tuple[int, ...] = (), session: str = "") -> Job:
    return Job(name, "m", prompt, LENGTHS, 0.0, prefix, session, 100)


def reply(
    e2e_s: float = 1.0,
    ttft_s: float = 0.5,
    running: int = 1,
    waiting: int = 0,
    free: int = 500,
    needed: int = 0,
    tokens: int = 0,
) -> ProbeReply:
    return ProbeReply(Estimate(ttft_s, 0.02, e2e_s), running, waiting, free, needed, tokens, 0.0)


def views(count: int = 3) -> list[View]:
    return [View(name, mirror=Mirror(PROFILE, LIMITS)) for name in "abcdefgh"[:count]]


def chosen(
    name: PolicyName, replies: Sequence[ProbeReply], asked: Job | None = None, *, rule: Mapping[str, object] | None = None
) -> str:
    there = views(len(replies))
    made = PROBING[name](replace(ModelSpec("m", name), **(rule or {})), Random(1))  # type: ignore[arg-type]
    known = {view.name: one for view, one in zip(there, replies, strict=True)}
    return made.choose(asked or job(), there, 0.0, known).name


CASES: list[tuple[PolicyName, list[ProbeReply], str]] = [
    ("po2", [reply(3.0, 0.1), reply(2.0, 1.0)], "b"),
    ("po2", [reply(2.0), reply(3.0)], "a"),
    ("pod", [reply(3.0), reply(2.0), reply(2.5)], "b"),
    ("fanout", [reply(3.0), reply(2.0), reply(1.5), reply(9.0)], "c"),
    ("min_requests", [reply(running=4, waiting=1), reply(running=1, waiting=3), reply(running=9)], "b"),
    ("infaas", [reply(free=100, running=1), reply(free=300, running=4), reply(free=90, running=0)], "a"),
    ("infaas", [reply(free=100, running=2), reply(free=60, running=0)], "b"),
    ("llumnix", [reply(free=100, needed=90, running=1), reply(free=100, needed=20, running=2)], "b"),
    ("llumnix", [reply(free=100, needed=90, running=1), reply(free=100, needed=20, running=20)], "a"),
    ("llumnix", [reply(free=10, needed=90), reply(free=10, needed=91)], "a"),
    ("nosim", [reply(tokens=500), reply(tokens=499), reply(tokens=900)], "b"),
    ("llmd", [reply(waiting=2, free=500), reply(waiting=0, free=400)], "b"),
    ("llmd", [reply(waiting=1, free=100), reply(waiting=1, free=101)], "b"),
    ("llmd_headroom", [reply(ttft_s=0.5), reply(ttft_s=1.9), reply(ttft_s=2.1)], "b"),
    ("llmd_headroom", [reply(ttft_s=9.0, e2e_s=9.5), reply(ttft_s=3.0, e2e_s=9.0)], "b"),
    ("smg_least_load", [reply(free=500), reply(free=400)], "a"),
    ("cache_aware", [reply(), reply()], "b"),
    ("dynamo", [reply(), reply()], "b"),
]


def test_every_policy_has_its_cases_here_and_its_line_in_the_readme() -> None:
    own = {"bounded_hash"}  # see below
    assert {name for name, _, _ in CASES} | own == set(PROBING)
    table = re.findall(r"^\| (`[^|]*`) \|", README.read_text(), re.MULTILINE)
    told = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert told >= {name for name in get_args(PolicyName) if name != "auto"}


@pytest.mark.parametrize(("name", "replies", "winner"), CASES)
def test_the_least_score_wins(name: PolicyName, replies: list[ProbeReply], winner: str) -> None:
    if name in ("cache_aware", "dynamo"):
        there = views(2)
        there[0].sent(0.0)
        assert there[0].mirror is not None
        there[0].mirror.dispatched(job("x"), 0, 0.0)
        assert PROBING[name](ModelSpec("m", name), Random(1)).choose(job(), there, 0.0, {}).name == winner
    else:
        assert chosen(name, replies) == winner


def test_ties_are_drawn() -> None:
    for name in ("fanout", "infaas", "llumnix", "nosim", "min_requests", "llmd", "smg_least_load"):
        made = PROBING[name](ModelSpec("m"), Random(5))
        there = views(3)
        same = {view.name: reply() for view in there}
        assert {made.choose(job(), there, 0.0, same).name for _ in range(60)} == {"a", "b", "c"}, name


def test_the_objective_may_be_ttft() -> None:
    replies = [reply(3.0, 0.1), reply(2.0, 1.0)]
    assert chosen("po2", replies, rule={"objective": "ttft"}) == "a"


@pytest.mark.parametrize(
    ("name", "d", "drawn"),
    [("po2", 5, 2), ("pod", 3, 3), ("pod", 1, 1), ("pod", 99, 6), ("fanout", 2, 6), ("llumnix", 2, 6), ("dynamo", 2, 0)],
)
def test_how_many_are_asked(name: PolicyName, d: int, drawn: int) -> None:
    made = PROBING[name](ModelSpec("m", name, d), Random(2))
    there = views(6)
    for _ in range(20):
        asked = made.drawn(job(), there)
        assert (len(asked), len({view.name for view in asked})) == (drawn, drawn)


def test_every_pair_is_drawn() -> None:
    made, there = PROBING["po2"](ModelSpec("m"), Random(3)), views(4)
    pairs = {frozenset(view.name for view in made.drawn(job(), there)) for _ in range(200)}
    assert len(pairs) == 6


# -- peers


def holder(there: Sequence[View], at: int, prefix: tuple[int, ...]) -> None:
    mirror = there[at].mirror
    assert mirror is not None
    mirror.dispatched(job(f"old{at}", prefix=prefix), 0, 0.0)
    mirror.first_token(f"old{at}", 0.2)
    mirror.finished(f"old{at}", 0.3)


PREFIX = tuple(range(10))


def pick(name: PolicyName, there: Sequence[View], asked: Job, replies: Mapping[str, ProbeReply] | None = None) -> str:
    known = replies or {view.name: reply() for view in there}
    return PROBING[name](ModelSpec("m", name), Random(1)).choose(asked, there, 1.0, known).name


def test_cache_aware_goes_to_the_best_match_unless_loads_are_far_apart() -> None:
    there = views(3)
    holder(there, 2, PREFIX)
    there[2].in_flight = 60
    assert pick("cache_aware", there, job(prefix=PREFIX)) == "c"
    there[2].in_flight = 65
    there[0].in_flight = 3
    assert pick("cache_aware", there, job(prefix=PREFIX)) == "b", "more than 64 apart"
    there[0].in_flight, there[1].in_flight, there[2].in_flight = 200, 201, 270
    assert pick("cache_aware", there, job(prefix=PREFIX)) == "c", "64 apart, but not 1.5 times"
    assert pick("cache_aware", there, job(prefix=(*PREFIX[:3], 77))) == "a", "0.3 of the prompt is not above 0.3"
    assert pick("cache_aware", there, job(prefix=(*PREFIX[:4], 77))) == "c"


def test_llmd_weighs_hits_queue_and_memory() -> None:
    there = views(2)
    holder(there, 0, PREFIX)
    asked = job(prefix=PREFIX)
    assert pick("llmd", there, asked, {"a": reply(waiting=5), "b": reply(waiting=0)}) == "a", "3 x 0.9 against 2"
    half = job(prefix=(*PREFIX[:5], 99))
    assert pick("llmd", there, half, {"a": reply(waiting=5), "b": reply(waiting=0)}) == "b", "3 x 0.5 against 2"


def test_headroom_explores_now_and_then() -> None:
    made = LlmDHeadroom(ModelSpec("m", ttft_target_s=2.0), Random(4))
    there = views(2)
    replies = {"a": reply(ttft_s=1.0, e2e_s=5), "b": reply(ttft_s=3.0, e2e_s=5)}
    names = [made.choose(job(), there, 0.0, replies).name for _ in range(3000)]
    assert 5 <= names.count("b") <= 90


def test_dynamo_counts_prompts_in_full_until_their_first_token() -> None:
    there = views(2)
    mirrors = [view.mirror for view in there]
    assert mirrors[0] is not None
    assert mirrors[1] is not None
    mirrors[0].dispatched(job("x", 1000), 0, 0.0)
    mirrors[1].dispatched(job("y", 1500), 0, 0.0)
    assert pick("dynamo", there, job()) == "a"
    mirrors[1].first_token("y", 0.5)
    assert pick("dynamo", there, job()) == "b", "1000 + 1000 + 1000 against 1000 + 1500"
    holder(there, 0, PREFIX)
    assert pick("dynamo", there, job(prefix=PREFIX)) == "a", "900 less to compute"


def test_dynamo_s_temperature_spreads() -> None:
    there = views(2)
    assert there[0].mirror is not None
    there[0].mirror.dispatched(job("x", 1000), 0, 0.0)
    made = PROBING["dynamo"](ModelSpec("m", "dynamo", temperature=1.0), Random(6))
    names = [made.choose(job(), there, 0.0, {}).name for _ in range(2000)]
    assert names.count("a") / 2000 == pytest.approx(1 / (1 + math.e), abs=0.04)


def test_bounded_hash_keeps_a_prefix_together_up_to_the_bound() -> None:
    there = views(4)
    home = pick("bounded_hash", there, job(prefix=PREFIX))
    assert {pick("bounded_hash", there, job(prefix=(PREFIX[0], n))) for n in range(50)} == {home}
    assert len({pick("bounded_hash", there, job(prefix=(n,))) for n in range(200)}) == 4
    by_name = {view.name: view for view in there}
    by_name[home].in_flight = 5
    assert pick("bounded_hash", there, job(prefix=PREFIX)) != home, "6 is more than 1.25 x 6 / 4"
    assert pick("bounded_hash", there, job(session="s")) == pick("bounded_hash", there, job(session="s"))
    assert pick("bounded_hash", there, job()) != home


def test_a_ring_walks_over_all_names_once() -> None:
    ring, names = Ring(16), {f"n{i}" for i in range(7)}
    for key in ("x", "y", "z"):
        onward = ring.onward(key, names)
        assert (set(onward), len(onward)) == (names, 7)
        assert ring.home(key, names) == onward[0]
        assert ring.onward(key, names - {onward[0]}) == onward[1:]


def test_views_without_a_mirror_are_still_comparable() -> None:
    bare = [View("a"), View("b")]
    bare[0].sent(0.0)
    for name in ("smg_least_load", "cache_aware", "dynamo", "bounded_hash"):
        assert pick(name, bare, job(), {"a": reply(tokens=5), "b": reply(tokens=1)}) == "b"  # type: ignore[arg-type]


# -- judging replies, and the ladder

RULE = ModelSpec("m", "po2", stale_s=2.0, error_limit=4.0)
BAD_COUNTS = {"running": -1, "free_blocks": -5, "queued_tokens": -1}


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (None, "missing"),
        (replace(reply(), snapshot_age_s=2.1), "stale"),
        (replace(reply(), snapshot_age_s=math.nan), "nan"),
        (replace(reply(), snapshot_age_s=-0.1), "negative"),
        (reply(math.nan), "nan"),
        (reply(1.0, math.nan), "nan"),
        (reply(-1.0, -2.0), "negative"),
        (reply(math.inf), "garbage"),
        (reply(1e9), "garbage"),
        (reply(1.0, 5.0), "garbage"),
        (replace(reply(), estimate=Estimate(0.5, 0.01, 1.0, spread=4.1)), "error"),
        (replace(reply(), estimate=Estimate(0.5, 0.01, 1.0, spread=math.nan)), "error"),
        *((replace(reply(), **{key: value}), "negative") for key, value in BAD_COUNTS.items()),
        (reply(), ""),
        (reply(0.5, 0.5), ""),
    ],
)
def test_replies_are_judged(bad: ProbeReply | None, cause: str) -> None:
    assert judge(bad, RULE, predicts=True) == cause


def test_counts_alone_may_be_good_where_nothing_is_predicted() -> None:
    assert judge(replace(reply(), estimate=Estimate.unknown), RULE, predicts=False) == ""
    assert judge(replace(reply(), estimate=Estimate.unknown), RULE, predicts=True) == "nan"
    assert judge(replace(reply(), waiting=-1), RULE, predicts=False) == "negative"


def test_the_ladder_s_rungs() -> None:
    ladder, there = Ladder(Random(1)), views(3)
    assert {ladder.choose(there, "late").name for _ in range(50)} == {"a", "b", "c"}, "random among equals"
    for at, tokens in enumerate((900, 100, 500)):
        mirror = there[at].mirror
        assert mirror is not None
        mirror.dispatched(job(str(at), tokens), 0, 0.0)
    there[1].in_flight = 50
    assert ladder.choose(there, "nan").name == "b", "fewest tokens, whatever the requests"
    there[0].mirror = None
    there[2].in_flight = 1
    assert ladder.choose(there, "nan").name == "a", "without a mirror somewhere: fewest requests"
    assert ladder.counts == {"late": 50, "nan": 2}


def test_the_ladder_minds_weights() -> None:
    there = [View("a", weight=4.0), View("b", weight=1.0)]
    there[0].in_flight, there[1].in_flight = 3, 1
    assert Ladder(Random(1)).choose(there, "x").name == "a"


def test_pair_draws_what_a_sample_of_two_draws() -> None:
    for count in range(2, PAIR_VIEWS_MAX + 1):
        there = [View(str(number)) for number in range(count)]
        one, other = Random(count), Random(count)
        for _ in range(50):
            assert pair(there, one) == other.sample(there, 2)
