"""The tagger's frames: what goes in comes out, and of what a broken process writes nothing gets through."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt_ends import Ends
from gateway.tag_frames import (
    FRAME_BYTES_MAX,
    READY,
    FrameError,
    Question,
    decode_question,
    decode_reply,
    encode_question,
    encode_reply,
)
from predictor.features import BUCKETS, FEATURES, Cues
from predictor.length import Guess

NUMBERS = st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * len(FEATURES))
WORDS = st.lists(st.integers(0, BUCKETS - 1), max_size=100).map(tuple)


@given(
    st.integers(1, 2**63),
    st.floats(0, 1e9),
    st.integers(-5, 2**40),
    st.builds(Ends, st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2**31), st.booleans()),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_a_question_comes_through(number: int, due_s: float, max_tokens: int, ends: Ends, encoder: bool, model: int) -> None:
    limit = max_tokens if 0 < max_tokens < 1 << 31 else -1
    frame = encode_question(Question(number, due_s, max_tokens, ends, encoder, model))
    assert decode_question(frame) == Question(number, due_s, limit, ends, encoder, model)


def test_the_largest_question_and_answer_fit_a_frame() -> None:
    ends = Ends(b"x" * 8192, b"y" * 4096, 10**7)
    assert len(encode_question(Question(1, 0.0, 1, ends))) < FRAME_BYTES_MAX
    cues = Cues((0.0,) * len(FEATURES), tuple(range(2000)))
    assert len(encode_reply(1, last=True, cues=cues, guesses={})) < FRAME_BYTES_MAX


@given(NUMBERS, WORDS)
def test_an_answer_comes_through(numbers: tuple[float, ...], words: tuple[int, ...]) -> None:
    frame = encode_reply(7, last=True, cues=Cues(numbers, words), guesses={"trees": (1.0, 2.0, 3.0)})
    reply = decode_reply(frame)
    assert (reply.id, reply.last, reply.faults) == (7, True, ())
    assert reply.cues == Cues(numbers, words)
    assert reply.guesses == {"trees": Guess(1.0, 2.0, 3.0, "trees")}


@pytest.mark.parametrize("reads_model", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_an_answer_says_whether_more_comes_and_whether_models_are_read(*, last: bool, reads_model: bool) -> None:
    reply = decode_reply(encode_reply(READY, last=last, cues=None, guesses={}, reads_model=reads_model))
    assert (reply.last, reply.reads_model) == (last, reads_model)


@pytest.mark.parametrize(
    ("guess", "fault"),
    [
        ((math.nan, 1.0, 2.0), "nan"),
        ((1.0, math.nan, 2.0), "nan"),
        ((-2.0, -1.0, 2.0), "negative"),
        ((3.0, 2.0, 1.0), "garbage"),
        ((1.0, 2.0, math.inf), "garbage"),
        ((1.0, 2.0, 21.0), "garbage"),
        ((-0.5, 0.5, 1.0), ""),
    ],
)
def test_a_wrong_guess_is_left_out_and_named(guess: tuple[float, float, float], fault: str) -> None:
    reply = decode_reply(encode_reply(1, last=True, cues=None, guesses={"encoder": guess, "trees": (1.0, 2.0, 3.0)}))
    assert reply.faults == ((fault,) if fault else ())
    assert set(reply.guesses) == ({"trees"} if fault else {"trees", "encoder"})


def test_features_that_are_none_spoil_the_frame() -> None:
    for cues in (
        Cues((1.0,) * (len(FEATURES) - 1)),
        Cues((math.nan,) * len(FEATURES)),
        Cues((0.0,) * len(FEATURES), (BUCKETS,)),
    ):
        with pytest.raises(FrameError):
            decode_reply(encode_reply(1, last=True, cues=cues, guesses={}))


@given(st.binary(max_size=400))
def test_rubbish_is_refused_or_read_but_never_raises_else(frame: bytes) -> None:
    for decode in (decode_reply, decode_question):
        try:
            decode(frame)
        except FrameError:
            continue


@given(NUMBERS, st.data())
def test_a_cut_frame_is_refused(numbers: tuple[float, ...], data: st.DataObject) -> None:
    frame = encode_reply(7, last=True, cues=Cues(numbers, (1,)), guesses={"trees": (1.0, 2.0, 3.0)})
    with pytest.raises(FrameError):
        decode_reply(frame[: data.draw(st.integers(0, len(frame) - 1))])
