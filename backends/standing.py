"""What a request in an engine was promised, as its sender said it, and how far it is. Pure and engine-neutral.

The gateway says in `vllm_xargs` until when the first token is needed and how fast it must go on; without that, `priority`
counts as the latest start. Instants are unix seconds, as the engine stamps arrivals.
"""

import math
from collections.abc import Mapping
from typing import Protocol

from predictor.budget import SloTarget
from predictor.places import TIER_2

PLAUSIBLE_S = 3600.0


class InEngine(Protocol):
    """A request as the scheduler holds it; names are vLLM's, `leeway` and `leeway_expected` are set by us."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    priority: int
    leeway_expected: int
    leeway: "Standing"

    @property
    def num_output_tokens(self) -> int: ...


class Standing:
    """What a request was promised, and how far it is."""

    __slots__ = (
        "arrival_s",
        "begun_s",
        "cached",
        "deadline_s",
        "estimate_s",
        "first_s",
        "gave_way",
        "hint_s",
        "slo_class",
        "target",
        "tier",
    )

    def __init__(self, slo_class: str, target: SloTarget, arrival_s: float, deadline_s: float, hint_s: float) -> None:
        self.slo_class = slo_class
        self.target = target
        self.arrival_s = arrival_s
        self.deadline_s = deadline_s
        self.hint_s = hint_s
        self.tier = 1
        self.cached = 0  # prompt tokens that it finds in the KV cache
        self.begun_s = self.first_s = self.estimate_s = 0.0  # 0: not yet
        self.gave_way = 0


def standing(hints: object, priority: int, arrival_s: float) -> Standing:
    """What its sender says of a request. What is nonsense counts as not said: an engine is no place to refuse."""
    told = hints if isinstance(hints, dict) and hints.get("leeway_v") == 1 else {}
    sent_s = _number(told, "leeway_arrival_unix_ms") / 1000
    if max(0.0, arrival_s - PLAUSIBLE_S) < sent_s <= arrival_s:
        arrival_s = sent_s
    ttft_s, tpot_s = (_number(told, f"leeway_{name}_ms") / 1000 for name in ("ttft", "tpot"))
    deadline_s = _number(told, "leeway_deadline_unix_ms") / 1000
    if deadline_s <= 0 or abs(deadline_s - arrival_s) > PLAUSIBLE_S:
        deadline_s = arrival_s + ttft_s if ttft_s > 0 else math.inf
    hint_s = max(0.0, _number(told, "leeway_estimate_ms") / 1000)
    if not told and priority > 0:
        start_s = (priority - TIER_2 if priority >= TIER_2 else priority) / 1000
        if abs(start_s - arrival_s) < PLAUSIBLE_S:
            deadline_s = start_s
    target = SloTarget(ttft_s if ttft_s > 0 else math.inf, tpot_s if tpot_s > 0 else math.inf)
    slo_class = told.get("leeway_class", "")
    return Standing(slo_class if isinstance(slo_class, str) else "", target, arrival_s, deadline_s, hint_s)


def _number(told: Mapping[str, object], name: str) -> float:
    value = told.get(name)
    return float(value) if isinstance(value, (int, float)) and -1e15 < value < 1e15 else 0.0
