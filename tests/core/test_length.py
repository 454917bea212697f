"""The length tagger learns, covers what it promises, leaves alone what does not help, and stays small."""

import math
import random
from collections.abc import Callable

import pytest

from predictor.features import FEATURES, Cues
from predictor.layers import LAYERS, Learner, Offsets, pinball
from predictor.length import LEARNERS_MAX, Guess, LengthTagger, Tag
from predictor.lengths import UNKNOWN, RunningQuantiles

Truth = Callable[[int, float], float]
TEXT = FEATURES.index("log_text")


def cues_of(number: float, words: tuple[int, ...] = (1,)) -> Cues:
    return Cues(tuple([number if place == TEXT else 0.0 for place in range(len(FEATURES))]), words)


def guess(log: float, spread: float = 1.0) -> Guess:
    return Guess(log - spread, log, log + spread, "trees")


def serve(
    tagger: LengthTagger, count: int, truth: Truth, trees: Truth | None = None, limit: int = 0, seed: int = 0
) -> list[tuple[Tag, float]]:
    """Answers one after the other, each foretold before it is learnt: (tag, true log)."""
    rng = random.Random(seed)
    served = []
    for number in range(count):
        shown = rng.uniform(2.0, 8.0)
        log = max(0.0, truth(number, shown) + rng.gauss(0.0, 0.5))
        guesses = {} if trees is None else {"trees": guess(trees(number, shown))}
        tag = tagger.tag("m", "chat", cues_of(shown), guesses, -1)
        tokens = max(1, round(math.exp(log)))
        served.append((tag, math.log(tokens)))
        tagger.observe(tag, min(tokens, limit) if limit else tokens, bool(limit) and tokens > limit)
    return served


def error(served: list[tuple[Tag, float]]) -> float:
    return sum(abs(math.log(tag.estimate.q50) - log) for tag, log in served) / len(served)


def covered(served: list[tuple[Tag, float]]) -> float:
    return sum(log <= math.log(tag.estimate.q90) + 1e-9 for tag, log in served) / len(served)


def test_nothing_known_is_the_default() -> None:
    tag = LengthTagger().tag("m", "chat", None, {}, -1)
    assert (tag.estimate.q10, tag.estimate.q50, tag.estimate.q90) == (UNKNOWN.q10, UNKNOWN.q50, UNKNOWN.q90)
    assert tag.layer == "running"


def test_a_limit_caps_all_quantiles() -> None:
    tag = LengthTagger().tag("m", "chat", cues_of(3.0), {"trees": guess(6.0)}, 16)
    assert tag.estimate.q90 == 16


def test_cold_a_trained_guess_counts_more_than_a_constant_that_knows_nothing() -> None:
    tag = LengthTagger().tag("m", "chat", cues_of(3.0), {"trees": guess(3.0)}, -1)
    middle = math.log(tag.estimate.q50)
    assert abs(middle - 3.0) < abs(middle - math.log(UNKNOWN.q50))


def test_the_regression_learns_what_no_trained_layer_says() -> None:
    served = serve(LengthTagger(), 600, lambda _, shown: 0.8 * shown)
    late = served[300:]
    assert error(late) < 0.5  # the noise alone: 0.4
    plain = sum(abs(tag.mixed.running[1] - log) for tag, log in late if tag.mixed is not None) / len(late)
    assert error(late) < 0.6 * plain


def test_words_tell_workloads_apart() -> None:
    tagger = LengthTagger()
    rng = random.Random(3)
    errors = []
    for number in range(500):
        word, log = (7, 3.0) if number % 2 else (9, 6.0)
        tag = tagger.tag("m", "chat", cues_of(4.0, (word,)), {}, -1)
        log += rng.gauss(0.0, 0.2)
        errors.append(abs(math.log(tag.estimate.q50) - log))
        tagger.observe(tag, round(math.exp(log)), truncated=False)
    assert sum(errors[300:]) / 200 < 0.45


@pytest.mark.parametrize(
    "truth",
    [
        lambda number, shown: 0.7 * shown + 1.0 + number / 1500,
        lambda number, shown: 4.0 + 2.0 * (number > 1200),
        lambda number, shown: 4.0 + 1.5 * math.sin(number / 150),
    ],
    ids=["drift", "jump", "waves"],
)
def test_q90_covers_what_it_promises(truth: Truth) -> None:
    """Over windows of 2,000 whatever the traffic does, and at no more loss than running quantiles have."""
    served = serve(LengthTagger(), 2200, truth)
    for at in (0, 200):
        assert 0.88 <= covered(served[at : at + 2000]) <= 0.92
    told = [pinball(log, tag.mixed.told) for tag, log in served if tag.mixed is not None]
    running = [pinball(log, tag.mixed.running) for tag, log in served if tag.mixed is not None]
    assert sum(told) <= 1.02 * sum(running)


