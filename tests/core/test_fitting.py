"""Engines of one model that take different lengths: who is too small for a request, and that somebody is always left."""

import pytest

from backends.base import Identity
from gateway.config import BackendSpec
from gateway.fitting import needed_tokens, too_small, uneven
from gateway.replica import Replica


def replicas(**lengths: int) -> list[Replica]:
    """Ready ones of one model, by what they say of their length (0: nothing)."""
    made = [Replica(BackendSpec(name, "http://h")) for name in lengths]
    for replica in made:
        replica.identity = Identity("vllm", models=("m",), max_model_len=lengths[replica.name])
    return made


@pytest.mark.parametrize(
    ("tokens", "small"),
    [(100, set()), (512, set()), (513, {"a"}), (4000, {"a"}), (4097, {"a", "b"}), (9000, {"a", "b"})],
)
def test_those_that_would_refuse_it(tokens: int, small: set[str]) -> None:
    assert too_small(replicas(a=512, b=4096, c=8192), tokens) == small


def test_one_that_says_nothing_takes_any() -> None:
    assert too_small(replicas(a=512, b=0), 9000) == {"a"}
    assert too_small(replicas(a=512), 9000) == too_small([], 9000) == set()


def test_an_answer_of_unknown_length_has_a_token() -> None:
    assert (needed_tokens(b"x" * 300, -1), needed_tokens(b"x" * 300, 50)) == (101, 150)


def test_pictures_and_sound_are_not_taken_for_text() -> None:
    assert needed_tokens(b'{"url":"data:image/png;base64,' + b"A" * 90_000, 50) == 50
    assert needed_tokens(b'{"type":"input_audio","data":"' + b"A" * 90_000, -1) == 1


def test_equal_engines_are_not_uneven() -> None:
    assert not uneven(replicas(a=512, b=512))
    assert uneven(replicas(a=512, b=4096))
