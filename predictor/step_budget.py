"""How many tokens an engine computes in one step at most, found out from its histogram of tokens per step. Pure.

vLLM counts its steps by the tokens in them (vllm:iteration_tokens_total; bounds are powers of two). A prompt that would
have filled a step twice as large, sent and computed between two readings in which no step had more than a bound, shows
that the budget is not above that bound; PROOFS such prompts are believed, and one larger step refutes them. What is found
is a bound of the histogram: up to twice the budget. It must never say anything of an engine that was not put to the test.
"""

from collections.abc import Sequence

PROOFS = 3
MARGIN = 2.0  # our count of a prompt's tokens is an estimate


class StepBudget:
    """`tokens` is what is believed, 0 while nothing is."""

    def __init__(self) -> None:
        self.tokens = 0
        self._seen: dict[float, float] = {}
        self._since_s = float("inf")
        self._largest = 0
        self._claim = 0.0
        self._proofs = 0

    def computed(self, starts_s: float, tokens: int) -> None:
        """A prompt's first token came; it began to be computed then, and so many tokens were not in the cache."""
        if starts_s >= self._since_s:
            self._largest = max(self._largest, tokens)

    def report(self, steps: Sequence[tuple[float, float]], now_s: float) -> int:
        """The histogram as read now: (bound, steps with at most so many tokens, from the engine's start), ascending, the
        last bound infinite; empty where the engine has none. Gives `tokens`."""
        before, largest = self._seen, self._largest
        self._seen, self._since_s, self._largest = dict(steps), now_s, 0
        if not before or set(before) != set(self._seen):
            return self.tokens
        new = [(bound, count - before[bound]) for bound, count in steps]
        total = new[-1][1]
        if total < 0:  # it has started anew, maybe with other settings
            self.tokens, self._claim, self._proofs = 0, 0.0, 0
        if total <= 0:
            return self.tokens
        top = next(bound for bound, count in new if count >= total)
        if top > max(self.tokens, self._claim):
            self.tokens, self._claim, self._proofs = 0, 0.0, 0
        if largest >= MARGIN * top:
            self._claim = max(self._claim, top)
            self._proofs += 1
            if self._proofs >= PROOFS:
                self.tokens = int(self._claim)
        return self.tokens
