"""The simulated engine's words, tokens and schema-fitting JSON."""

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.mock_ask import content_texts
from backends.mock_json import fit, pieces
from backends.mock_text import Reply, count_tokens, detokenize, natural_tokens, stable_hash, tokenize, word


def test_hash_minds_the_borders() -> None:
    assert stable_hash("a", "b") != stable_hash("ab") != stable_hash("a", "b", 0)
    assert stable_hash("a", 1) == stable_hash("a", "1")


def test_words_depend_on_seed_and_place() -> None:
    assert [word(7, place) for place in range(50)] == [word(7, place) for place in range(50)]
    assert [word(7, place) for place in range(50)] != [word(8, place) for place in range(50)]
    assert len({word(7, place) for place in range(500)}) > 80
    assert all(text[0] == " " and text[1:].isalpha() for text in (word(seed, 0) for seed in range(100)))


def test_lengths_have_the_mean_they_were_given() -> None:
    lengths = [natural_tokens(seed, mean=100.0, sigma=0.8) for seed in range(4000)]
    assert statistics.fmean(lengths) == pytest.approx(100.0, rel=0.05)
    assert min(lengths) >= 1
    assert {natural_tokens(seed, mean=30.0, sigma=0.0) for seed in range(5)} == {30}


@pytest.mark.parametrize(
    ("texts", "messages", "tokens"), [((), 0, 1), (("",), 1, 5), (("abcd",), 0, 1), (("abcde", "fgh"), 2, 10)]
)
def test_prompt_tokens(texts: tuple[str, ...], messages: int, tokens: int) -> None:
    assert count_tokens(texts, messages) == tokens


@given(st.text(max_size=40))
def test_tokens_turn_back_into_text(text: str) -> None:
    assert detokenize(tokenize(text)) == text
    assert max(1, len(tokenize(text))) == count_tokens([text])


def test_foreign_token_ids_are_words() -> None:
    assert len(detokenize([0, 5, 255, 10**15, -3]).split()) == 5


def test_a_fixed_reply_is_its_pieces() -> None:
    parts = pieces({"a": 1})
    reply = Reply(0, len(parts), "stop", parts)
    assert json.loads(reply.text(len(parts))) == {"a": 1}
    assert reply.token(0) == '{"a"'


def test_texts_are_found_in_every_shape_of_content() -> None:
    content = [
        "plain",
        {"type": "text", "text": "part"},
        {"type": "tool_result", "content": [{"type": "text", "text": "nested"}]},
        {"type": "tool_use", "input": {"k": 1}},
        {"type": "function_call", "arguments": "{}"},
        {"type": "image_url", "image_url": {"url": "data:"}},
        7,
    ]
    assert list(content_texts(content)) == ["plain", "part", "nested", '{"k":1}', "{}"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, str),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, float),
        ({"type": ["integer", "null"], "minimum": 3, "maximum": 3}, int),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, list),
        ({"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}], "$defs": {"name": {"const": "x"}}}, str),
        ({}, dict),
        (None, dict),
    ],
)
def test_basic_types(schema: object, kind: type, seed: int) -> None:
    assert isinstance(fit(schema, seed), kind)


def test_an_object_has_all_its_properties() -> None:
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "deg": {"type": "integer", "minimum": 5}}}
    values = [fit(schema, seed) for seed in range(20)]
    assert all(isinstance(value, dict) and set(value) == {"unit", "deg"} and value["deg"] >= 5 for value in values)
    assert {value["unit"] for value in values if isinstance(value, dict)} == {"C", "F"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"t": {"properties": {str(i): {"$ref": "#/$defs/t"} for i in range(50)}}}, "$ref": "#/$defs/t"},
        {"$ref": "#"},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 10**9},
        {"$ref": "#/nowhere"},
        {"type": "integer", "minimum": float("-inf"), "maximum": float("inf")},
    ],
)
def test_hostile_schemas_end(schema: object) -> None:
    assert len(json.dumps(fit(schema, 1))) < 200_000
