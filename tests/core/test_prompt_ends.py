"""The ends of a body: the last words are found wherever they stand, large bodies cost no more, nothing raises."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt_ends import END_BYTES, ends_of, view_of_ends
from predictor.features import FEATURES, cues
from predictor.prompts import PromptView

LARGE = "constant text of an agent, ten thousand words long. " * 2000


def body(*turns: tuple[str, str], **fields: Any) -> bytes:
    messages = [{"role": role, "content": content} for role, content in turns]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def seen(data: bytes, parts: tuple[str, ...] = ()) -> PromptView:
    return view_of_ends(ends_of(data, parts), -1)


def text_of(view: PromptView) -> str:
    """What is kept of the user's last text, end to end."""
    return view.head + view.tail


@pytest.mark.parametrize("system", ["short", LARGE])
def test_the_last_words_are_found(system: str) -> None:
    view = seen(body(("system", system), ("user", "first"), ("assistant", "a" * 50), ("user", 'my "last" w\u00f6rds?\n')))
    assert view.head == 'my "last" w\u00f6rds?\n'
    assert (view.last_role, view.text_chars) == ("user", len(view.head))
    assert view.replies == (50,)
    assert view.system_chars == pytest.approx(len(system), rel=0.01)
    assert view.all_chars >= 0.9 * len(system)


def test_a_long_last_message_shows_both_ends() -> None:
    text = "the beginning " + LARGE + " the very end"
    view = seen(body(("user", text)))
    assert text_of(view).endswith("the very end")
    assert view.head.startswith("the beginning")
    assert view.text_chars == pytest.approx(len(text), rel=0.01)


def test_tools_behind_the_messages_are_passed_over() -> None:
    tools = [{"type": "function", "function": {"name": f"tool{i}", "description": LARGE[:900]}} for i in range(40)]
    view = seen(body(("system", "s"), ("user", "call one of them"), tools=tools), ("tools",))
    assert view.head == "call one of them" or text_of(view).startswith("call one of them")
    assert view.tools >= 1
    assert text_of(seen(body(("user", LARGE + " use one"), tools=tools), ("tools",))).endswith(" use one")


def test_content_may_stand_before_its_role_and_in_parts() -> None:
    data = json.dumps({"messages": [{"content": LARGE + " the end", "role": "user"}]}).encode()
    assert text_of(seen(data)).endswith(" the end")
    parts = [{"type": "text", "text": LARGE}, {"type": "text", "text": "the last part"}]
    assert text_of(seen(body(("user", parts)))).endswith("the last part")  # type: ignore[arg-type]


def test_only_two_ends_are_looked_at() -> None:
    ends = ends_of(body(("user", LARGE * 10)))
    assert len(ends.head) + len(ends.tail) == 2 * END_BYTES
    assert ends.size > 500_000


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"messages":7}', b'{"messages":[' + b"[" * 5000, b'"' * 20_000, b"\\" * 20_001]
    + [b"\xff\xfe" * 9000, b'{"role":"user"' * 2000, b'"role":"user","content":"' * 900, b'{"messages":[{"content":"\\ud800'],
)
def test_nothing_raises(data: bytes) -> None:
    for parts in ((), ("tools",)):
        assert len(cues(seen(data, parts)).numbers) == len(FEATURES)


@given(st.binary(max_size=3 * END_BYTES), st.booleans())
def test_no_bytes_raise(data: bytes, tools: bool) -> None:
    cues(seen(data, ("tools",) if tools else ()))


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), st.text(max_size=4000)), max_size=12))
def test_no_conversation_raises(turns: list[tuple[str, str]]) -> None:
    cues(seen(body(*turns)))
