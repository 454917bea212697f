"""Words, pairs of words and pieces of words of a prompt, as numbers: what trees weigh that know text. Pure.

Of both ends of the user's last text, of how the prompt opens, how the last reply ended and how the user began; each marked by
where it stood.
What is looked at has a bound, so a prompt of 100 KB costs as much as one of 2 KB. A number is shared by several words and
is kept nowhere; where no trees ask for it, none of this is run.
"""

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from predictor.features import words_of
from predictor.prompts import PromptView

TEXT_BUCKETS = 1 << 17
GAP_BUCKETS = 1 << 16
PIECE_BUCKETS = 1 << 16
SAID_BUCKETS = 1 << 15
PAST_BUCKETS = 1 << 15
GRAM_BUCKETS = TEXT_BUCKETS + GAP_BUCKETS + PIECE_BUCKETS + SAID_BUCKETS + PAST_BUCKETS
HEAD_CHARS = 512
TAIL_CHARS = 512
HEAD_WORDS = 96
TAIL_WORDS = 160
LAST_CHARS = 128  # of the last reply, beside how the prompt opens
PIECE_CHARS = 4
PIECED_CHARS = 16  # of a word
_PAIR = 0x9E3779B9  # sets a pair of words apart from one word that is spelt like both together
_GAP = 0x7F4A7C15  # ... and one with a word between
_GAPS = TEXT_BUCKETS  # where the numbers of each part begin
_PIECES = _GAPS + GAP_BUCKETS
_SAID = _PIECES + PIECE_BUCKETS
_PAST = _SAID + SAID_BUCKETS


class Grams(NamedTuple):
    """Numbers below GRAM_BUCKETS, each once; those of two parts never meet."""

    text: tuple[int, ...] = ()  # words, and pairs of neighbours
    gaps: tuple[int, ...] = ()  # pairs with a word between
    pieces: tuple[int, ...] = ()  # of words
    said: tuple[int, ...] = ()  # how the prompt opens, and how the last reply ended
    past: tuple[int, ...] = ()  # of a conversation: how the user began, more of the last reply, the tools it called


@dataclass(frozen=True, slots=True)
class Spoken:
    """The texts that are read, each bounded. `tail` is empty where `head` holds the whole of the user's last text."""

    head: str
    tail: str
    opening: str
    reply: str
    first: str = ""  # logs that are older have none, ...
    calls: str = ""  # ... nor this


def spoken_of(view: PromptView) -> Spoken:
    """Of a prompt."""
    text = view.head + view.tail
    opening, reply, first = _clean(view.opening), _clean(view.reply_tail), _clean(view.first)
    if len(text) <= HEAD_CHARS + TAIL_CHARS and view.text_chars <= len(text):
        return Spoken(_clean(text), "", opening, reply, first, _clean(view.calls))
    return Spoken(_clean(text[:HEAD_CHARS]), _clean(text[-TAIL_CHARS:]), opening, reply, first, _clean(view.calls))


def grams_of(spoken: Spoken) -> Grams:
    """What is weighed of the texts."""
    words = _words(f"{spoken.head}\n{spoken.tail}")
    ones = [crc32(word) for word in words]
    pairs, gaps = _after(words[1:], ones, _PAIR), _after(words[2:], ones, _GAP)
    said = _hashes(spoken.opening, 1) + _hashes(spoken.reply[-LAST_CHARS:], 2)
    past = _hashes(spoken.first, 3) + _hashes(spoken.reply, 4) + _hashes(spoken.calls, 5)
    return Grams(
        tuple({number % TEXT_BUCKETS for number in ones + pairs}),
        tuple({_GAPS + number % GAP_BUCKETS for number in gaps}),
        tuple({_PIECES + crc32(piece) % PIECE_BUCKETS for piece in _pieces(words)}),
        tuple({_SAID + number % SAID_BUCKETS for number in said}),
        tuple({_PAST + number % PAST_BUCKETS for number in past}),
    )


def _words(text: str) -> list[bytes]:
    words = words_of(text)
    return words if len(words) <= HEAD_WORDS + TAIL_WORDS else words[:HEAD_WORDS] + words[-TAIL_WORDS:]


def _hashes(text: str, salt: int) -> list[int]:
    words = _words(text)
    ones = [crc32(word, salt) for word in words]
    return ones + _after(words[1:], ones, _PAIR)


def _after(words: list[bytes], before: list[int], mark: int) -> list[int]:
    """Each word together with the one that stands so much before it, whose number is known."""
    return [crc32(word, number ^ mark) for word, number in zip(words, before, strict=False)]


def _pieces(words: list[bytes]) -> set[bytes]:
    """Of words that are longer than one."""
    found: set[bytes] = set()
    for word in set(words):
        if len(word) > PIECE_CHARS:
            marked = b" " + word[:PIECED_CHARS] + b" "
            found.update([marked[at : at + PIECE_CHARS] for at in range(len(marked) - PIECE_CHARS + 1)])
    return found


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
