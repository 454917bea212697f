"""What computing a prompt costs, in closed form: no step loop, a few multiplications.

    steps = ceil(x / (chunk - D))          x tokens after h that are cached, beside D decodes over K context tokens
    prefill_s = steps (a + c D + d K + b max(0, D - n0)) + b x + e x (h + x/2)

with the six numbers of step form `h`; the linear form has e = 0 and no knee. What a prompt's own tokens save below the
knee is left out.
"""

from dataclasses import dataclass

from predictor.profile import StepProfile


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The numbers of the formula, in seconds: a, b, c, d, e, the knee n0 in tokens and b for what is over it; and what
    a step costs more as soon as anybody decodes."""

    base_s: float
    token_s: float
    decode_s: float
    kv_s: float
    pair_s: float = 0.0
    knee_tokens: float = 0.0
    over_knee_s: float = 0.0
    decode_base_s: float = 0.0

    def step_s(self, decodes: int, kv_tokens: float) -> float:
        """A step without prompt tokens; also what each step of a prompt costs beyond its tokens."""
        if decodes <= 0:
            return self.base_s
        over = decodes - self.knee_tokens
        beyond = self.over_knee_s * over if over > 0 else 0.0
        return self.base_s + self.decode_base_s + self.decode_s * decodes + self.kv_s * kv_tokens + beyond

    def tokens_s(self, tokens: float, pairs: float) -> float:
        """What prompt tokens cost beyond their steps; `pairs` = sum of x (h + x/2)."""
        return self.token_s * tokens + self.pair_s * pairs

    def prefill_s(self, tokens: int, cached: int, decodes: int, kv_tokens: float, chunk: int) -> float:
        """The formula. `chunk` = prompt tokens that fit into one step beside the decodes, at least 1."""
        steps = -(-tokens // chunk)
        return steps * self.step_s(decodes, kv_tokens) + self.tokens_s(tokens, tokens * (cached + 0.5 * tokens))


def step_costs(profile: StepProfile) -> StepCosts:
    """The closed form's numbers of a profile."""
    base, linear, over_knee, knee, decode_base, decode, kv, pair = profile.coefficients
    return StepCosts(base, linear + over_knee, decode, kv, pair, knee, over_knee, decode_base)
