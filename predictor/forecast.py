"""What would happen to a request on one engine: the kernel where it is exact, else step by step, never a guess.

A state is loaded once; any number of requests may then be asked about. Output lengths are the expected ones, both of
the residents (in the snapshot) and of the request. What no model can tell (a state that no engine can be in, a request
that the engine would refuse, a simulation longer than its cap) is `Estimate.unknown`.
"""

import math

from predictor.kernel import Kernel, UnfitError
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate, Request
from predictor.snapshot import ProbeReply, Resident, Snapshot, settle
from predictor.stepwise import Outcome, simulate

GROWTH_ERROR = 0.25  # relative standard error of how much the blocks in use will still grow: that of the lengths


class Forecast:
    """One engine's future. Not re-entrant: one object for each replica.

    `spread`, `least` and `most` go into every estimate: whoever observes outcomes sets them.
    """

    def __init__(self, profile: StepProfile, limits: EngineLimits) -> None:
        self.profile = profile
        self.limits = limits
        self.spread = self.least = self.most = 1.0
        self._kernel = _kernel(profile, limits)
        self._snapshot: Snapshot | None = None
        self._exact = False
        self._alone_s: float | None = None
        self._totals: tuple[int, int] | None = None

    def __repr__(self) -> str:
        path = "nothing" if self._snapshot is None else "the kernel" if self._exact else "step by step"
        return f"<Forecast {self.profile.form} {path}>"

    @property
    def by_kernel(self) -> bool:
        """Whether the loaded state is one that the kernel covers."""
        return self._exact

    def tune(self, profile: StepProfile) -> None:
        """From now on the engine's steps take what this profile says; the loaded state stays."""
        self.profile = profile
        self._alone_s = None
        if self._kernel is not None:
            self._kernel.tune(profile.coefficients)

    def load(self, snapshot: Snapshot) -> None:
        """Predict from this state on. Whatever it holds, this raises nothing: see `Estimate.unknown`."""
        self._alone_s = self._totals = None
        self._exact = False
        self._snapshot = snapshot
        if snapshot.limits != self.limits:
            self.limits = snapshot.limits
            self._kernel = _kernel(self.profile, self.limits)
        if self._kernel is None:
            return
        try:
            if self._kernel.load(snapshot.running, snapshot.waiting, snapshot.free_blocks) == 0:
                self._exact = True
                return
        except (UnfitError, OverflowError):
            pass
        self._load_settled(self._kernel, snapshot)

    def _load_settled(self, kernel: Kernel, snapshot: Snapshot) -> None:
        try:
            settled = settle(snapshot)
        except (ValueError, OverflowError):
            self._snapshot = None
            return
        self._snapshot = settled
        try:
            self._exact = kernel.load(settled.running, settled.waiting, settled.free_blocks) == 0
        except (UnfitError, OverflowError):
            self._exact = False

    def predict(
        self, request: Request, *, harm: bool = False, hit_tokens: int = 0, shared_blocks: int = 0, place: int = -1
    ) -> Estimate:
        """What would happen to the request if it were sent now, and got behind the first `place` of those who wait (below
        0: behind all).

        `hit_tokens` of its prompt are in the cache, `shared_blocks` of those held by others. `harm` also asks by how
        much it delays the others, which costs two simulations to the very end, the second one once for each state.
        """
        room = self.limits.max_model_len - request.prompt_tokens
        if self._snapshot is None or room < 1:
            return Estimate.unknown
        outputs = min(request.output_tokens, room)
        hit_tokens = max(0, min(hit_tokens, request.prompt_tokens - 1))
        target = Resident(request.id, request.prompt_tokens, hit_tokens, 0, outputs, max(0, shared_blocks))
        outcome = self._outcome(self._snapshot, target, drain=harm, place=place)
        if not outcome.complete and harm:
            outcome, harm = self._outcome(self._snapshot, target, drain=False, place=place), False
        if not outcome.complete:
            return Estimate.unknown
        return self._estimate(outcome, self._snapshot, outputs, harm=harm)

    def _estimate(self, outcome: Outcome, snapshot: Snapshot, outputs: int, *, harm: bool) -> Estimate:
        lead_s = snapshot.step_ends_s
        harm_s = math.nan
        if harm:
            if self._alone_s is None:
                alone = self._outcome(snapshot, None, drain=True)
                self._alone_s = alone.ends_sum_s if alone.complete else math.nan
            harm_s = outcome.ends_sum_s - self._alone_s
        used = self.limits.kv_blocks - snapshot.free_blocks
        return Estimate(
            ttft_s=lead_s + outcome.ttft_s,
            tpot_s=(outcome.e2e_s - outcome.ttft_s) / (outputs - 1) if outputs > 1 else 0.0,
            e2e_s=lead_s + outcome.e2e_s,
            wait_s=lead_s + outcome.wait_s,
            preempt_p=_preempt_p(outcome, used, self.limits.kv_blocks),
            kv_peak_blocks=outcome.peak_blocks,
            harm_s=harm_s,
            spread=self.spread,
            least=self.least,
            most=self.most,
        )

    def _outcome(self, snapshot: Snapshot, target: Resident | None, *, drain: bool, place: int = -1) -> Outcome:
        kernel = self._kernel
        if not self._exact or kernel is None:
            try:
                return simulate(self.profile, snapshot, target, drain=drain, place=place)
            except ValueError:
                return Outcome()
        try:
            if target is None:
                complete = kernel.drain_all()
            else:
                tokens = (target.prompt_tokens, target.output_tokens, target.computed_tokens)
                complete = kernel.predict(*tokens, target.shared_blocks, drain, place)
        except (UnfitError, OverflowError):
            return Outcome()
        return Outcome(
            kernel.wait_s,
            kernel.ttft_s,
            kernel.e2e_s,
            kernel.preemptions,
            kernel.peak_blocks,
            kernel.ends_sum_s,
            kernel.steps,
            complete,
        )

    def reply(self, request: Request, *, now_s: float | None = None, hit_tokens: int = 0, place: int = -1) -> ProbeReply:
        """The estimate, and the figures of the loaded state that policies go by; the state's age if `now_s` is given."""
        snapshot = self._snapshot
        estimate = self.predict(request, hit_tokens=hit_tokens, place=place)
        if snapshot is None:
            return ProbeReply(estimate, 0, 0, 0, 0, 0, math.inf)
        if self._totals is None:
            self._totals = _totals(snapshot)
        age_s = 0.0 if now_s is None else max(0.0, now_s - snapshot.taken_s)
        return ProbeReply(estimate, len(snapshot.running), len(snapshot.waiting), snapshot.free_blocks, *self._totals, age_s)


def _kernel(profile: StepProfile, limits: EngineLimits) -> Kernel | None:
    try:
        return Kernel(limits, profile.coefficients)
    except UnfitError:
        return None


def _totals(snapshot: Snapshot) -> tuple[int, int]:
    """Blocks that the queue's prompts need, and tokens still to be computed or produced by all."""
    blocks = sum(
        snapshot.limits.blocks_for(who.prompt_tokens + who.generated_tokens) - who.shared_blocks for who in snapshot.waiting
    )
    everyone = (*snapshot.running, *snapshot.waiting)
    return blocks, sum(max(0, who.prompt_tokens + who.output_tokens - who.computed_tokens) for who in everyone)


def _preempt_p(outcome: Outcome, used_blocks: int, kv_blocks: int) -> float:
    """1 if the simulation preempts it; else the chance that the growth still to come eats up what is left at the peak."""
    if outcome.preemptions:
        return 1.0
    growth = max(1, outcome.peak_blocks - used_blocks)
    margin = kv_blocks - outcome.peak_blocks
    return 0.5 * math.erfc(margin / (GROWTH_ERROR * growth * math.sqrt(2.0)))
