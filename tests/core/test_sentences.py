"""What a sentence encoder reads: at most so many tokens, without what many prompts share."""

from hypothesis import given
from hypothesis import strategies as st

from predictor.grams import Spoken
from predictor.sentences import END_TOKENS, RUN, RUNS_MAX, SHARED_MIN, TOKENS_MAX, Reading, runs_of, sentence_of, shared_runs

TEMPLATE = list(range(500, 520))
NOTHING_SHARED = Reading(101, 102, frozenset())


def own(number: int) -> list[int]:
    return [10_000 + 10 * number + place for place in range(8)]


def test_what_many_prompts_share_is_left_out_and_what_is_their_own_stays() -> None:
    reading = Reading(101, 102, shared_runs([[*TEMPLATE, *own(number), *TEMPLATE] for number in range(SHARED_MIN)]))
    assert reading.ids([*TEMPLATE, *own(77), *TEMPLATE]) == [101, *own(77), 102]
    assert reading.ids(own(78)) == [101, *own(78), 102]


def test_what_few_prompts_share_stays() -> None:
    assert not shared_runs([[*TEMPLATE, *own(number)] for number in range(SHARED_MIN - 1)])
    many = [own(number) for number in range(100 * SHARED_MIN)]
    assert not shared_runs([[*TEMPLATE, *own(number)] for number in range(SHARED_MIN)] + many)


def test_the_same_prompt_again_and_again_is_counted_once() -> None:
    assert not shared_runs([[*TEMPLATE, *own(1)]] * 100)


def test_a_run_is_left_out_whole_and_a_piece_of_it_is_not() -> None:
    run = TEMPLATE[:RUN]
    reading = Reading(1, 2, frozenset(runs_of(run)))
    assert reading.ids([7, *run, 8]) == [1, 7, 8, 2]
    assert reading.ids([7, *run[:-1], 8]) == [1, 7, *run[:-1], 8, 2]


def test_a_prompt_that_holds_nothing_of_its_own_is_read_as_it_is() -> None:
    assert Reading(1, 2, frozenset(runs_of(TEMPLATE))).ids(TEMPLATE) == [1, *TEMPLATE, 2]
    assert NOTHING_SHARED.ids([]) == [101, 102]


def test_of_a_long_text_both_ends_are_read() -> None:
    tokens = list(range(1000))
    room = TOKENS_MAX - 2
    assert NOTHING_SHARED.ids(tokens) == [101, *tokens[: room - END_TOKENS], *tokens[-END_TOKENS:], 102]
    assert NOTHING_SHARED.ids(tokens[:room]) == [101, *tokens[:room], 102]


def test_the_runs_that_are_kept_have_a_bound() -> None:
    long = list(range(RUNS_MAX + 2 * RUN))
    assert len(shared_runs([[*long, *own(number)] for number in range(SHARED_MIN)])) == RUNS_MAX


@given(st.lists(st.integers(0, 40_000)), st.sets(st.integers(0, 4)))
def test_no_input_is_too_long(tokens: list[int], shared: set[int]) -> None:
    runs = runs_of(tokens)
    ids = Reading(1, 2, frozenset([runs[place] for place in shared if place < len(runs)])).ids(tokens)
    assert 2 <= len(ids) <= TOKENS_MAX
    assert set(ids[1:-1]) <= set(tokens)


def test_both_ends_of_a_long_text_make_the_sentence() -> None:
    assert sentence_of(Spoken("all of it", "", "", "")) == "all of it"
    assert sentence_of(Spoken("how it begins", "how it ends", "", "")) == "how it begins\nhow it ends"
