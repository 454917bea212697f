"""The traffic of the SLO bench: four classes mixed, each with its own prompts, answers and promise, as real text. Pure.

Sizes are an eighth of those of the published traces that each class is named after, like everything before the live
bench's replicas. Agents come back with a prompt that begins as the last one did; code completions share files. Every
router gets the same bytes: the class by name for Leeway, and smg's own word for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from gateway.sim.traces import TraceRow
from tests.bench.live_mocks import MODEL
from tests.bench.live_trace import BLOCK_TOKENS, MARK_BYTES, Planned, planned


@dataclass(frozen=True, slots=True)
class Kind:
    """One class: its share of the requests, its promise, medians and spreads (of the logarithm) of its tokens."""

    name: str
    share: float
    ttft_s: float
    prompt: float
    prompt_spread: float
    output: float
    output_spread: float
    smg: str
    prompt_max: int = 12_000
    output_max: int = 250
    again: float = 0.0  # share of its requests that go on where an earlier one ended


KINDS = (
    Kind("chat", 0.40, 1.0, 350, 1.0, 30, 0.7, "interactive", again=0.3),
    Kind("code", 0.25, 1.5, 700, 0.9, 8, 0.7, "interactive", again=0.2),
    Kind("agent", 0.20, 5.0, 2200, 0.9, 20, 0.8, "bulk", again=0.5),
    Kind("reasoning", 0.15, 2.0, 250, 0.8, 150, 0.4, "default"),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def rows(seed: int, count: int) -> list[tuple[Kind, TraceRow]]:
    """So many requests, by class."""
    rng = Random(f"slo {seed}")
    talks: dict[str, list[tuple[list[int], int]]] = {kind.name: [] for kind in KINDS}
    shares = [kind.share for kind in KINDS]
    made, fresh = [], 1
    for number in range(count):
        (kind,) = rng.choices(KINDS, shares)
        before = talks[kind.name]
        blocks: list[int] = [0]
        tokens = _tokens(rng, kind.prompt, kind.prompt_spread, MARK_BYTES, kind.prompt_max)
        if before and rng.random() < kind.again:
            blocks, known = before.pop(rng.randrange(len(before)))
            tokens = min(kind.prompt_max, known + tokens // 4)
        while len(blocks) < tokens // BLOCK_TOKENS:
            blocks.append(fresh)
            fresh += 1
        output = _tokens(rng, kind.output, kind.output_spread, 1, kind.output_max)
        kept = tuple(blocks[: tokens // BLOCK_TOKENS])
        made.append((kind, TraceRow(float(number), tokens, output, kept, BLOCK_TOKENS)))
        before.append((list(blocks), tokens))
        if len(before) > 50:
            before.pop(0)
    return made


def _tokens(rng: Random, median: float, spread: float, least: int, most: int) -> int:
    return max(least, min(most, round(rng.lognormvariate(math.log(median), spread))))


def schedule(rate_per_s: float, seed: int, seconds: float) -> list[Planned]:
    """The requests of a seed at a rate; two rates of one seed have the same beginning."""
    mixed = rows(seed, round(rate_per_s * seconds))
    plain = planned([row for _, row in mixed], rate_per_s, seed, MODEL)
    return [_labelled(one, kind) for one, (kind, _) in zip(plain, mixed, strict=True)]


def _labelled(one: Planned, kind: Kind) -> Planned:
    return replace(one, label=kind.name, lines=f"x-slo-class: {kind.name}\r\nX-SMG-Priority: {kind.smg}\r\n")


def classes_toml(kinds: Sequence[Kind] = KINDS) -> str:
    """The classes as Leeway's configuration has them."""
    return "".join(f"[classes.{kind.name}]\nttft_ms = {kind.ttft_s * 1e3:g}\n" for kind in kinds)
