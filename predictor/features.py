"""Numbers and word hashes of a prompt, from which the length of its answer is foretold. Pure.

Lexical hints (how much text, questions, code, lists, "briefly", "500 words") and history (how long the earlier replies
were), chosen by what helped on public answers (docs/lengths.md). Only the ends of a long text are looked at, so that a
prompt of 100 KB costs as much as one of 8 KB. Never raises, whatever the text holds. The words themselves are not kept:
each is a number below `BUCKETS`, shared with many other words.
"""

import math
import re
from dataclasses import dataclass
from zlib import crc32

from predictor.prompts import ROLES, PromptView

COUNTED_CHARS = 512  # of each end, for counting characters
HEAD_CHARS = 256  # of the beginning, for its words
TAIL_CHARS = 352  # of the end, for its words
WORDS_MAX = 96
REPLY_WORDS = 12
REPLY_CHARS = 128  # of the last reply's end, for what it was like
LEVEL = 4.2
LEVEL_MIN = 1.5
CHARS_PER_TOKEN_LOG = math.log(4.0)
BUCKETS = 16_384

_HINTS: tuple[tuple[str, str], ...] = (
    ("brief", "brief briefly short shortly concise concisely only just simply simple quick yes sentence"),
    ("detailed", "detail detailed details depth comprehensive thorough elaborate long extensive essay"),
    ("steps", "step steps reason reasoning think solve show prove boxed"),
    ("piece", "article story poem blog letter email report speech script song review plan guide tutorial"),
    ("write", "write create generate compose draft make build design develop \u5199 \u751f"),
    ("program", "code function program python javascript java html css sql class api implement return def script"),
    ("explain", "explain describe how why discuss compare difference \u4ec0 \u5982"),
    ("rework", "translate rewrite rephrase summarize summarise summary edit correct paraphrase convert improve"),
    ("classify", "classify extract identify which category categorize true false sentiment label answer option"),
    ("listing", "list ideas examples tips ways table suggest top bullet points"),
    ("fact", "what who when where many much name is"),
    ("json", "json xml yaml csv"),
    ("dialogue", "you your i my me hi hello thanks please ok"),
)
_HINT_OF = {word.encode(): code for code, (_, words) in enumerate(_HINTS) for word in words.split()}
FEATURES: tuple[str, ...] = (
    ("log_text", "log_prompt", "log_lines", "log_words", "word_chars", "digits", "capitals", "signs", "wide")
    + ("questions", "ends_asking", "fences", "bullets", "formulas", "options")
    + tuple([name for name, _ in _HINTS])
    + ("log_asked_tokens", "log_asked_items", "continues")
    + ("reply_last", "reply_mean", "reply_longest", "replies", "turns", "role")
    + ("reply_unfinished", "reply_code", "reply_called", "reply_asked", "log_last", "reply_level")
    + ("log_system", "tools", "images", "log_limit", "first_words")
)
_UNITS = {"word": 1.4, "sentence": 25.0, "paragraph": 110.0, "line": 14.0, "page": 600.0, "char": 0.3, "\u5b57": 0.8}
_TOKENS_PER = {name.encode(): tokens for unit, tokens in _UNITS.items() for name in (unit, unit + "s", unit + "acters")}
_GOES_ON = frozenset((b"continue", b"go", b"more", b"next", b"keep", "\u7ee7".encode()))
_WORD = re.compile(rb"[a-z]+|\d+|[\x80-\xff]{3}|[^\sa-z\d\x80-\xff]+")
_ENDINGS = frozenset(".!?:)\"'`}]\u3002\uff01\uff1f")
_DIGITS = b"0123456789"
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIGNS = b"{}[]()<>=+*/\\|_;#$%^&~`"
_ROLE_CODE = {role: float(code) for code, role in enumerate(ROLES)}


@dataclass(frozen=True, slots=True)
class Cues:
    """The features of one request: a number for each of FEATURES, and its words as numbers below BUCKETS, each once."""

    numbers: tuple[float, ...]
    words: tuple[int, ...] = ()


def cues(view: PromptView) -> Cues:
    """What can be told of a prompt at a glance."""
    words = _words(view)
    return Cues((*_shape(view), *_spoken(words), *_history(view), _opens(words)), _buckets(words, view))


