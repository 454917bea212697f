"""What is learnt as records and back: the same is told, whatever was learnt; and a record of any other kind is refused."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import Identity
from gateway.config import BackendSpec
from gateway.engines import Engines
from gateway.replica import Replica
from predictor.cost import GB, PLACES, Place, SwapCosts
from predictor.features import FEATURES, Cues
from predictor.hosts import host_profiles
from predictor.kept import Keeper, Kept, KeptError
from predictor.layers import TRAINED
from predictor.length import KEPT_FROM, Guess, LengthTagger
from predictor.pace import Pace

HOSTS = host_profiles()
MODELS, ROUTES = ("m", "other"), ("chat", "completions", "")
WAYS: tuple[tuple[Place, Place], ...] = (("disk", "gpu"), ("gpu", "asleep1"), ("asleep1", "gpu"))


def lines(keeper: Keeper) -> list[bytes]:
    """As in a file."""
    return [orjson.dumps(state) for state in keeper.states()]


def taken_over(keeper: Keeper, fresh: Keeper) -> None:
    for line in lines(keeper):
        fresh.restore(Kept(orjson.loads(line)))


def cues(rng: random.Random, words: int = 0) -> Cues:
    return Cues(tuple([rng.uniform(0.0, 8.0) for _ in FEATURES]), tuple([rng.randrange(16_384) for _ in range(words)]))


def guesses(rng: random.Random) -> dict[str, Guess]:
    logs = {source: rng.uniform(1.0, 9.0) for source in TRAINED if rng.random() < 0.7}
    return {source: Guess(max(0.0, log - 1), log, log + 1, source) for source, log in logs.items()}


def learn(tagger: LengthTagger, rng: random.Random, answers: int, words: int = 0) -> None:
    for _ in range(answers):
        told = cues(rng, words) if rng.random() < 0.9 else None
        tag = tagger.tag(rng.choice(MODELS), rng.choice(ROUTES), told, guesses(rng), rng.choice((-1, 100)))
        tagger.observe(tag, round(rng.lognormvariate(5.0, 1.0)), rng.random() < 0.1)


def asked(tagger: LengthTagger, rng: random.Random) -> list[object]:
    found: list[object] = []
    for _ in range(20):
        model, route = rng.choice((*MODELS, "unknown")), rng.choice(ROUTES)
        tag = tagger.tag(model, route, rng.choice((None, cues(rng))), guesses(rng), -1)
        found.append((tag.estimate, tag.layer, tag.mixed.told if tag.mixed is not None else None))
    return [*found, *[repr(tagger.report(model).layers) for model in MODELS]]


@given(seed=st.integers(0, 10_000), answers=st.integers(100, 400))
@settings(max_examples=8, deadline=None)
def test_a_tagger_tells_the_same_in_its_next_life(seed: int, answers: int) -> None:
    tagger, fresh = LengthTagger(), LengthTagger()
    learn(tagger, random.Random(seed), answers)
    taken_over(tagger, fresh)
    assert asked(fresh, random.Random(seed + 1)) == asked(tagger, random.Random(seed + 1))
    assert lines(fresh) == lines(tagger)


def test_what_it_learns_then_is_what_it_would_have_learnt() -> None:
    tagger, fresh = LengthTagger(), LengthTagger()
    learn(tagger, random.Random(1), 400)
    taken_over(tagger, fresh)
    for one in (tagger, fresh):
        learn(one, random.Random(2), 200)
    pairs = zip(asked(tagger, random.Random(3)), asked(fresh, random.Random(3)), strict=True)
    assert all(repr(one)[:60] == repr(other)[:60] for one, other in pairs)


def test_words_begin_anew_and_nothing_of_a_prompt_is_kept() -> None:
    tagger, fresh = LengthTagger(), LengthTagger()
    learn(tagger, random.Random(1), 300, words=20)
    taken_over(tagger, fresh)
    rng = random.Random(2)
    mixed = fresh.tag("m", "chat", cues(rng, 20), guesses(rng), -1).mixed
    assert mixed is not None
    assert mixed.middles["words"] == mixed.middles["online"]
    curve = {"weight", "answers", "news", "known", "ended", "ended_at", "cut", "cut_at"}
    learner = {"shape", "answers", "losses", "seen", "told", "width", "weights", "cover", "scores", "levels", "hits", "total"}
    assert set(fields(tagger)) == {"kind", "model", "route", "curves", "offsets", *TRAINED, *curve, *learner}


def fields(keeper: Keeper) -> Iterator[str]:
    todo: list[Any] = [json.loads(line) for line in lines(keeper)]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            yield from one
            todo += one.values()
        elif isinstance(one, list):
            todo += one


def test_the_sums_of_a_few_answers_are_not_kept() -> None:
    tagger = LengthTagger()
    rng = random.Random(1)
    for number in range(KEPT_FROM):
        kinds = [json.loads(line)["kind"] for line in lines(tagger)]
        assert "learner" not in kinds, number
        tagger.observe(tagger.tag("m", "chat", cues(rng), {}, -1), 100, truncated=False)
    assert [json.loads(line)["kind"] for line in lines(tagger)].count("learner") == 1


def test_no_more_is_held_after_a_restart_than_before() -> None:
    tagger, small = LengthTagger(), LengthTagger(capacity=8)
    for number in range(60):
        tagger.observe(tagger.tag(f"m{number}", "chat", None, {}, -1), 50 + number, truncated=False)
    taken_over(tagger, small)
    assert len(small._running) == 8


def paced(seed: int) -> Pace:
    rng, pace = random.Random(seed), Pace()
    for _ in range(rng.randrange(60)):
        pace.window(1.0, rng.lognormvariate(1.0, 0.3))
        pace.first_token(1.0, rng.lognormvariate(0.5, 0.3))
    return pace


@given(st.integers(0, 10_000))
def test_a_pace_is_the_same_and_goes_on_the_same(seed: int) -> None:
    pace, fresh = paced(seed), Pace()
    fresh.restore(Kept(orjson.loads(orjson.dumps(pace.state()))))
    for _ in range(15):
        assert (fresh.value, fresh.error, fresh.grown) == (pace.value, pace.error, pace.grown)
        for one in (pace, fresh):
            one.window(1.0, 3.0)
            one.first_token(1.0, 2.0)


def swapped(seed: int) -> SwapCosts:
    rng, costs = random.Random(seed), SwapCosts(HOSTS)
    for _ in range(rng.randrange(40)):
        start, end = rng.choice(WAYS)
        costs.observe(rng.choice(MODELS), rng.uniform(1, 30) * GB, rng.choice(list(HOSTS)), start, end, rng.uniform(0.5, 60.0))
    return costs


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_swaps_cost_the_same_in_the_next_life(seed: int) -> None:
    costs, fresh = swapped(seed), SwapCosts(HOSTS)
    taken_over(costs, fresh)
    for host in HOSTS:
        for start, end in WAYS:
            for model in (*MODELS, "unknown"):
                assert fresh.predict(model, 7 * GB, host, start, end) == costs.predict(model, 7 * GB, host, start, end)


def test_swaps_of_a_host_that_is_another_now_are_refused() -> None:
    costs = SwapCosts(HOSTS)
    name, other = list(HOSTS)[:2]
    costs.observe("m", 7 * GB, name, "disk", "gpu", 30.0)
    fresh = SwapCosts({name: HOSTS[other]})
    with pytest.raises(KeptError):
        taken_over(costs, fresh)
    assert fresh.predict("m", 7 * GB, name, "disk", "gpu").seen == 0


def replica(version: str = "1") -> Replica:
    """An engine that was probed."""
    made = Replica(BackendSpec("a", "http://a"))
    made.identity, made.state = Identity("vllm", version, ("m",)), "ready"
    return made


def working() -> Engines:
    engines, engine = Engines(), replica()
    for _ in range(30):
        engines.mirror(engine).learned.window(1.0, 8.0)
    return engines


def test_an_engine_that_comes_back_is_as_fast_as_it_was_and_another_one_is_not() -> None:
    for version, factor in (("1", 8.0), ("2", 1.0)):
        engines = Engines()
        taken_over(working(), engines)
        assert engines.mirror(replica(version)).pace == pytest.approx(factor, rel=0.2)


def test_an_engine_is_recognised_once_it_was_probed_and_kept_until_it_comes() -> None:
    engines, later = Engines(), Engines()
    taken_over(working(), engines)
    taken_over(engines, later)
    engine = replica()
    engine.identity, engine.state = Identity("auto"), "starting"
    assert later.mirror(engine).pace == 1.0
    engine.identity, engine.state = replica().identity, "ready"
    assert later.mirror(engine).pace > 4.0
    later.forget("a")
    assert lines(later) == []


# -- records of any other kind

MADE: dict[str, Callable[[], Keeper]] = {
    "lengths": LengthTagger,
    "swaps": lambda: SwapCosts(HOSTS),
    "engines": Engines,
}
junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(PLACES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def whole(kind: str) -> list[bytes]:
    if kind != "lengths":
        return lines(swapped(3) if kind == "swaps" else working())
    tagger = LengthTagger()
    learn(tagger, random.Random(1), 100)
    return lines(tagger)


WHOLE = {kind: whole(kind) for kind in MADE}


@given(data=st.data(), kind=st.sampled_from(sorted(MADE)))
@settings(deadline=None)
def test_a_spoilt_record_is_refused_or_does_no_harm(data: st.DataObject, kind: str) -> None:
    state = json.loads(data.draw(st.sampled_from(WHOLE[kind])))
    inner = [one for value in state.values() if isinstance(value, list) for one in value if isinstance(one, dict)]
    spoilt = data.draw(st.sampled_from([state, *inner]))
    name = data.draw(st.sampled_from(sorted(spoilt)))
    if isinstance(spoilt[name], list) and spoilt[name] and data.draw(st.booleans()):
        spoilt[name][data.draw(st.integers(0, len(spoilt[name]) - 1))] = data.draw(junk)
    else:
        spoilt[name] = data.draw(junk)
    keeper = MADE[kind]()
    try:
        keeper.restore(Kept(state))
    except KeptError:
        assert lines(keeper) == [], "nothing of a refused record is taken"
    if isinstance(keeper, LengthTagger):
        learn(keeper, random.Random(4), 30, words=3)
        assert all(json.loads(line) for line in lines(keeper))


@pytest.mark.parametrize(
    "state", [None, 7, [], "x", {}, {"kind": "else"}, {"kind": "learner"}, {"kind": "curves", "curves": 3}]
)
def test_what_is_no_record_is_refused(state: object) -> None:
    with pytest.raises(KeptError):
        LengthTagger().restore(Kept(state))
