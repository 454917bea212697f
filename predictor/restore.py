"""A prefix's KV in deeper memory: fetch it, fetch a part, or compute it again; in which order, what to keep, whom to displace.

Tiers lie below HBM, the nearest first (DRAM, NVMe, remote), each behind one link that its transfers pass in turn:

    T_restore(x from tier m) = max(now, link free) - now + latency_m + bytes per token * x / bandwidth_m
    cost(h)                  = max over tiers used(T_restore) + T_prefill(prompt - h, h)

Of the lengths h that keep cost(h) within the time left, that one is chosen which computes least; if none does, the least
cost. Pure: nothing is moved here; instants come in as `now_s`. Source: CASCADE's feasible restoration and preemption.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

RULES = ("always", "never", "feasible", "partial")
VICTIMS = ("redo", "paper")
HALVINGS = 12  # of a range of tokens: finer than a KV block for any prompt


@dataclass(frozen=True, slots=True)
class Tier:
    """One kind of memory below HBM. Raises ValueError for a bandwidth that is not above 0."""

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    capacity_bytes: float = math.inf

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or self.latency_s < 0 or self.capacity_bytes < 0:
            raise ValueError(f"tier {self.name}: bandwidth above 0, latency and capacity not negative")


class Link:
    """The way from one tier: transfers in turn, each at the whole bandwidth."""

    __slots__ = ("free_at_s", "tier")

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.free_at_s = 0.0

    def transfer_s(self, size_bytes: float, now_s: float) -> float:
        """Seconds from now until so many bytes would be here, those before them included; 0 for none."""
        if size_bytes <= 0:
            return 0.0
        return max(0.0, self.free_at_s - now_s) + self.tier.latency_s + size_bytes / self.tier.bytes_per_s

    def take(self, size_bytes: float, now_s: float) -> float:
        """Begin such a transfer; the instant at which it ends."""
        end_s = now_s + self.transfer_s(size_bytes, now_s)
        self.free_at_s = max(self.free_at_s, end_s)
        return end_s


@dataclass(frozen=True, slots=True)
class Found:
    """Where a prompt's beginning lies: `hbm_tokens` are there already; `reach[i]` is up to which token it is found when
    tiers 0..i are used as well (rising)."""

    hbm_tokens: int
    reach: tuple[int, ...] = ()

    def spans(self, upto: int) -> list[int]:
        """Tokens to be fetched from each tier to have the first `upto`."""
        spans, have = [], self.hbm_tokens
        for reach in self.reach:
            part = max(0, min(reach, upto) - have)
            spans.append(part)
            have += part
        return spans


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do: have the first `tokens` (those in HBM included), `restore_s` from now, and compute the rest in
    `compute_s`. `feasible`: that keeps the time left."""

    tokens: int
    restore_s: float
    compute_s: float
    feasible: bool

    @property
    def cost_s(self) -> float:
        """From now to the first token."""
        return self.restore_s + self.compute_s


Compute = Callable[[int, int], float]  # (tokens, cached) -> seconds


