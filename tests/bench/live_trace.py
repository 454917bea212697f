"""The traffic of the live bench: a published trace or a synthetic one, an eighth as long, written out as real text.

A block of the trace (512 tokens) becomes 64 tokens, that is 256 bytes of words, the same wherever the same beginning
comes again, so that routers which compare text see what the engines' prefix caches see. What follows a prompt's full
blocks is its own. The last word tells the simulated engine how long the answer is (`answer_tokens`); no field of the
body does, so routers know as much as in life. Pure: same seed, same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from backends.mock_text import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, WORDS
from gateway.sim.traces import TraceRow

SHRINK = 8
BLOCK_TOKENS = 64
OUTPUT_TOKENS_MAX = 250
MARK = re.compile(r" answer (\d+)$")
MARK_BYTES = len(" answer 999")
START_STEP = 3000  # rows between the windows of two seeds


@dataclass(frozen=True, slots=True)
class Planned:
    """One request: when it is due, counted from the first, and what it is. `label` is for whoever counts, `lines` are
    header lines of its own."""

    at_s: float
    body: bytes
    prompt_tokens: int
    output_tokens: int
    label: str = ""
    lines: str = ""


def answer_tokens(text: str) -> int:
    """How long the answer to a prompt is; 1 for a prompt that is not of this bench."""
    found = MARK.search(text)
    return int(found[1]) if found else 1


def shrunk(row: TraceRow) -> TraceRow:
    """A row with an eighth of the tokens and blocks of 64."""
    assert row.block_tokens == SHRINK * BLOCK_TOKENS, row
    prompt = max(MARK_BYTES, row.prompt_tokens // SHRINK)
    output = min(max(1, row.output_tokens // SHRINK), OUTPUT_TOKENS_MAX)
    return replace(row, prompt_tokens=prompt, output_tokens=output, block_tokens=BLOCK_TOKENS)


def synthetic_rows(seed: int, count: int) -> list[TraceRow]:
    """Conversations that grow and single questions, of about the size and sharing of the published conversation trace:
    1,500 prompt tokens and 43 output tokens in the mean, one block common to all."""
    rng = Random(f"synthetic {seed}")
    talks: list[tuple[list[int], int]] = []
    rows, fresh = [], 1
    for number in range(count):
        blocks, tokens = [0], BLOCK_TOKENS
        if talks and rng.random() < 0.55:
            blocks, tokens = talks.pop(rng.randrange(len(talks)))
            tokens += min(round(rng.lognormvariate(math.log(170), 1.0)), 4000)
        else:
            tokens += min(round(rng.lognormvariate(math.log(450), 1.35)), 14_000)
        while len(blocks) < tokens // BLOCK_TOKENS:
            blocks.append(fresh)
            fresh += 1
        output = min(max(1, round(rng.lognormvariate(math.log(33), 0.75))), OUTPUT_TOKENS_MAX)
        rows.append(TraceRow(float(number), tokens, output, tuple(blocks[: tokens // BLOCK_TOKENS]), BLOCK_TOKENS))
        talks.append((blocks, tokens + output))
        if len(talks) > 300 or tokens > 12_000:
            talks.pop(0 if tokens <= 12_000 else -1)
    return rows


def window(rows: Sequence[TraceRow], seed: int, count: int) -> list[TraceRow]:
    """The rows of a seed's run: neighbours in the trace, so that conversations stay together."""
    start = seed * START_STEP
    return [rows[(start + number) % len(rows)] for number in range(count)]


def work_tokens(rows: Sequence[TraceRow]) -> float:
    """Prompt tokens of a request in the mean: what windows of a trace differ in, and what rates are corrected by."""
    return sum(row.prompt_tokens for row in rows) / len(rows)


def planned(rows: Sequence[TraceRow], rate_per_s: float, seed: int, model: str) -> list[Planned]:
    """The rows as requests with Poisson arrivals. Two rates of one seed differ in nothing but the scale of time."""
    gaps = Random(f"arrivals {seed}")
    at_s, requests = 0.0, []
    chains: dict[tuple[int, int], int] = {}
    for number, row in enumerate(rows):
        text = _text(row, f"{seed} {number}", chains)
        body = (
            f'{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}],'
            f'"max_tokens":2048,"temperature":0.7,"stream":true}}'
        )
        requests.append(Planned(at_s, body.encode(), row.prompt_tokens + TOKENS_PER_MESSAGE, row.output_tokens))
        at_s += gaps.expovariate(1.0) / rate_per_s
    return requests


def _text(row: TraceRow, name: str, chains: dict[tuple[int, int], int]) -> str:
    parts, chain = [], -1
    for block in row.blocks[: (row.prompt_tokens * BYTES_PER_TOKEN - MARK_BYTES) // (BLOCK_TOKENS * BYTES_PER_TOKEN)]:
        chain = chains.setdefault((chain, block), len(chains))
        parts.append(words(f"block {chain}", BLOCK_TOKENS * BYTES_PER_TOKEN))
    left = row.prompt_tokens * BYTES_PER_TOKEN - len(parts) * BLOCK_TOKENS * BYTES_PER_TOKEN
    mark = f" answer {row.output_tokens}"
    return "".join(parts) + words(f"own {name}", left - len(mark)) + mark


@lru_cache(maxsize=65536)
def words(seed: str, size: int) -> str:
    """So many bytes of words."""
    rng = Random(seed)
    text = " ".join(rng.choices(WORDS, k=size // 2 + 1))
    return text[:size]