def _words(view: PromptView) -> list[bytes]:
    """Of the beginning and of the end; a wide character is a word of its own."""
    ends = view.head[:HEAD_CHARS] + (view.tail or view.head[HEAD_CHARS:])[-TAIL_CHARS:]
    words = words_of(ends)
    return words if len(words) <= WORDS_MAX else words[: WORDS_MAX // 4] + words[-3 * WORDS_MAX // 4 :]


def words_of(text: str) -> list[bytes]:
    """Words, numbers and signs of a text, in lower case; a wide character is a word of its own."""
    return _WORD.findall(text.encode("utf-8", "surrogatepass").lower())


def _shape(view: PromptView) -> tuple[float, ...]:
    text = view.head[:COUNTED_CHARS] + (view.tail or view.head[COUNTED_CHARS:])[-COUNTED_CHARS:]
    raw = text.encode("utf-8", "surrogatepass")
    size = len(raw) or 1
    words = raw.count(b" ") + raw.count(b"\n") + 1
    share = view.text_chars / (len(text) or 1)
    return (
        math.log1p(view.text_chars),
        math.log1p(view.all_chars),
        math.log1p(raw.count(b"\n") * share),
        math.log1p(words * share),
        len(text) / words,
        1.0 - len(raw.translate(None, _DIGITS)) / size,
        1.0 - len(raw.translate(None, _CAPITALS)) / size,
        1.0 - len(raw.translate(None, _SIGNS)) / size,
        (len(raw) - len(text)) / size,
        math.log1p(text.count("?") + text.count("\uff1f")),
        float(text[-8:].rstrip()[-1:] in ("?", "\uff1f")),
        math.log1p(raw.count(b"```") + raw.count(b"def ") + raw.count(b"import ") + raw.count(b";\n")),
        math.log1p(raw.count(b"\n- ") + raw.count(b"\n* ")),
        math.log1p(raw.count(b"\\") + raw.count(b"$") + raw.count(b"=")),
        math.log1p(raw.count(b"A)") + raw.count(b"A.") + raw.count(b"B.") + raw.count(b"B)")),
    )


def _spoken(words: list[bytes]) -> list[float]:
    """Hints by kind, then logs of the tokens and of the items asked for by number ("500 words", "10 ideas"), "go on"."""
    found = [0.0] * len(_HINTS)
    tokens = items = 0.0
    for at, word in enumerate(words):
        code = _HINT_OF.get(word)
        if code is not None:
            found[code] += 1.0
        elif word.isdigit() and len(word) <= 4:
            unit = _behind(words, at)
            per = _TOKENS_PER.get(unit)
            if per is not None:
                tokens = float(word) * per
            elif unit.isalpha():
                items = float(word)
    found += (math.log1p(tokens), math.log1p(items), float(bool(words) and words[0] in _GOES_ON))
    return found


def _behind(words: list[bytes], at: int) -> bytes:
    """The word after a number, a hyphen between them or not."""
    following = words[at + 1 : at + 3]
    if len(following) == 2 and following[0] == b"-":
        return following[1]
    return following[0] if following else b""


def _history(view: PromptView) -> tuple[float, ...]:
    replies, tail = view.replies, view.reply_tail[-REPLY_CHARS:].rstrip()
    return (
        math.log1p(replies[-1]) if replies else -1.0,
        math.log1p(sum(replies) / len(replies)) if replies else -1.0,
        math.log1p(max(replies)) if replies else -1.0,
        float(len(replies)),
        float(view.turns),
        _ROLE_CODE.get(view.last_role, 0.0),
        float(bool(tail) and tail[-1:] not in _ENDINGS),
        float("```" in tail or ";\n" in tail or "}" in tail),
        float(view.reply_called),
        float("?" in tail[-48:]),
        math.log1p(view.last_chars),
        _reply_level(replies),
        math.log1p(view.system_chars),
        math.log1p(view.tools),
        float(view.images) + 0.5 * view.json_asked,
        math.log1p(view.max_tokens) if view.max_tokens > 0 else -1.0,
    )


def _reply_level(replies: tuple[int, ...]) -> float:
    """How long the replies were, as a log of tokens above LEVEL; 0 without any. Can be gone on from beyond what trees saw."""
    if not replies:
        return 0.0
    mean = sum(replies) / len(replies)
    return max(0.5 * (math.log1p(replies[-1]) + math.log1p(mean)) - CHARS_PER_TOKEN_LOG, LEVEL_MIN) - LEVEL


def _opens(words: list[bytes]) -> float:
    """How the text begins, as a number in 0..1: trees can split it, and nothing else is meant by it."""
    return crc32(b" ".join(words[:2])) / 2**32


def _buckets(words: list[bytes], view: PromptView) -> tuple[int, ...]:
    """Of the words, of how the prompt opens, and of the words that the last reply ended with, apart from the others."""
    found = {crc32(word) % BUCKETS for word in words}
    found.add(crc32(b"^" + view.opening[:24].encode("utf-8", "surrogatepass")) % BUCKETS)
    for word in view.reply_tail[-96:].lower().split()[-REPLY_WORDS:]:
        found.add(crc32(b"<" + word.encode("utf-8", "surrogatepass")) % BUCKETS)
    return tuple(found)
