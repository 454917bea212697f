"""Predicted lengths of a given skill: what dispatch is told when so much of the lengths' variance can be foretold. Pure.

Logs of answer lengths are x of mean m and deviation s. A calibrated predictor that explains the share r of their variance
tells p = m + r (x - m) + sqrt(r (1 - r)) s z, z a standard normal: the residual x - p has deviation s sqrt(1 - r) whatever
p says, and its mean |residual| is sqrt(1 - r) times the constant's. So r = 1 - (log-MAE / log-MAE of the constant)^2.
At r = 0 the quantiles of all answers are told, at r = 1 the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, pstdev

from gateway.sim.workload import Z90, SimRequest
from predictor.request import LengthEstimate


def foretold(requests: Sequence[SimRequest], skill: float, seed: int) -> list[SimRequest]:
    """The requests as a predictor of that skill (0 to 1) tells them; all skills of one seed share their luck."""
    logs = [math.log(request.output_tokens) for request in requests]
    mean, deviation = fmean(logs), pstdev(logs)
    rng = Random(f"foretold {seed}")
    wrong = math.sqrt(skill * (1.0 - skill)) * deviation
    told = [mean + skill * (x - mean) + wrong * rng.gauss(0.0, 1.0) for x in logs]
    if skill <= 0.0:
        ordered = sorted(logs)
        constant = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.1, 0.5, 0.9)]
        return [replace(request, lengths=_estimate(constant, "constant")) for request in requests]
    width = Z90 * deviation * math.sqrt(1.0 - skill)
    name = "oracle" if skill >= 1.0 else f"skill {skill:g}"
    return [
        replace(request, lengths=_estimate((p - width, p, p + width), name)) for request, p in zip(requests, told, strict=True)
    ]


def _estimate(logs: Sequence[float], source: str) -> LengthEstimate:
    q10, q50, q90 = (max(1, round(math.exp(log))) for log in logs)
    return LengthEstimate(q10, q50, q90, source)
