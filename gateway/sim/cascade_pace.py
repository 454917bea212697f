"""How many tokens the next step may have, so that those who decode keep their TPOT. Pure.

A decoding request can afford steps of  a = (tpot (n - 1) - (now - first)) / (n - generated)  on the mean over what is left
of its answer; n is the told length, or a little more than it has if that proved short. The step may last the least `a` of
those who still can keep theirs, and prompts get what the decodes leave of it.
"""

from gateway.sim.cascade_engine import CascadeEngine
from gateway.sim.cascade_jobs import Jobs
from gateway.sim.cascade_spec import CascadeSpec
from predictor.prefill import StepCosts

LEAST = 512  # prompt tokens a step, whatever TPOT says
GRAIN = 256
MARGIN = 0.9  # of what could be afforded: steps may turn out longer than believed


class PromptRoom:
    """For one run; `aware` False: always the whole chunk."""

    def __init__(self, spec: CascadeSpec, aware: bool, costs: StepCosts, jobs: Jobs) -> None:
        self._aware = aware
        self._most = spec.chunk_tokens
        self._costs = costs
        self._jobs = jobs

    def tokens(self, engine: CascadeEngine, now_s: float) -> int:
        """Of the next step, those that decode included."""
        load = engine.load
        if not self._aware or not load.decodes:
            return self._most
        bare_s = self._costs.step_s(load.decodes, load.kv_tokens)
        least_s = 1e9
        for running in engine.decoding:
            job = self._jobs.by_id[running.id]
            if job.first_s is None:
                continue
            left = self._jobs.left(running.id, running.generated)
            able_s = (job.target.tpot_s * (running.generated + left - 1) - (now_s - job.first_s)) / left
            if bare_s < able_s < least_s:
                least_s = able_s
        tokens = int((least_s * MARGIN - bare_s) / self._costs.token_s) if least_s < 1e9 else self._most
        return min(self._most, max(LEAST, tokens // GRAIN * GRAIN) + load.decodes // GRAIN * GRAIN + GRAIN)
