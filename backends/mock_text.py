"""What the simulated engine says and how it counts: deterministic words, lengths and tokens.

The same prompt to the same model gives the same words on every replica; the length also depends on the engine's
seed. A token is one word of an answer, or four bytes of a prompt. Nothing here knows HTTP or time.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4

_WORD_LIST = """
    a able about above after again air all along also always and any area around as at autumn away back be because
    been before best better between blue both bread bright bring but by call can clear close cloud cold come could
    day deep do door down each early east easy end even ever every eye far fast few field find fire first five for
    found four free fresh from full garden gave get give go good grass great green ground grow had half hand hard
    has have head hear here high hill home hour house how if in into it just keep kind know land large last late
    lead leaf left less let light like line
"""
WORDS = tuple(_WORD_LIST.split())

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def stable_hash(*parts: str | int) -> int:
    """64 bits that depend on the parts and their borders only."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "big")


def word(seed: int, position: int) -> str:
    """The token at a position of the text with that seed: a space and a word. Splitmix64, so that seeds do not rhyme."""
    mixed = (seed + (position + 1) * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return " " + WORDS[(mixed >> 32) % len(WORDS)]


def natural_tokens(seed: int, mean: float, sigma: float) -> int:
    """How long an answer wants to be: lognormal with that mean, at least 1."""
    mu = math.log(mean) - sigma * sigma / 2
    return max(1, round(random.Random(seed).lognormvariate(mu, sigma)))


def text_bytes(text: str) -> bytes:
    """UTF-8, also of lone surrogates, which JSON allows."""
    return text.encode("utf-8", "surrogatepass")


def count_tokens(texts: Sequence[str], messages: int = 0) -> int:
    """Tokens of a prompt: a quarter of its bytes, at least 1, and 4 for each chat message."""
    size = sum(len(text_bytes(text)) for text in texts)
    return max(1, -(-size // BYTES_PER_TOKEN)) + TOKENS_PER_MESSAGE * messages


def tokenize(text: str) -> list[int]:
    """Token ids, one for four bytes. An id carries its bytes below a leading 1, so it can be turned back."""
    data = text_bytes(text)
    chunks = (data[start : start + BYTES_PER_TOKEN] for start in range(0, len(data), BYTES_PER_TOKEN))
    return [int.from_bytes(b"\x01" + chunk, "big") for chunk in chunks]


def detokenize(tokens: Sequence[int]) -> str:
    """The text of ids from `tokenize`; other ids stand for words of the built-in list."""
    parts = []
    for token in tokens:
        data = token.to_bytes((token.bit_length() + 7) // 8, "big") if token > 0 else b""
        known = 2 <= len(data) <= BYTES_PER_TOKEN + 1 and data[0] == 1
        parts.append(data[1:] if known else (" " + WORDS[token % len(WORDS)]).encode())
    return b"".join(parts).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine counts it. `text` only seeds the answer; `layout` is what its blocks are hashed from, four
    bytes for a token, in the order in which the engine would have it (empty: nothing of it can be found again)."""

    text: str
    tokens: int
    layout: bytes = field(default=b"", repr=False)


def lay_out(texts: Sequence[str], messages: int = 0) -> bytes:
    """The layout of a prompt: its texts, filled up to whole tokens, and what the template adds, here at the end."""
    data = b"".join(map(text_bytes, texts))
    return data + bytes(-len(data) % BYTES_PER_TOKEN + BYTES_PER_TOKEN * TOKENS_PER_MESSAGE * messages)


def lay_out_ids(tokens: Sequence[int]) -> bytes:
    """The same of token ids; those of `tokenize` give the bytes of their text."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "big") for token in tokens)


def block_hashes(layout: bytes, block_size: int) -> tuple[int, ...]:
    """Hashes of the full blocks of so many tokens, in order, each standing for all up to its end (see `Request.prefix`)."""
    size, chain, hashes = BYTES_PER_TOKEN * block_size, 0, []
    for start in range(0, len(layout) - size + 1, size):
        chain = hash((chain, layout[start : start + size]))
        hashes.append(chain)
    return tuple(hashes)


@dataclass(frozen=True, slots=True)
class Reply:
    """What one choice is going to say, decided before it runs.

    `fixed` are the pieces of a prescribed text (JSON), else words are drawn from `seed`.
    `finish_reason` is "stop" or "length". `tool` names the function whose arguments the text is.
    """

    seed: int
    output_tokens: int
    finish_reason: str
    fixed: tuple[str, ...] = ()
    tool: str | None = None

    def token(self, position: int) -> str:
        """The text of one token."""
        return self.fixed[position] if self.fixed else word(self.seed, position)

    def text(self, tokens: int) -> str:
        """The text of the first so many tokens."""
        return "".join(self.token(position) for position in range(tokens))