class Restorer:
    """Judges prefixes over the tiers of one engine."""

    __slots__ = ("_token_bytes", "links", "rule")

    def __init__(self, links: Sequence[Link], token_bytes: float, rule: str = "partial") -> None:
        """`rule`: always the longest prefix, never, the longest that is feasible (CASCADE), or any part of it. Raises
        ValueError for another."""
        if rule not in RULES:
            raise ValueError(f"no restore rule {rule!r}; known: {', '.join(RULES)}")
        self.links = links
        self.rule = rule
        self._token_bytes = token_bytes

    def restore_s(self, found: Found, upto: int, now_s: float) -> float:
        """Seconds until the first `upto` tokens are in HBM; the links work side by side."""
        spans = zip(self.links, found.spans(upto), strict=False)
        return max((link.transfer_s(span * self._token_bytes, now_s) for link, span in spans), default=0.0)

    def begin(self, found: Found, upto: int, now_s: float) -> float:
        """Begin these transfers; the instant at which the last one ends."""
        spans = zip(self.links, found.spans(upto), strict=False)
        return max((link.take(span * self._token_bytes, now_s) for link, span in spans if span), default=now_s)

    def verdict(self, found: Found, prompt_tokens: int, left_s: float, compute_s: Compute, now_s: float) -> Verdict:
        """See the module. `left_s`: seconds until the deadline, less what passes before it can begin."""
        if self.rule == "never" or not found.reach:
            return self._at(found, found.hbm_tokens, prompt_tokens, left_s, compute_s, now_s)
        lengths = sorted({found.hbm_tokens, *(max(found.hbm_tokens, reach) for reach in found.reach)})
        if self.rule == "always":
            return self._at(found, lengths[-1], prompt_tokens, left_s, compute_s, now_s)
        options = [self._at(found, length, prompt_tokens, left_s, compute_s, now_s) for length in lengths]
        if self.rule == "partial":
            options += self._parts(found, options, prompt_tokens, left_s, compute_s, now_s)
        kept = [option for option in options if option.feasible]
        if kept:
            return min(kept, key=lambda option: (option.compute_s, option.cost_s))
        return min(options, key=lambda option: option.cost_s)

    def _parts(
        self, found: Found, options: list[Verdict], prompt_tokens: int, left_s: float, compute_s: Compute, now_s: float
    ) -> list[Verdict]:
        """Between a length that is feasible and the next one that is not: the longest feasible part, by halving."""
        parts = []
        for short, long in pairwise(options):
            if short.feasible and not long.feasible:
                low, high = short, long.tokens
                for _ in range(HALVINGS):
                    middle = self._at(found, (low.tokens + high) // 2, prompt_tokens, left_s, compute_s, now_s)
                    if middle.feasible:
                        low = middle
                    else:
                        high = middle.tokens
                parts.append(low)
        return parts

    def _at(self, found: Found, length: int, prompt_tokens: int, left_s: float, compute_s: Compute, now_s: float) -> Verdict:
        length = min(length, prompt_tokens - 1)  # one token at least is computed
        restore_s = self.restore_s(found, length, now_s)
        rest_s = compute_s(prompt_tokens - length, length)
        return Verdict(length, restore_s, rest_s, restore_s + rest_s <= left_s)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A waiting request whose prefix could be fetched before its turn: its budget and what its transfer takes."""

    id: str
    budget_s: float
    restore_s: float


def prefetch_order(waiting: Iterable[Fetch]) -> list[str]:
    """Who is to be fetched for, in order: least budget first, as long as the budget exceeds the transfer."""
    able = [fetch for fetch in waiting if fetch.restore_s > 0 and fetch.budget_s > fetch.restore_s]
    return [fetch.id for fetch in sorted(able, key=lambda fetch: (fetch.budget_s, fetch.id))]


def reuse_p(hits: int, idle_s: float, half_life_s: float, prior: float = 0.5) -> float:
    """Chance that a prefix is asked for again: (hits + 2 prior) / (hits + 2) 2^(-idle / half life).

    `prior` is the share of its kind that was ever asked for again; at 0.5 the first factor is Laplace's rule.
    """
    return (hits + 2.0 * prior) / (hits + 2) * math.exp2(-idle_s / half_life_s)


def keep_value(reuse: float, recompute_s: float, size_bytes: float) -> float:
    """What a byte of memory saves by keeping it: reuse probability x recompute seconds / bytes. The least is demoted to
    the next tier first, or evicted from the last."""
    return reuse * recompute_s / size_bytes


def keep_key(hits: int, used_s: float, half_life_s: float, prior: float, recompute_s: float, size_bytes: float) -> float:
    """The same order in a number that does not change as time passes: log2 of `keep_value` at the instant 0, since all
    values fade at one pace. So what is kept can lie in a heap."""
    return used_s / half_life_s + math.log2(keep_value(reuse_p(hits, 0.0, half_life_s, prior), recompute_s, size_bytes))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running request that might be displaced: its remaining budget, what doing it again costs (restored or computed),
    and the KV blocks that it would free."""

    id: str
    budget_s: float
    redo_s: float
    blocks: int


def victim(running: Iterable[Candidate], rule: str = "redo") -> str | None:
    """Whom to displace for a waiting request; None: nobody.

    `redo`: the largest budget that still affords its own redo (budget - redo > 0); among equals who frees most blocks per
    second of redo. `paper`: the largest budget, whatever becomes of it. Raises ValueError for another rule.
    """
    if rule not in VICTIMS:
        raise ValueError(f"no victim rule {rule!r}; known: {', '.join(VICTIMS)}")
    able = [one for one in running if rule == "paper" or one.budget_s > one.redo_s]
    if not able:
        return None
    return max(able, key=lambda one: (one.budget_s, one.blocks / max(one.redo_s, 1e-9))).id


def crossover_tokens(tier: Tier, token_bytes: float, compute_s: Compute, most: int = 1 << 20) -> int:
    """From how many tokens on fetching a prefix takes less time than computing it; 0: never up to `most`.

    Computing grows with the square of the length, fetching does not, so there is one such length.
    """
    link = Link(tier)

    def slower(tokens: int) -> bool:
        return link.transfer_s(tokens * token_bytes, 0.0) >= compute_s(tokens, 0)

    if slower(most):
        return 0
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if slower(middle):
            low = middle
        else:
            high = middle
    return high
