"""The rules of other gateways, from their published definitions, on this gateway's own counts and index. Pure.

They are here to be compared with, and for who comes from there. Sources: each project's source
and documentation, as named; what a rule needs of the engine comes from its report, what it keeps itself from the mirror.
"""

from collections.abc import Sequence
from math import ceil, exp
from random import Random

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.policies.base import Base, Replies, least, load
from gateway.policies.counts import Ring
from gateway.policies.reported import Predicted, Reported
from gateway.views import View
from predictor.seats import context_tokens, prompt_tokens, unstarted_tokens
from predictor.snapshot import ProbeReply


def hit_share(job: Job, view: View) -> float:
    """Share of the prompt that the view's index holds, 0 to 1."""
    mirror = view.mirror
    return 0.0 if mirror is None else mirror.hit_tokens(job) / job.prompt_tokens


def kv_share(view: View, reply: ProbeReply) -> float:
    """Share of the engine's KV in use, 0 to 1."""
    mirror = view.mirror
    return 0.0 if mirror is None else min(1.0, max(0.0, 1.0 - reply.free_blocks / mirror.limits.kv_blocks))


class SmgLeastLoad(Reported):
    """smg `least_load`: seconds of work in flight, tokens over throughput, + 0.15 s k/(1 - k) with k = KV in use.
    The throughput is that of full chunks by the replica's profile."""

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """The least loaded."""
        return least(views, lambda view: self._load_s(view, replies[view.name]), self.rng)

    @staticmethod
    def _load_s(view: View, reply: ProbeReply) -> float:
        mirror = view.mirror
        if mirror is None:
            return float(reply.queued_tokens)
        chunk = mirror.limits.max_num_batched_tokens
        token_s = mirror.work_s(chunk, 0) / chunk
        used = kv_share(view, reply)
        return prompt_tokens(mirror.seats) * token_s + 0.15 * used / max(1e-3, 1.0 - used)


class CacheAware(Base):
    """vllm-router and SGLang `cache_aware`, defaults 0.3 / 64 / 1.5: if the loads differ by more than 64 requests and by
    more than 1.5 times, the least loaded; else the best match if it covers over 0.3 of the prompt; else the least
    loaded."""

    match_share = 0.3
    apart_requests = 64
    apart_times = 1.5

    def drawn(self, job: Job, views: Sequence[View]) -> Sequence[View]:
        """It asks nobody."""
        return ()

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """See the class's words."""
        loads = [load(view) for view in views]
        most, fewest = max(loads), min(loads)
        if not (most - fewest > self.apart_requests and most > self.apart_times * fewest):
            best = least(views, lambda view: -hit_share(job, view), self.rng)
            if hit_share(job, best) > self.match_share:
                return best
        return least(views, load, self.rng)


class LlmD(Reported):
    """llm-d's scorers, weights 3 / 2 / 2: share of the prompt cached, shortness of the engine's queue between the
    longest and the shortest, free share of the KV; the highest sum."""

    prefix_weight = 3.0
    queue_weight = 2.0
    kv_weight = 2.0

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """The highest score."""
        queues = [replies[view.name].waiting for view in views]
        longest, span = max(queues), max(queues) - min(queues)

        def score(view: View) -> float:
            reply = replies[view.name]
            queue = (longest - reply.waiting) / span if span else 1.0
            free = 1.0 - kv_share(view, reply)
            return -(self.prefix_weight * hit_share(job, view) + self.queue_weight * queue + self.kv_weight * free)

        return least(views, score, self.rng)


class LlmDHeadroom(Predicted):
    """llm-d's latency predictor as scheduler: headroom = target - predicted TTFT. Of those with headroom the one with
    the least (it packs), in one case of a hundred one without any; if none has headroom, the one that lacks least."""

    explore = 0.01

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """See the class's words."""
        headroom = {view.name: self.rule.ttft_target_s - replies[view.name].estimate.ttft_s for view in views}
        within = [view for view in views if headroom[view.name] >= 0]
        beyond = [view for view in views if headroom[view.name] < 0]
        if within and not (beyond and self.rng.random() < self.explore):
            return least(within, lambda view: headroom[view.name], self.rng)
        return least(beyond, lambda view: -headroom[view.name], self.rng)


class Dynamo(Base):
    """Dynamo's KV router: prompt blocks still to compute there, this request's included and hits left out, + blocks in
    use there; prompts count in full until their first token. Overlap weight 1; `temperature` 0 takes the least, above
    it draws by softmax over costs scaled to 0..1."""

    overlap_weight = 1.0

    def drawn(self, job: Job, views: Sequence[View]) -> Sequence[View]:
        """It asks nobody."""
        return ()

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """The least cost, or a draw."""
        costs = [self._cost(job, view) for view in views]
        low, span = min(costs), max(costs) - min(costs)
        if self.rule.temperature <= 0 or not span:
            cost = {view.name: value for view, value in zip(views, costs, strict=True)}
            return least(views, lambda view: cost[view.name], self.rng)
        weights = [exp((low - value) / span / self.rule.temperature) for value in costs]
        return self.rng.choices(list(views), weights)[0]

    def _cost(self, job: Job, view: View) -> float:
        mirror = view.mirror
        if mirror is None:
            return load(view)
        fresh = unstarted_tokens(mirror.seats) + job.prompt_tokens - mirror.hit_tokens(job)
        return (self.overlap_weight * fresh + context_tokens(mirror.seats)) / job.block_tokens


class BoundedHash(Base):
    """KubeAI's consistent hash with bounded loads: the hash of the prompt's first block (or the session) has its place
    on a ring of 256 points per replica; replicas at 1.25 times the mean load are passed over (Mirrokni 2017). Without
    either key the least loaded."""

    points = 256
    bound = 1.25

    def __init__(self, rule: ModelSpec, rng: Random) -> None:
        super().__init__(rule, rng)
        self.ring = Ring(self.points)

    def drawn(self, job: Job, views: Sequence[View]) -> Sequence[View]:
        """It asks nobody."""
        return ()

    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View:
        """The first on the ring that is within the bound."""
        key = str(job.prefix[0]) if job.prefix else job.session
        if not key:
            return least(views, load, self.rng)
        by_name = {view.name: view for view in views}
        most = ceil(self.bound * (1 + sum(view.in_flight for view in views)) / len(views))
        onward = self.ring.onward(key, set(by_name))
        return next((by_name[name] for name in onward if by_name[name].in_flight + 1 <= most), by_name[onward[0]])