def test_answers_that_were_cut_off_count_as_longer() -> None:
    tagger = LengthTagger()
    served = serve(tagger, 1500, lambda _, shown: 5.0, limit=200)
    assert math.log(served[-1][0].estimate.q90) > math.log(200)
    assert covered(served[500:]) > 0.85  # the truth, which the tagger never saw beyond 200


def test_a_useless_layer_is_off_and_says_so() -> None:
    tagger = LengthTagger()
    rng = random.Random(5)
    serve(tagger, 300, lambda _, shown: 5.0, trees=lambda _, shown: 5.0 + 3.0 * rng.gauss(0.0, 1.0))
    layers = {layer.name: layer for layer in tagger.report("m").layers}
    assert tuple(layers) == LAYERS
    assert not layers["trees"].on
    assert layers["trees"].error > layers["running"].error
    assert layers["trees"].why.startswith("off: error")
    assert layers["encoder"].why == "has not been there"


def test_a_good_layer_is_on_and_comes_back_when_it_is_good_again() -> None:
    tagger = LengthTagger()
    serve(tagger, 30, lambda _, shown: 9.0 - shown, trees=lambda _, shown: 9.0 - shown)
    assert {layer.name: layer.on for layer in tagger.report("m").layers}["trees"]


def test_an_offset_is_learnt_for_each_model_and_route() -> None:
    learner, offsets = Learner(), Offsets()
    for _ in range(30):
        mixed = learner.mix((3.0, 4.0, 5.0), 0, cues_of(4.0), {"trees": guess(4.0)}, offsets)
        offsets.saw(mixed, 6.0)
    assert offsets.of("trees") == pytest.approx(2.0 * 30 / 33, abs=0.05)
    assert Offsets().of("trees") == 0.0


def test_an_answer_cut_off_early_teaches_next_to_nothing() -> None:
    tagger = LengthTagger()
    for _ in range(40):
        tag = tagger.tag("m", "chat", cues_of(4.0), {"trees": guess(6.0)}, -1)
        tagger.observe(tag, 2, truncated=True)
    assert math.log(tagger.tag("m", "chat", cues_of(4.0), {"trees": guess(6.0)}, -1).estimate.q50) > 5.0


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("source", "odd"),
    [
        ("trees", Guess(NAN, NAN, NAN, "trees")),
        ("trees", Guess(1.0, NAN, 3.0, "trees")),
        ("encoder", Guess(1.0, 2.0, INF, "encoder")),
        ("encoder", Guess(-INF, 2.0, 3.0, "encoder")),
        ("trees", Guess(3.0, 2.0, 1.0, "trees")),
        ("trees", Guess(-5.0, -4.0, -3.0, "trees")),
        ("trees", Guess(1.0, 2.0, 90.0, "trees")),
        ("unknown", Guess(1.0, 2.0, 3.0, "?")),
    ],
)
def test_a_guess_that_is_none_is_rejected_and_counted(source: str, odd: Guess) -> None:
    tagger = LengthTagger()
    plain = tagger.tag("m", "chat", cues_of(3.0), {}, -1)
    tag = tagger.tag("m", "chat", cues_of(3.0), {source: odd}, -1)
    assert tag.estimate == plain.estimate
    assert tagger.rejected[source] == 1
    assert tagger.report("m").rejected == {source: 1}


def test_an_answer_without_tokens_or_beyond_all_measure_does_no_harm() -> None:
    tagger = LengthTagger()
    for tokens in (0, -3, 10**30):
        tagger.observe(tagger.tag("m", "chat", cues_of(3.0), {}, -1), tokens, truncated=False)
    assert tagger.tag("m", "chat", cues_of(3.0), {}, -1).estimate.q90 > 0


def test_what_is_held_is_bounded() -> None:
    tagger = LengthTagger(capacity=100)
    for number in range(300):
        tag = tagger.tag(f"model {number}", f"route {number}", cues_of(3.0), {"trees": guess(3.0)}, -1)
        tagger.observe(tag, 10, truncated=False)
    assert len(tagger._learners) <= LEARNERS_MAX
    assert len(tagger._offsets) <= 100
    assert len(tagger._running) <= 100


def test_a_tag_outlives_what_was_forgotten() -> None:
    tagger = LengthTagger(capacity=2)
    tag = tagger.tag("first", "chat", cues_of(3.0), {"trees": guess(3.0)}, -1)
    for number in range(10):
        tagger.tag(f"model {number}", "chat", cues_of(3.0), {}, -1)
    tagger.observe(tag, 50, truncated=False)
    assert tagger.report("first").answers == 1


def test_a_route_begins_with_what_its_model_is_like() -> None:
    table = RunningQuantiles()
    for _ in range(50):
        table.saw("m", "long", 2000)
    assert table.shrunk("m", "new")[1] == pytest.approx(math.log(2000), abs=0.3)
    assert table.shrunk("other", "")[1] == pytest.approx(math.log(2000), abs=0.4)
    assert table.shrunk("other", "")[3] == 0
    table.saw("m", "new", 20)
    before, after = table.shrunk("m", "long")[1], table.shrunk("m", "new")[1]
    assert math.log(20) < after < before
