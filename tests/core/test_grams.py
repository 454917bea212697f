"""Grams of a prompt: each once, below their bound, of parts that never meet; odd text and size change nothing of that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.grams import (
    GRAM_BUCKETS,
    HEAD_WORDS,
    PAST_BUCKETS,
    SAID_BUCKETS,
    TAIL_WORDS,
    TEXT_BUCKETS,
    Grams,
    Spoken,
    grams_of,
    spoken_of,
)
from predictor.prompts import FIRST_CHARS, REPLY_CHARS, view_of

MOST = 2 * (HEAD_WORDS + TAIL_WORDS)


def grams(text: str, reply: str = "") -> Grams:
    turns = [{"role": "user", "content": "And?"}, {"role": "assistant", "content": reply}] if reply else []
    return grams_of(spoken_of(view_of({"messages": [*turns, {"role": "user", "content": text}]})))


@given(st.text(st.characters(exclude_categories=())), st.integers(1, 400))
def test_any_text_gives_few_numbers_within_bounds(text: str, times: int) -> None:
    found = grams(text * times, text)
    assert len(found.text) == len(set(found.text)) <= MOST
    assert len(found.said) == len(set(found.said)) <= 4 * 128
    assert all(0 <= number < TEXT_BUCKETS for number in found.text)
    assert all(GRAM_BUCKETS - PAST_BUCKETS - SAID_BUCKETS <= number < GRAM_BUCKETS - PAST_BUCKETS for number in found.said)
    assert len(found.past) == len(set(found.past)) <= 3 * MOST
    assert all(GRAM_BUCKETS - PAST_BUCKETS <= number < GRAM_BUCKETS for number in found.past)
    everything = [number for part in found for number in part]
    assert len(everything) == len(set(everything)) < 20 * MOST


def test_order_of_words_counts_and_case_does_not() -> None:
    assert set(grams("List the facts").text) == set(grams("list THE facts").text)
    assert set(grams("man bites dog").text) != set(grams("dog bites man").text)


def test_a_pair_is_no_word_that_is_spelt_like_both() -> None:
    pair, word = set(grams("foot ball").text), set(grams("football").text)
    assert len(pair) == 3
    assert len(word) == 1
    assert not pair & word


def test_words_that_look_alike_share_pieces_and_short_ones_have_none() -> None:
    assert set(grams("translate").pieces) & set(grams("translation").pieces)
    assert not grams("a bird flew").pieces


def test_pairs_with_a_word_between_are_told_from_neighbours() -> None:
    assert grams("one two").gaps == ()
    assert len(grams("one two three").gaps) == 1


def test_the_reply_before_is_told_from_the_user() -> None:
    assert not set(grams("x", "one two").said) <= set(grams("one two").said)


@pytest.mark.parametrize("size", [1024, 1025, 100_000])
def test_both_ends_of_a_long_text_count(size: int) -> None:
    middle = "blah " * (size // 5)
    found = set(grams(f"begin {middle}finish").text)
    assert set(grams("begin").text) <= found
    assert set(grams("finish").text) <= found


def test_of_a_conversation_its_beginning_counts_and_is_bounded() -> None:
    def past(first: str, reply: str = "A whale. " * 200) -> set[int]:
        turns = [("user", first), ("assistant", reply), ("user", "Yes?"), ("assistant", reply), ("user", "And?")]
        view = view_of({"messages": [{"role": role, "content": text} for role, text in turns]})
        assert (len(view.first), len(view.reply_tail)) == (min(len(first), FIRST_CHARS), min(len(reply), REPLY_CHARS))
        return set(grams_of(spoken_of(view)).past)

    assert past("Tell me of whales") > past("")
    assert past("Tell me of whales") != past("Tell me of boats")
    begun = "Tell me " * (FIRST_CHARS // 8)
    assert past(begun + "of whales") == past(begun + "of boats")
    assert grams("Tell me of whales").past == ()
    assert grams_of(Spoken("And?", "", "", "It is.")).past, "an older log's row knows the reply"


def test_the_tools_that_the_last_reply_called_count_in_any_face() -> None:
    def past(*turns: dict[str, object]) -> set[int]:
        return set(grams_of(spoken_of(view_of({"messages": [{"role": "user", "content": "Book it."}, *turns]}))).past)

    def chat(*calls: object) -> set[int]:
        return past({"role": "assistant", "content": None, "tool_calls": list(calls)}, {"role": "tool", "content": "none"})

    asked = {"name": "search", "arguments": '{"to": "SFO"}'}
    found = chat({"function": asked})
    assert found
    assert past({"type": "function_call", **asked}) == found
    used = past({"role": "assistant", "content": [{"type": "tool_use", "name": "search", "input": {"to": "SFO", "odd": None}}]})
    assert len(used & found) >= 3, "the name and both words"
    assert chat({"function": {"name": 3, "arguments": None}}) == chat({"function": "odd"}) == chat(7) == chat() == set()
    assert len(chat({"function": {**asked, "arguments": "x " * 10**5}})) < 10
