"""Whether a request's KV is worth loading from outside the engine, by its latency budget. Engine-neutral and pure.

`predictor.restore` decides between loading all that was found, a part of it (where the connector can load a part) and
computing it all again; here are the figures that it needs: what loading takes (configured, since the scheduler's process
cannot see it), what computing takes (learned by the scheduler, or configured), and the time left. A request without an
SLO loads whatever is found, as without us.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from backends.cascade import EnginePace
from backends.standing import Standing
from predictor.budget import GAMMA_UNKNOWN
from predictor.restore import Found, Link, Restorer, Tier

RULES = ("feasible", "partial", "always", "never")


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """`tokens_per_s` and `latency_ms` of the external store; `rule` (`partial` only for connectors that can load a part);
    `prompt_us` a token until the scheduler has learned better. Raises ValueError."""

    tokens_per_s: float = 20_000.0
    latency_ms: float = 5.0
    rule: str = "feasible"
    prompt_us: float = 100.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"leeway_rule: {self.rule!r} is none of {', '.join(RULES)}")
        if not (self.tokens_per_s > 0 and self.latency_ms >= 0 and self.prompt_us > 0):
            raise ValueError("leeway_tokens_per_s, leeway_latency_ms, leeway_prompt_us: out of range")


def options(extra: Mapping[str, object]) -> RestoreOptions:
    """From a connector's extra config: the keys are the fields' names after `leeway_`. Raises ValueError."""
    known = RestoreOptions()
    numbers = {}
    for name in ("tokens_per_s", "latency_ms", "prompt_us"):
        value = extra.get(f"leeway_{name}", getattr(known, name))
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError(f"leeway_{name}: {value!r} is not a number")
        numbers[name] = float(value)
    return RestoreOptions(rule=str(extra.get("leeway_rule", known.rule)), **numbers)


class Asked(Protocol):
    """A request as the engine holds it."""

    num_prompt_tokens: int


class RestoreRule:
    """One engine's. `refused` counts requests whose load did not fit, `cut` those that got a part, `loaded` all others."""

    def __init__(self, given: RestoreOptions, block_tokens: int) -> None:
        self.loaded = self.refused = self.cut = 0
        self.pace = EnginePace()
        self.pace.token_s = given.prompt_us / 1e6
        self._block_tokens = block_tokens
        self._restorer = Restorer([Link(Tier("external", given.tokens_per_s, given.latency_ms / 1000))], 1.0, given.rule)

    def __repr__(self) -> str:
        return f"<RestoreRule {self._restorer.rule} loaded={self.loaded} cut={self.cut} refused={self.refused}>"

    def allowed(self, request: Asked, standing: Standing, local_tokens: int, found_tokens: int, now_s: float) -> int:
        """How many of `found_tokens` beyond the local ones to load: all, whole blocks of them, or none."""
        if standing.deadline_s == math.inf and self._restorer.rule in ("feasible", "partial"):
            return found_tokens
        found = Found(local_tokens, (local_tokens + found_tokens,))
        verdict = self._restorer.verdict(
            found, request.num_prompt_tokens + 1, standing.deadline_s - now_s, self._compute_s, now_s
        )
        tokens = min(found_tokens, verdict.tokens - local_tokens)
        return tokens if tokens == found_tokens else tokens - tokens % self._block_tokens

    def begun(self, found_tokens: int, tokens: int, now_s: float) -> None:
        """The request has its blocks, and so many tokens of those found are loaded."""
        if tokens:
            self._restorer.begin(Found(0, (tokens,)), tokens, now_s)
        if not tokens:
            self.refused += 1
        elif tokens < found_tokens:
            self.cut += 1
        else:
            self.loaded += 1

    def _compute_s(self, tokens: int, cached: int) -> float:
        return GAMMA_UNKNOWN * self.pace.prompt_s(tokens)
