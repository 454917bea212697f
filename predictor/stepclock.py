"""The step in progress of an engine whose clock nobody can see, reckoned from its profile. Pure.

Steps follow each other without a gap. A step holds one token for each decoding sequence and the next chunk of prompts, in
the order in which its owner keeps them. What is heard (a first token, an end) marks the end of a step and corrects this.
"""

import math

from predictor.prefill import StepCosts
from predictor.seats import Seat

TINY_S = 1e-6


class StepClock:
    """`ends_s` is the end of the step in progress, `chunk` the prompt tokens in it; `pace` stretches all steps."""

    __slots__ = ("chunk", "costs", "ends_s", "filling", "pace", "step_tokens")

    def __init__(self, costs: StepCosts, step_tokens: int, filling: list[Seat]) -> None:
        """`filling` is the owner's list of requests without a first token, in the order of computing."""
        self.costs = costs
        self.step_tokens = step_tokens
        self.filling = filling
        self.pace = 1.0
        self.ends_s = 0.0
        self.chunk = 0

    def stop(self) -> None:
        """The engine is idle."""
        self.ends_s, self.chunk = 0.0, 0

    def advance(self, now_s: float, decodes: int, kv_tokens: float) -> None:
        """End the steps that ended before `now_s`."""
        while self.ends_s <= now_s:
            at_s = self.ends_s
            self._end()
            if not self.begin(at_s, decodes, kv_tokens):
                step_s = max(TINY_S, self.ends_s - at_s)
                self.ends_s = at_s + (math.floor((now_s - at_s) / step_s) + 1) * step_s

    def begin(self, at_s: float, decodes: int, kv_tokens: float) -> bool:
        """Start a step; False when no prompt is in it."""
        left = context = 0
        for seat in self.filling:
            part = seat.prompt_tokens - seat.computed
            if part > 0:
                context = context or seat.computed
                left += part
        self.chunk = chunk = min(left, max(1, self.step_tokens - decodes))
        step_s = self.costs.step_s(decodes, kv_tokens)
        if chunk:
            step_s += self.costs.tokens_s(chunk, chunk * (context + 0.5 * chunk))
        self.ends_s = at_s + max(TINY_S, step_s * self.pace)
        return chunk > 0

    def heard(self, now_s: float, decodes: int, kv_tokens: float) -> None:
        """A step ended just now: the reckoned one that is nearest. The next begins."""
        self.advance(now_s, decodes, kv_tokens)
        step_s = (self.costs.step_s(decodes, kv_tokens) + self.costs.token_s * self.chunk) * self.pace
        if self.ends_s - now_s < 0.5 * step_s:
            self._end()
        self.begin(now_s, decodes, kv_tokens)

    def _end(self) -> None:
        """The chunk in progress is computed."""
        chunk, self.chunk = self.chunk, 0
        for seat in self.filling:
            if chunk <= 0:
                break
            part = min(chunk, seat.prompt_tokens - seat.computed)
            if part > 0:
                seat.computed += part
                chunk -= part
