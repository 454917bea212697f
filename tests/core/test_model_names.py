"""Served names of models: the same model is known by all of them, another one is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.model_names import known_name, model_key

LLAMA, LARGE, QWEN = "llama-3.1-8b-instruct", "llama-3.1-405b-instruct", "qwen2-7b-instruct"


@pytest.mark.parametrize(
    ("served", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", LLAMA),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", LLAMA),
        ("Meta-Llama-3_1-8B-Instruct", LLAMA),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", LLAMA),
        ("someone/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", LLAMA),
        (" LLAMA-3.1-8B-INSTRUCT ", LLAMA),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("Llama-3.1-405B-Inst@sambanova", LARGE),
        ("Llama-3.1-405B-Inst-fp8", LARGE),
        ("meta-llama/Llama-3.1-405B-Instruct-FP8", LARGE),
        ("/models/Qwen2-7B-Instruct/", QWEN),
        ("Qwen/Qwen2-7B-Instruct-GPTQ-Int8", QWEN),
        ("qwen2-7b-instruct-q4_k_m.gguf", QWEN),
        ("someone/Qwen2-7B-Instruct-quantized.w8a8", QWEN),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"),
        ("unsloth/gemma-2-9b-it-bnb-4bit", "gemma-2-9b-it"),
        ("gpt-3.5-turbo-0125", "gpt-3.5-turbo-0125"),
        ("GPT-3.5-Turbo@v1", "gpt-3.5-turbo"),
        ("llama3.1:8b", "llama3.1:8b"),
        ("", ""),
        ("/", ""),
        ("@", ""),
    ],
)
def test_a_served_name_is_known_by_what_it_names(served: str, known: str) -> None:
    assert known_name(served) == known
    assert known_name(known) == known
    assert bool(model_key(served)) == bool(known)


@given(st.text(max_size=400))
def test_any_name_has_a_key_that_fits_a_frame(served: str) -> None:
    assert 0 <= model_key(served) < 1 << 32


def test_a_broken_name_has_a_key_too() -> None:
    assert model_key("\ud800") != model_key("")
