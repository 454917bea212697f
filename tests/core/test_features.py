"""What a prompt shows at a glance: views of every face's bodies, features, words; odd input; cost that does not grow."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.features import BUCKETS, FEATURES, WORDS_MAX, Cues, cues
from predictor.prompts import TURNS_MAX, PromptView, view_of


def ask(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def seen(body: dict[str, Any], max_tokens: int = -1) -> dict[str, float]:
    return dict(zip(FEATURES, cues(view_of(body, max_tokens)).numbers, strict=True))


@pytest.mark.parametrize(
    ("text", "feature", "value"),
    [
        ("Write an essay of 500 words", "log_asked_tokens", math.log1p(700)),
        ("a 300-word summary", "log_asked_tokens", math.log1p(420)),
        ("in 2 sentences", "log_asked_tokens", math.log1p(50)),
        ("Give me 10 ideas for lunch", "log_asked_items", math.log1p(10)),
        ("Explain it briefly, in short", "brief", 2.0),
        ("a detailed and comprehensive answer", "detailed", 2.0),
        ("What is the capital of France?", "ends_asking", 1.0),
        ("What is the capital of France? ", "questions", math.log1p(1)),
        ("\u4f60\u597d\u5417\uff1f", "ends_asking", 1.0),
        ("continue", "continues", 1.0),
        ("tell me more", "continues", 0.0),
        ("answer as JSON", "json", 1.0),
        ("```python\ndef f():\n    pass\n```", "fences", math.log1p(3)),
        ("pick one:\n- a\n- b\n* c", "bullets", math.log1p(3)),
        ("Translate this: hello", "rework", 1.0),
        ("abcd", "log_text", math.log1p(4)),
    ],
)
def test_what_a_text_asks_for(text: str, feature: str, value: float) -> None:
    assert seen(ask(text))[feature] == pytest.approx(value)


def test_history_counts_earlier_replies() -> None:
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    turns += [{"role": "assistant", "content": "x" * 400}, {"role": "user", "content": "more?"}]
    turns += [{"role": "assistant", "content": "y" * 99 + "?"}, {"role": "user", "content": "go on"}]
    found = seen({"messages": turns})
    assert found["reply_last"] == pytest.approx(math.log1p(100))
    assert found["reply_longest"] == pytest.approx(math.log1p(400))
    assert found["reply_mean"] == pytest.approx(math.log1p(250))
    assert (found["replies"], found["turns"], found["role"]) == (2.0, 3.0, 0.0)
    assert found["log_system"] == pytest.approx(math.log1p(8))
    assert (found["reply_asked"], found["reply_unfinished"]) == (1.0, 0.0)
    assert seen(ask("Hi"))["reply_last"] == -1.0


@pytest.mark.parametrize(
    ("body", "head", "turns", "role"),
    [
        ({"prompt": "Once upon"}, "Once upon", 1, "user"),
        ({"prompt": ["one", "two"]}, "two", 2, "user"),
        ({"prompt": [1, 2, 3, 4]}, "", 1, "user"),
        ({"input": "Hello"}, "Hello", 1, "user"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}, "Hi", 1, "user"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]}]}, "Hi", 1, "user"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "42"}]}]}, "", 0, "tool"),
        ({"messages": [{"role": "tool", "content": "{}"}]}, "", 0, "tool"),
        ({"messages": [{"role": "developer", "content": "rules"}]}, "", 0, "system"),
        ({"messages": []}, "", 0, "user"),
        ({"messages": None}, "", 0, "user"),
        ({}, "", 0, "user"),
    ],
)
def test_each_face(body: dict[str, Any], head: str, turns: int, role: str) -> None:
    view = view_of(body)
    assert (view.head, view.turns, view.last_role) == (head, turns, role)
    cues(view)


def test_images_tools_and_forms_are_counted() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}
    view = view_of({"messages": [image], "tools": [{}, {}], "response_format": {"type": "json_object"}}, 64)
    assert (view.images, view.tools, view.json_asked, view.max_tokens, view.text_chars) == (1, 2, True, 64, 0)
    assert view_of({"text": {"format": {"type": "json_schema"}}}).json_asked


def test_a_tool_call_is_a_reply_of_its_length() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "x" * 68}}]}
    view = view_of({"messages": [{"role": "user", "content": "go"}, call, {"role": "tool", "content": "done"}]})
    assert (view.replies, view.reply_called, view.last_chars) == ((100,), True, 4)


def test_only_the_ends_of_a_large_prompt_are_looked_at() -> None:
    view = view_of(ask("begin " + "x" * 100_000 + " 500 words?"))
    assert view.text_chars > 100_000
    assert len(view.head) + len(view.tail) <= 8192
    found = cues(view)
    assert len(found.words) <= WORDS_MAX + 1
    assert dict(zip(FEATURES, found.numbers, strict=True))["log_asked_tokens"] > 6.0


def test_a_long_conversation_is_read_from_its_end() -> None:
    turns = [{"role": "assistant" if number % 2 else "user", "content": str(number)} for number in range(1001)]
    view = view_of({"messages": [{"role": "system", "content": "rules"}, *turns]})
    assert view.head == "1000"
    assert view.system_chars == 5
    assert len(view.replies) <= TURNS_MAX


def test_words_are_buckets_and_alike_for_like_texts() -> None:
    first, same, other = (cues(view_of(ask(text))) for text in ("Sort the list", "sort THE list", "paint a wall"))
    assert set(first.words) & set(same.words)
    assert len(set(first.words) & set(other.words)) <= 1
    assert all(0 <= word < BUCKETS for word in first.words)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("role", "content", "type", "text", "messages", "tool_calls", "function", "arguments", "system")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=24,
)
bodies = st.dictionaries(
    st.sampled_from(("messages", "prompt", "input", "system", "instructions", "tools", "response_format", "text")), anything
)


@settings(max_examples=100, deadline=None)
@given(bodies, st.integers(-5, 10**9))
def test_no_body_is_too_odd(body: dict[str, Any], max_tokens: int) -> None:
    check(cues(view_of(body, max_tokens)))


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec=None), max_size=300), st.text(st.characters(codec=None), max_size=300))
def test_no_text_is_too_odd(text: str, reply: str) -> None:
    turns = [{"role": "assistant", "content": reply}, {"role": "user", "content": text}]
    check(cues(view_of({"messages": turns})))


@pytest.mark.parametrize("text", ["", "\ud800" * 9000, "\U0001f600" * 9000, "9" * 9000, "\n" * 9000, "\x00", " - " * 3000])
def test_nor_these(text: str) -> None:
    check(cues(view_of(ask(text))))


def check(found: Cues) -> None:
    assert len(found.numbers) == len(FEATURES)
    assert all(math.isfinite(number) for number in found.numbers)
    assert len(set(found.words)) == len(found.words)
    assert all(0 <= word < BUCKETS for word in found.words)


def test_a_view_without_anything_has_features() -> None:
    check(cues(PromptView()))
