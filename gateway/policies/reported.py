"""Policies by what an engine reports or a simulation predicts: the Astrolabe paper's and its baselines. Pure.

Sources: the Astrolabe paper's own policies (power of two, fan-out; target = predicted completion of the new request) and
its baselines' scores, which all ask every replica. Ties at random.
"""

from collections.abc import Sequence

from gateway.jobs import Job
from gateway.policies.base import PAIR_VIEWS_MAX, Base, Replies, least, pair
from gateway.views import View
from predictor.snapshot import ProbeReply

SLOWER = 1.1
TRIED = 0.05


class Predicted(Base):
    """The least predicted latency of those drawn: E2E, or TTFT with objective = "ttft". One that is idle, seems slow and got
    nothing for a minute is tried now and then: who seemed slow once, on a crowded machine, would be asked by nobody while
    others are idle, and go on seeming slow."""

    def count(self, views: Sequence[View]) -> int:
        """How many are drawn."""
        return len(views)

    def drawn(self, job: Job, views: Sequence[View]) -> Sequence[View]:
        """Distinct random ones."""
        count = self.count(views)
        if count >= len(views):
            return views
        return pair(views, self.rng) if count == 2 and len(views) <= PAIR_VIEWS_MAX else self.rng.sample(list(views), count)

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """The one that is expected to be done first."""
        if self.rule.objective == "ttft":
            best = least(views, lambda view: replies[view.name].estimate.ttft_s, self.rng)
        else:
            best = least(views, lambda view: replies[view.name].estimate.e2e_s, self.rng)
        slow_s = SLOWER * replies[best.name].estimate.tpot_s
        for view in views:
            if replies[view.name].estimate.tpot_s > slow_s and _forgotten(view, replies[view.name], now_s):
                return view if self.rng.random() < TRIED else best
        return best


def _forgotten(view: View, reply: ProbeReply, now_s: float) -> bool:
    """Whether it has nothing to do, and got nothing from here for a minute."""
    return not (reply.running or reply.waiting or view.in_flight or view.minute.count(now_s))


class PowerOfTwo(Predicted):
    """Two random ones asked, the better predicted one taken (Astrolabe, N = 2)."""

    def count(self, views: Sequence[View]) -> int:
        """Two."""
        return 2


class PowerOfD(Predicted):
    """As `po2` with any d."""

    def count(self, views: Sequence[View]) -> int:
        """d of the rule."""
        return self.rule.d


class FanOut(Predicted):
    """All are asked (Astrolabe, N = 12 of 12)."""


class Reported(Base):
    """All are asked for their state; the least score is taken."""

    def drawn(self, job: Job, views: Sequence[View]) -> Sequence[View]:
        """All of them."""
        return views

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """The least score."""
        return least(views, lambda view: self.score(job, replies[view.name]), self.rng)

    def score(self, job: Job, reply: ProbeReply) -> float:
        """What is compared; smaller is better."""
        return float(reply.running + reply.waiting)


class MinRequests(Reported):
    """Fewest running and waiting requests as the engine counts them (the paper's min current requests)."""


class Infaas(Reported):
    """INFaaS++: most free blocks per running request."""

    def score(self, job: Job, reply: ProbeReply) -> float:
        """-(free blocks / max(running, 1))."""
        return -reply.free_blocks / max(reply.running, 1)


class Llumnix(Reported):
    """Llumnix- without migration: as INFaaS++, less the blocks that waiting prompts need."""

    def score(self, job: Job, reply: ProbeReply) -> float:
        """-((free - needed) / max(running, 1))."""
        return -(reply.free_blocks - reply.waiting_blocks) / max(reply.running, 1)


class NoSim(Reported):
    """Fewest tokens to compute or produce, the new request's included (the paper's NoSim)."""

    def score(self, job: Job, reply: ProbeReply) -> float:
        """Queued tokens + prompt + predicted output."""
        return float(reply.queued_tokens + job.prompt_tokens + job.lengths.q50)
