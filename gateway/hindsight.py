"""What predicted lengths change: decisions beside those that a constant length would have led to. Pure; counters only.

A place in the line is compared whenever a waiting job is told its length: moved ahead of some, it saves their tokens of
waiting and costs each of them its own. A choice of replica is compared for a sample of jobs, which carry the constant
length as `plain`: the gain is the predicted E2E at the place of the constant's choice less that of the one taken.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.foresight import Foresight
from gateway.jobs import Job
from gateway.plan import Lane, Ticket
from gateway.policies.base import Probing, Replies
from gateway.views import View

MEMORY = 200  # told lengths by which `moving` forgets


class Hindsight:
    """See the module's words. `moving`: the share of the lengths told lately that gave their job another place in the line; 1
    until hundreds were told."""

    __slots__ = ("changed", "compared", "gain_s", "moving")

    def __init__(self) -> None:
        self.compared = 0
        self.changed = 0
        self.gain_s = 0.0
        self.moving = 1.0

    def stayed(self) -> None:
        """A waiting job was told about the length that was supposed."""
        self.compared += 1
        self.moving -= self.moving / MEMORY

    def moved(self, line: Sequence[Ticket], before: int, moved: Ticket, lanes: Sequence[Lane]) -> None:
        """A waiting job was told its length and left the place `before`; `line` is as it is now."""
        after = line.index(moved)
        if before == after:
            self.stayed()
            return
        self.compared += 1
        self.changed += 1
        self.moving += (1.0 - self.moving) / MEMORY
        own = moved.job.lengths.q50
        passed = line[after + 1 : before + 1] if after < before else line[before:after]
        theirs = sum([ticket.job.lengths.q50 for ticket in passed])
        saved = theirs - own * len(passed) if after < before else own * len(passed) - theirs
        self.gain_s += saved * _token_s(lanes)

    def chose(
        self,
        job: Job,
        views: Sequence[View],
        chosen: View,
        replies: Replies,
        policy: Probing,
        foresight: Foresight,
        now_s: float,
    ) -> None:
        """A replica was chosen for a job that carries its constant length; what would that have chosen?"""
        assert job.plain is not None
        constant = replace(job, lengths=job.plain, plain=None)
        answers = [(view.name, foresight.reply(constant, view, now_s)) for view in views]
        known = {name: reply for name, reply in answers if reply is not None}
        if len(known) < len(views):
            return
        other = policy.choose(constant, views, now_s, known)
        self.compared += 1
        if other is not chosen:
            self.changed += 1
            self.gain_s += replies[other.name].estimate.e2e_s - replies[chosen.name].estimate.e2e_s


def _token_s(lanes: Sequence[Lane]) -> float:
    """Seconds in which all engines together produce one token."""
    rate = sum([max(1, lane.mirror.decodes) / (lane.step_s * lane.pace) for lane in lanes if lane.step_s > 0])
    return 1.0 / rate if rate else 0.0
