"""What the gateway and its tagger process say to each other: one datagram each way for a question, maybe two back. Pure.

A question holds the ends of a body, an answer the cues and what each model guesses. Answers are judged as they are read:
a guess that is no ordered triple of log-tokens is left out and its fault named, whatever the process wrote.
"""

import struct
from collections.abc import Mapping
from math import isfinite, isnan
from typing import NamedTuple

from gateway.prompt_ends import Ends
from predictor.features import BUCKETS, FEATURES, Cues
from predictor.length import Guess

MODELS = ("trees", "encoder")
LOG_TOKENS_MAX = 20.0
FRAME_BYTES_MAX = 65536
PROBLEM = b"\xff" * 8  # before a text: what is wrong with the process; no answer has that id
READY = 0  # the id of the answer that says which models run; questions count from 1
_ASK = struct.Struct("<QdiIBIHH")
_REPLY = struct.Struct("<QBHHB")
_GUESS = struct.Struct("<Bddd")
_TOOLS, _ENCODER = 1, 2
_LAST, _READS_MODEL = 1, 2


class FrameError(ValueError):
    """The bytes are no frame of ours."""


class Question(NamedTuple):
    """`due_s` of the machine's monotonic clock: a model that cannot answer before it is not asked. Without `encoder` the
    cheap answer is all that is wanted. `model`: the one that will answer, by its `model_key`; 0: none."""

    id: int
    due_s: float
    max_tokens: int
    ends: Ends
    encoder: bool = True
    model: int = 0


class Reply(NamedTuple):
    """`last`: nothing more comes for this question. `faults` holds a word for each guess that was left out. `reads_model`, of
    READY: what is guessed depends on which model answers."""

    id: int
    last: bool
    cues: Cues | None
    guesses: Mapping[str, Guess]
    faults: tuple[str, ...] = ()
    reads_model: bool = False


def encode_question(question: Question) -> bytes:
    """As sent."""
    ends = question.ends
    flags = _TOOLS * ends.tools | _ENCODER * question.encoder
    limit = question.max_tokens if 0 < question.max_tokens < 1 << 31 else -1
    size = min(ends.size, (1 << 32) - 1)
    head = _ASK.pack(question.id, question.due_s, limit, size, flags, question.model, len(ends.head), len(ends.tail))
    return b"".join((head, ends.head, ends.tail))


def decode_question(frame: bytes) -> Question:
    """Raises FrameError."""
    try:
        number, due_s, limit, size, flags, model, head, tail = _ASK.unpack_from(frame)
    except struct.error:
        raise FrameError("too short") from None
    at = _ASK.size
    if len(frame) != at + head + tail:
        raise FrameError("of another length than it says")
    ends = Ends(frame[at : at + head], frame[at + head :], size, bool(flags & _TOOLS))
    return Question(number, due_s, limit, ends, bool(flags & _ENCODER), model)


def encode_reply(
    number: int,
    *,
    last: bool,
    cues: Cues | None,
    guesses: Mapping[str, tuple[float, float, float]],
    reads_model: bool = False,
) -> bytes:
    """An answer, or a part of one."""
    numbers, words = (cues.numbers, cues.words) if cues is not None else ((), ())
    flags = _LAST * last | _READS_MODEL * reads_model
    parts = [_REPLY.pack(number, flags, len(numbers), len(words), len(guesses))]
    parts.append(struct.pack(f"<{len(numbers)}d{len(words)}H", *numbers, *words))
    parts += [_GUESS.pack(MODELS.index(name), *guess) for name, guess in guesses.items()]
    return b"".join(parts)


def decode_reply(frame: bytes) -> Reply:
    """Raises FrameError when nothing of it can be used; a single guess that can't is left out."""
    try:
        number, flags, count, words, guesses = _REPLY.unpack_from(frame)
        at = _REPLY.size
        values = struct.unpack_from(f"<{count}d{words}H", frame, at)
        at += 8 * count + 2 * words
        triples = [_GUESS.unpack_from(frame, at + i * _GUESS.size) for i in range(guesses)]
    except struct.error:
        raise FrameError("too short") from None
    if len(frame) != at + guesses * _GUESS.size or flags > _LAST | _READS_MODEL:
        raise FrameError("of another length than it says")
    kept, faults = _judged(triples)
    cues = _cues(values[:count], values[count:])
    return Reply(number, bool(flags & _LAST), cues, kept, faults, bool(flags & _READS_MODEL))


def _cues(numbers: tuple[float, ...], words: tuple[int, ...]) -> Cues | None:
    if not numbers and not words:
        return None
    if len(numbers) != len(FEATURES) or not all(map(isfinite, numbers)) or (words and max(words) >= BUCKETS):
        raise FrameError("its features are none")
    return Cues(numbers, words)


def _judged(triples: list[tuple[int, float, float, float]]) -> tuple[dict[str, Guess], tuple[str, ...]]:
    guesses: dict[str, Guess] = {}
    faults = []
    for code, q10, q50, q90 in triples:
        fault = _fault(q10, q50, q90) if code < len(MODELS) else "garbage"
        if fault:
            faults.append(fault)
        else:
            guesses[MODELS[code]] = Guess(q10, q50, q90, MODELS[code])
    return guesses, tuple(faults)


def _fault(q10: float, q50: float, q90: float) -> str:
    """What is wrong with logs of tokens: "nan", "negative", "garbage", or ""."""
    if isnan(q10) or isnan(q50) or isnan(q90):
        return "nan"
    if q50 < 0 or q90 < 0:
        return "negative"
    return "" if q10 <= q50 <= q90 <= LOG_TOKENS_MAX else "garbage"
