"""What-if step by step: for states and orders that the kernel does not cover, and the truth that it is tested against.

Some hundred times slower than the kernel, and it covers everything that an `Instance` does.
"""

from dataclasses import dataclass, replace

from predictor.instance import Instance
from predictor.profile import StepProfile
from predictor.request import Admitted, Decoded, Event, Finished, FirstToken, Preempted
from predictor.snapshot import Resident, Snapshot


@dataclass(slots=True)
class Outcome:
    """What became of the request asked about; seconds from the end of the step in progress, NaN while unknown.

    `peak_blocks` are in use at once at most until its end, `ends_sum_s` is the sum of the ends of all others.
    """

    wait_s: float = float("nan")
    ttft_s: float = float("nan")
    e2e_s: float = float("nan")
    preemptions: int = 0
    peak_blocks: int = 0
    ends_sum_s: float = 0.0
    steps: int = 0
    complete: bool = False


def simulate(
    profile: StepProfile,
    snapshot: Snapshot,
    target: Resident | None,
    *,
    drain: bool = False,
    steps_max: int = 20_000,
    place: int = -1,
) -> Outcome:
    """Put `target` behind the first `place` of the queue (below 0: behind all) and run until it has ended; with `drain`, or
    without a target, until all have.

    `complete` tells whether that end was reached within `steps_max` steps. Raises ValueError for a state that no engine
    can be in.
    """
    waiting = snapshot.waiting
    if target is not None:
        waiting = (*waiting, target) if place < 0 else (*waiting[:place], target, *waiting[place:])
    begin_s = snapshot.taken_s
    instance = Instance.restore(profile, replace(snapshot, waiting=waiting, step_ends_s=0.0))
    outcome = Outcome(steps=-1)  # the first step of a restored instance is the one that was in progress
    target_id = None if target is None else target.id
    ended = target is None
    while instance.step_ends_at_s is not None and outcome.steps < steps_max and (drain or not ended or target is None):
        preemptions = instance.preemptions
        for event in instance.finish_step(instance.step_ends_at_s):
            ended |= _note(outcome, event, target_id, begin_s)
        outcome.steps += 1
        if not ended:
            used = instance.limits.kv_blocks - (0 if instance.preemptions != preemptions else instance.free_blocks)
            outcome.peak_blocks = max(outcome.peak_blocks, used)
    outcome.complete = ended and (instance.step_ends_at_s is None or not (drain or target is None))
    return outcome


def _note(outcome: Outcome, event: Event, target_id: str | None, begin_s: float) -> bool:
    """Returns whether the target ended."""
    if isinstance(event, Decoded):
        return False
    after_s = event.at_s - begin_s
    if event.request_id != target_id:
        if isinstance(event, Finished):
            outcome.ends_sum_s += after_s
        return False
    match event:
        case Admitted():
            outcome.wait_s = after_s if outcome.wait_s != outcome.wait_s else outcome.wait_s
        case FirstToken():
            outcome.ttft_s = after_s
        case Preempted():
            outcome.preemptions += 1
        case Finished():
            outcome.e2e_s = after_s
            return True
    return False
