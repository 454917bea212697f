"""The requests of one CASCADE run: classes mixed at random, Poisson arrivals, prefixes as block hashes. Pure but for traces.

Arrivals are gaps of mean 1 scaled to the rate, so runs with one seed differ in nothing but the rate. A trace with hashes
is replayed in its order from a place that the seed chooses; others are sampled, and get prefixes as their class says.
"""

import csv
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random

from gateway.sim.cascade_spec import CascadeSpec, ClassSpec
from gateway.sim.traces import TraceRow, read_trace
from gateway.sim.workload import SimRequest, told

RECENT = 200  # earlier requests of its class that one may continue


@lru_cache(maxsize=8)
def _rows(path: str, form: str) -> tuple[TraceRow, ...]:
    if form != "quantiles":
        return tuple(read_trace(Path(path), form))
    with open(path, newline="", encoding="utf-8") as file:
        return tuple(TraceRow(0.0, int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file))


def draw_mix(spec: CascadeSpec, rate_per_s: float, seed: int, max_tokens: int) -> list[tuple[SimRequest, int]]:
    """Each request with the number of its class, in order of arrival."""
    rng = Random(f"cascade {seed}")
    sources = [_Source(one, spec.block_tokens, 1 + i, len(spec.classes), rng) for i, one in enumerate(spec.classes)]
    shares = [one.share for one in spec.classes]
    at_s, found = 0.0, []
    for i in range(spec.requests):
        at_s += rng.expovariate(1.0) / rate_per_s
        (number,) = rng.choices(range(len(sources)), shares)
        prompt, output, prefix = sources[number].next(max_tokens)
        lengths = told(output, spec.length_error, rng)
        found.append((SimRequest(str(i), at_s, prompt, output, lengths, prefix, prefix), number))
    return found


class _Source:
    """One class's lengths and prefixes. Block names are numbers that no other class uses."""

    def __init__(self, one: ClassSpec, block: int, first: int, stride: int, rng: Random) -> None:
        self._spec = one
        self._rows = _rows(one.trace, one.format)
        self._block = block
        self._rng = rng
        self._at = int(rng.random() * len(self._rows))
        self._fresh = -first
        self._stride = stride
        self._recent: list[tuple[int, ...]] = []

    def next(self, max_tokens: int) -> tuple[int, int, tuple[int, ...]]:
        """Prompt tokens, output tokens, prefix."""
        if self._spec.format == "quantiles":
            prompt, output = self._quantile("prompt"), self._quantile("output")
        else:
            row = self._row()
            prompt, output = row.prompt_tokens, row.output_tokens
            if row.blocks:
                output = min(output, self._spec.output_max)
                prompt = min(prompt, max_tokens - output)
                return prompt, output, self._hashed(row, prompt)
        output = min(output, self._spec.output_max)
        prompt = min(prompt, max_tokens - output)
        return prompt, output, self._made_up(prompt // self._block)

    def _row(self) -> TraceRow:
        rows = self._rows
        if rows[0].blocks:
            self._at = (self._at + 1) % len(rows)
            return rows[self._at]
        return rows[int(self._rng.random() * len(rows))]

    def _quantile(self, which: str) -> int:
        place = self._rng.random() * (len(self._rows) - 1)
        low, high = self._rows[int(place)], self._rows[int(place) + 1]
        a, b = (low.prompt_tokens, high.prompt_tokens) if which == "prompt" else (low.output_tokens, high.output_tokens)
        return max(1, round(a + (b - a) * (place - int(place))))

    def _hashed(self, row: TraceRow, prompt: int) -> tuple[int, ...]:
        ratio, rest = divmod(row.block_tokens, self._block)
        if rest:
            raise ValueError(f"block_tokens: {self._block} does not divide the trace's {row.block_tokens}")
        names = [block * ratio + i for block in row.blocks for i in range(ratio)]
        return tuple(names[: prompt // self._block])

    def _made_up(self, blocks: int) -> tuple[int, ...]:
        rng = self._rng
        begin: tuple[int, ...] = ()
        if self._recent and rng.random() < self._spec.reuse:
            begin = self._recent[int(rng.random() * len(self._recent))][: int(blocks * rng.uniform(*self._spec.reuse_part))]
        names: list[int] = list(begin)
        while len(names) < blocks:
            names.append(self._fresh)
            self._fresh -= self._stride
        prefix = tuple(names)
        if prefix:
            self._recent.append(prefix)
            if len(self._recent) > RECENT:
                del self._recent[0]
        return prefix


def sizes(mix: Sequence[tuple[SimRequest, int]]) -> list[int]:
    """Prompt tokens of each: what the fairness between sizes goes by."""
    return [request.prompt_tokens for request, _ in mix]
