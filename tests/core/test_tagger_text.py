"""What the encoder reads: whatever the prompt, at most 64 known tokens, the end of the user's words among them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.model_names import model_key
from predictor.prompts import PromptView, view_of
from predictor.tagger_text import (
    HINTS,
    MARKS,
    SPECIAL,
    TOKENS_MAX,
    encoder_text,
    marks_of,
    model_signs,
    models_of,
    token_ids,
)

FIRST_WORD = MARKS.first_hint + len(HINTS)


def by_character(piece: str) -> list[int]:
    """A tokenizer with a token for each character."""
    return [FIRST_WORD + ord(character) for character in piece]


def read(prompt: str, **members: object) -> list[int]:
    return token_ids(encoder_text(view_of({"messages": [{"role": "user", "content": prompt}], **members})), by_character)


def words_of(ids: list[int]) -> str:
    return "".join(chr(number - FIRST_WORD) if number >= FIRST_WORD else "|" for number in ids)


def hints_of(ids: list[int]) -> set[str]:
    return {HINTS[number - MARKS.first_hint] for number in ids if MARKS.first_hint <= number < FIRST_WORD}


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        " ",
        "\ud800",
        "a\udfff" * 40,
        "\U0001f600" * 5000,
        "\x00" * 300,
        "word " * 2_000_000,
        "\u202e\u0301" * 900,
        "<text:3><s>",
    ],
)
def test_odd_prompts_give_a_bounded_input_that_can_be_encoded(prompt: str) -> None:
    text = encoder_text(view_of({"messages": [{"role": "user", "content": prompt}]}))
    (text.end + text.begin).encode("utf-8")
    ids = token_ids(text, by_character)
    assert 3 + len(text.hints) <= len(ids) <= TOKENS_MAX
    assert ids[0] == MARKS.bos
    assert ids.count(MARKS.eos) == 2


@given(st.text(st.characters(exclude_categories=())), st.integers(0, 200), st.lists(st.integers(0, 10**9)))
@settings(max_examples=60, deadline=None)
def test_any_view_is_read(words: str, repeats: int, replies: list[int]) -> None:
    whole = words * repeats
    view = PromptView(head=whole[:4096], tail=whole[4096:], text_chars=len(whole), replies=tuple(replies), last_role=words[:5])
    text = encoder_text(view)
    assert len(token_ids(text, by_character)) <= TOKENS_MAX
    assert all(0 <= hint < len(HINTS) for hint in text.hints)
    assert len(set(text.hints)) == len(text.hints)


def test_a_short_prompt_is_read_whole_and_once() -> None:
    assert words_of(read("Say yes.")).startswith("|Say yes.||")


def test_of_a_long_prompt_the_end_comes_first_then_its_beginning() -> None:
    shown = words_of(read("Summarise: " + "x" * 100_000 + " in five words")).split("|")
    assert shown[1].endswith("x in five words")
    assert shown[2].startswith("Summarise: ")


def test_a_text_that_the_end_holds_but_the_tokens_do_not_shows_both_ends() -> None:
    shown = words_of(read("a" * 30 + "b" * 200 + "c" * 10)).split("|")
    assert shown[1].endswith("b" + "c" * 10)
    assert shown[2] == "a" * 16


def test_hints_tell_what_the_words_do_not() -> None:
    turns = [
        {"role": "system", "content": "s" * 100},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "r" * 1000},
        {"role": "user", "content": "and then?"},
    ]
    body = {"messages": turns, "tools": [{}], "response_format": {"type": "json_object"}}
    hints = hints_of(token_ids(encoder_text(view_of(body)), by_character))
    expected = {
        "<text:4>",
        "<turns:2>",
        "<role:user>",
        "<reply:10>",
        "<replies:10>",
        "<system:7>",
        "<tools>",
        "<json>",
        "<asks>",
    }
    assert hints == expected | {"<prompt:11>"}


def test_the_same_prompt_in_another_size_of_message_reads_alike_but_for_its_size() -> None:
    short, long = read("x" * 5000 + "stop"), read("x" * 50_000 + "stop")
    assert words_of(short) == words_of(long)
    assert hints_of(short) ^ hints_of(long) == {"<text:13>", "<text:16>", "<prompt:13>", "<prompt:16>"}


def test_marks_are_found_in_both_kinds_of_vocabulary() -> None:
    own = {name: place for place, name in enumerate((*SPECIAL, *HINTS))}
    assert marks_of(own) == MARKS
    bert = {"[PAD]": 0, "[CLS]": 101, "[SEP]": 102, HINTS[0]: 30522}
    marks = marks_of(bert)
    assert (marks.bos, marks.eos, marks.pad, marks.first_hint) == (101, 102, 0, 30522)
    with pytest.raises(ValueError, match="<text:0>"):
        marks_of(dict.fromkeys(SPECIAL, 1))


def test_the_model_that_answers_is_read_where_the_vocabulary_has_it() -> None:
    text = encoder_text(view_of({"prompt": "how long? " * 400}))
    own = {name: place for place, name in enumerate((*SPECIAL, *HINTS, *model_signs(("some-model", "another"))))}
    knows = marks_of(own)
    assert models_of(own) == ("another", "some-model")
    for served in ("some-model", "org/Some-Model", "some-model@host"):
        read_by = token_ids(text, by_character, knows, model_key(served))
        assert read_by[-1] == own["<model:some-model>"]
        assert len(read_by) <= TOKENS_MAX
    for unknown in ("some-model-70b", "", "\ud800"):
        assert token_ids(text, by_character, knows, model_key(unknown)) == token_ids(text, by_character)
    assert token_ids(text, by_character, MARKS, model_key("some-model")) == token_ids(text, by_character)


def test_a_body_as_it_came_over_the_wire_is_read() -> None:
    body = json.loads(
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud83d"}, {"type": "image_url"}]}]}'
    )
    assert "<images>" in hints_of(token_ids(encoder_text(view_of(body)), by_character))
