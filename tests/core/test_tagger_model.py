"""The encoder that comes with the gateway: small, quick to load, sane on anything that can be typed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from typer.testing import CliRunner

from gateway.cli import cli
from gateway.tagger.shipped import HOME, MODEL, TOKENIZER, Shipped
from predictor.prompts import view_of
from predictor.tagger_text import MARKS, encoder_text, marks_of

ODD = [
    "",
    " ",
    "\ud800\udfff",
    "\U0001f600" * 3000,
    "\x00\x01",
    "a" * 100_000,
    "1" * 9000,
    "<s></s><pad>",
    "\u202e\u0301" * 500,
]


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return Shipped()


def middle(shipped: Shipped, prompt: str) -> float:
    """Tokens."""
    return math.exp(shipped.of_prompt(prompt)[1][1])


def test_the_files_fit_into_the_wheel_and_say_what_they_are() -> None:
    sizes = {path.name: path.stat().st_size for path in HOME.iterdir() if path.suffix in (".onnx", ".json")}
    assert sizes.keys() >= {MODEL, TOKENIZER}
    assert sum(sizes.values()) <= 16_000_000
    card = (HOME / "card.md").read_text()
    assert all(word in card for word in ("Licence", "Data", "Scores", "Limits", "gateway tagger train"))


def test_its_vocabulary_is_the_one_that_the_text_rules_count_on() -> None:
    assert marks_of(Tokenizer.from_file(str(HOME / TOKENIZER)).get_vocab()) == MARKS


@pytest.mark.parametrize("prompt", ODD)
def test_odd_prompts_get_finite_quantiles_in_order(shipped: Shipped, prompt: str) -> None:
    count, (q10, q50, q90) = shipped.of_prompt(prompt)
    assert 3 <= count <= 64
    assert 0.0 < q10 <= q50 <= q90 < math.log(100_000)


@given(st.text(max_size=400), st.lists(st.text(max_size=50), max_size=4))
@settings(max_examples=30, deadline=None)
def test_any_conversation_gets_finite_quantiles_in_order(prompt: str, earlier: list[str]) -> None:
    turns = [{"role": role, "content": text} for text in earlier for role in ("user", "assistant")]
    view = view_of({"messages": [*turns, {"role": "user", "content": prompt}]})
    q10, q50, q90 = KEPT.of_text(encoder_text(view))
    assert math.isfinite(q10 + q50 + q90)
    assert q10 <= q50 <= q90


KEPT = Shipped()


def test_it_tells_short_questions_from_long_tasks(shipped: Shipped) -> None:
    asked = (
        middle(shipped, "Is the sky blue? Answer yes or no."),
        middle(shipped, "Write a detailed essay about the history of Rome."),
    )
    assert asked[0] < 0.6 * asked[1]


def test_the_end_of_a_long_prompt_counts_however_long_it_is(shipped: Shipped) -> None:
    text = "The report says that sales rose again in the third quarter. "
    same = [middle(shipped, text * 400 + "Now write it anew, " + times) for times in ("in full.", "in full.")]
    assert same[0] == same[1]
    assert middle(shipped, text * 400 + "Does it rise? Yes or no?") != same[0]


def test_it_can_be_looked_at_and_asked_from_the_command_line() -> None:
    done = CliRunner().invoke(cli, ["tagger", "inspect", "--prompt", "Say hello."])
    assert done.exit_code == 0, done.output
    assert "64 tokens on one thread" in done.output
    assert "knows" not in done.output, "it reads no model's name"
    assert "'Say hello.'" in done.output


def test_a_folder_without_a_model_is_refused_in_a_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("empty")
    done = CliRunner().invoke(cli, ["tagger", "inspect", "--model-folder", str(folder)])
    assert done.exit_code == 1
    assert MODEL in done.output
    assert "Traceback" not in done.output
