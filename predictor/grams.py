"""Words and pairs of neighbouring words of a prompt, as numbers: what trees of a log with text weigh beside the features. Pure.

Both ends of the user's last text, how the prompt opens, and how the last reply ended; each is marked by where it stood.
What is looked at has a bound, so a prompt of 100 KB costs as much as one of 2 KB. A number is shared by several words and
is kept nowhere; where no trees ask for it, none of this is run.
"""

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from predictor.features import words_of
from predictor.prompts import PromptView

TEXT_BUCKETS = 1 << 17
SAID_BUCKETS = 1 << 15
GRAM_BUCKETS = TEXT_BUCKETS + SAID_BUCKETS
HEAD_CHARS = 512
TAIL_CHARS = 512
HEAD_WORDS = 96
TAIL_WORDS = 160
_PAIR = 0x9E3779B9  # sets a pair of words apart from one word that is spelt like both together


class Grams(NamedTuple):
    """Numbers below GRAM_BUCKETS, each once; those of the two parts never meet."""

    text: tuple[int, ...]
    said: tuple[int, ...]  # how the prompt opens, and how the last reply ended


@dataclass(frozen=True, slots=True)
class Spoken:
    """The texts that are read, each bounded. `tail` is empty where `head` holds the whole of the user's last text."""

    head: str
    tail: str
    opening: str
    reply: str


def spoken_of(view: PromptView) -> Spoken:
    """Of a prompt."""
    text = view.head + view.tail
    if len(text) <= HEAD_CHARS + TAIL_CHARS and view.text_chars <= len(text):
        return Spoken(_clean(text), "", _clean(view.opening), _clean(view.reply_tail))
    return Spoken(_clean(text[:HEAD_CHARS]), _clean(text[-TAIL_CHARS:]), _clean(view.opening), _clean(view.reply_tail))


def grams_of(spoken: Spoken) -> Grams:
    """What is weighed of the texts."""
    text = {number % TEXT_BUCKETS for number in _hashes(f"{spoken.head}\n{spoken.tail}", 0)}
    said = _hashes(spoken.opening, 1) + _hashes(spoken.reply, 2)
    return Grams(tuple(text), tuple({TEXT_BUCKETS + number % SAID_BUCKETS for number in said}))


def _hashes(text: str, salt: int) -> list[int]:
    words = words_of(text)
    if len(words) > HEAD_WORDS + TAIL_WORDS:
        words = words[:HEAD_WORDS] + words[-TAIL_WORDS:]
    ones = [crc32(word, salt) for word in words]
    return ones + [crc32(word, before ^ _PAIR) for word, before in zip(words[1:], ones, strict=False)]


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
