"""What the tagger's models said, remembered: for all models or for each, with the encoder's word or without, and no more."""

import json

import pytest

from gateway.prompt_ends import Ends, ends_of
from gateway.tag_memory import TagMemory, key_of


def ends(model: str, text: str = "hello", **more: object) -> Ends:
    """Of a body."""
    messages = [{"role": "user", "content": text}]
    return ends_of(json.dumps({"model": model, "messages": messages, **more}).encode())


def key(model: str, text: str = "hello", limit: int = -1, **more: object) -> int:
    """Where no model is read."""
    return key_of(ends(model, text, **more), limit, model, reads_model=False)


def test_one_prompt_has_one_key_whatever_model_answers() -> None:
    assert key("a") == key("org/a-much-longer-name:8b") == key("user")
    assert key("a", "\u00e9 " * 4000) == key("b", "\u00e9 " * 4000)


def test_a_name_behind_the_messages_is_found_in_the_tail() -> None:
    text = "word " * 4000
    bodies = [json.dumps({"messages": [{"role": "user", "content": text}], "model": name}).encode() for name in ("one", "two")]
    both = [key_of(ends_of(body), -1, name, reads_model=False) for body, name in zip(bodies, ("one", "two"), strict=True)]
    assert both[0] == both[1]


def test_what_is_read_besides_makes_another_key() -> None:
    keys = {key("a"), key("a", "hello!"), key("a", limit=7), key("a", stop="x"), key("a", "a"), key("a", '"a"')}
    assert len(keys) == 6
    assert key_of(ends("a")._replace(tools=True), -1, "a", reads_model=False) not in keys


@pytest.mark.parametrize("name", ["", "\ud800", '"', "hello", "role"])
def test_any_name_may_be_asked_for(name: str) -> None:
    assert key(name) == key(name)
    assert key(name) != key(name, "other")


def test_where_models_are_read_each_has_its_own() -> None:
    asked = {key_of(ends(model), -1, model, reads_model=True) for model in ("a", "b", "a")}
    assert len(asked) == 2


def test_an_answer_without_the_encoder_does_for_those_for_whom_it_is_spared() -> None:
    memory = TagMemory[str](8)
    memory.keep(1, "trees", whole=False)
    assert memory.find(1, whole=False) == "trees"
    assert memory.find(1, whole=True) is None
    memory.keep(1, "both", whole=True)
    assert memory.find(1, whole=False) == memory.find(1, whole=True) == "both"
    assert len(memory) == 1


def test_what_was_of_no_use_for_longest_goes_first() -> None:
    memory = TagMemory[str](2)
    memory.keep(1, "one", whole=True)
    memory.keep(2, "two", whole=True)
    assert memory.find(1, whole=True) == "one"
    memory.keep(3, "three", whole=True)
    assert [memory.find(key, whole=False) for key in (1, 2, 3)] == ["one", None, "three"]


def test_a_memory_of_no_entries_keeps_nothing() -> None:
    memory = TagMemory[str](0)
    memory.keep(1, "one", whole=True)
    assert len(memory) == 0
    assert memory.find(1, whole=False) is None
