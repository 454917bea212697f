"""CASCADE as a simulation: one budget-ordered queue before N engines, KV restored from shared tiers below their HBM. Pure.

At each step's end an engine gives its next step's tokens to prompts in the queue's order; one that does not get all it
needs stays in the queue with what is left. One whose prefix lies deeper is judged by `predictor.restore` on its turn (with
`prefetch` as soon as the links are idle, if it will find room): the transfer runs beside the steps, or stalls one (`sync`).
Budgets rest on the believed profile and told lengths; the truth differs by engine, stalls now and then, and ends answers
when they end.
"""

import heapq
import math
from dataclasses import dataclass
from random import Random

from gateway.sim.cascade_engine import CascadeEngine
from gateway.sim.cascade_jobs import USUAL, Job, Jobs
from gateway.sim.cascade_pace import PromptRoom
from gateway.sim.cascade_spec import CascadeSpec, VariantSpec
from gateway.sim.cascade_store import TierStore
from gateway.sim.stalls import Stalls
from gateway.sim.workload import SimRequest
from predictor.budget import Estimator, Need, Releases
from predictor.catalog import engine_profile
from predictor.prefill import step_costs
from predictor.profile import EngineLimits, StepProfile
from predictor.queues import TieredQueue
from predictor.request import Event, Finished, FirstToken
from predictor.restore import Fetch, Link, Restorer, Tier, prefetch_order
from predictor.waiting import Waiting

HEADROOM = 0.04  # of the KV blocks, for those who decode
USED_S = 10.0  # how far back `Node.used` looks
USED_LEAST = 0.05
LOOK = 8  # requests at the head for which KV may be fetched early
ARRIVAL, STEP, READY, LOST = range(4)


class Node:
    """One engine, its links to the tiers, and who waits for a transfer to it."""

    def __init__(self, engine: CascadeEngine, restorer: Restorer) -> None:
        self.engine = engine
        self.restorer = restorer
        self.parked: dict[str, Job] = {}
        self.transfer_s = 0.0  # that lengthens the next step
        self.short = False  # of slots or blocks: somebody could not enter the last time
        self.used = 1.0  # of the tokens that its steps had for prompts lately, what slots and blocks let it use
        self.busy = False
        self.alive = True


@dataclass(frozen=True, slots=True)
class CascadeOutcome:
    """What one run left behind, requests in order of arrival."""

    jobs: tuple[Job, ...]
    hit_tokens: int
    restored_tokens: int
    computed_tokens: int
    gammas: tuple[float, ...]


def engine_of(spec: CascadeSpec) -> tuple[StepProfile, EngineLimits, float]:
    """The believed step times, the limits in blocks of the simulation, and KV bytes per token."""
    found = engine_profile(spec.profile)
    assert found.hardware is not None, "a profile without hardware has no KV bytes per token"
    tokens = spec.hbm_tokens or found.limits.kv_blocks * found.limits.block_size
    limits = EngineLimits(
        kv_blocks=tokens // spec.block_tokens,
        block_size=spec.block_tokens,
        max_num_seqs=found.limits.max_num_seqs,
        max_num_batched_tokens=spec.chunk_tokens,
        max_model_len=min(found.limits.max_model_len, tokens // spec.block_tokens * spec.block_tokens // 2),
    )
    return found.step, limits, found.hardware.kv_bytes_per_token


class Cascade:
    """One run of one variant."""

    def __init__(self, spec: CascadeSpec, variant: VariantSpec, mix: list[tuple[SimRequest, int]], seed: int) -> None:
        self._spec = spec
        self._variant = variant
        profile, self._limits, token_bytes = engine_of(spec)
        self._costs = step_costs(profile)
        tiers = [Tier(one.name, one.gb_per_s * 1e9, one.latency_s, one.capacity_gb * 1e9) for one in spec.tiers]
        block_bytes = token_bytes * spec.block_tokens
        self._store = TierStore(tiers, block_bytes, variant.placement, spec.half_life_s, len(spec.classes))
        self._nodes = [self._node(profile, tiers, token_bytes, i, seed) for i in range(spec.instances)]
        self._queue = TieredQueue(
            variant.order, variant.rho, variant.alpha, variant.age_s, variant.hysteresis, chained=variant.chained
        )
        self._jobs = Jobs(spec, variant, self._costs, self._limits, mix)
        self._pace = PromptRoom(spec, variant.tpot, self._costs, self._jobs)
        self._heap: list[tuple[float, int, int, int, str]] = []
        self._count = 0
        self._order: list[Waiting] = []
        self._headroom = int(self._limits.kv_blocks * HEADROOM)
        self._hit_tokens = self._restored_tokens = self._computed_tokens = 0
        for job in self._jobs.ordered:
            self._push(job.request.arrival_s, ARRIVAL, 0, job.request.id)
        if spec.lost_at:
            self._push(mix[-1][0].arrival_s * spec.lost_at, LOST, 0, "")

    def _node(self, profile: StepProfile, tiers: list[Tier], token_bytes: float, index: int, seed: int) -> Node:
        rng, truth = Random(f"truth {seed} {index}"), self._spec.truth
        real = profile.scaled(rng.uniform(1.0 - truth.step_spread, 1.0 + truth.step_spread))
        stalls = Stalls(truth.stall_share, truth.stall_s, rng) if truth.stall_share > 0 else None
        restorer = Restorer([Link(tier) for tier in tiers], token_bytes, self._variant.restore)
        return Node(CascadeEngine(real, self._limits, stalls), restorer)

    def _push(self, at_s: float, what: int, node: int, name: str) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, what, node, name))

    def run(self) -> CascadeOutcome:
        """To the end of the last answer."""
        while self._heap:
            now_s, _, what, index, name = heapq.heappop(self._heap)
            node = self._nodes[index]
            if what == ARRIVAL:
                self._arrive(self._jobs.by_id[name], now_s)
            elif what == STEP:
                if node.alive:
                    self._finish(index, now_s)
            elif what == READY:
                self._restored(index, name, now_s)
            else:
                self._lose(index, now_s)
        assert all(job.finished_s is not None for job in self._jobs.ordered), "a request was lost"
        done = tuple(self._jobs.ordered)
        return CascadeOutcome(done, self._hit_tokens, self._restored_tokens, self._computed_tokens, self._jobs.gammas())

    # ---- events ----

    def _arrive(self, job: Job, now_s: float) -> None:
        hbm = max(node.engine.hit_blocks(job.request.prefix) for node in self._nodes if node.alive)
        found = self._store.found(job.request.prefix, hbm, self._spec.block_tokens)
        cached = found.reach[-1] if self._variant.restore != "never" else found.hbm_tokens
        self._queue.add(self._jobs.waiting(job, min(cached, job.prompt_tokens - 1), now_s), now_s)
        for index, node in enumerate(self._nodes):
            if node.alive and not node.busy:
                self._fill(index, now_s)

    def _finish(self, index: int, now_s: float) -> None:
        node = self._nodes[index]
        for event in node.engine.end_step(now_s):
            self._note(node, event, now_s)
        self._fill(index, now_s)

    def _note(self, node: Node, event: Event, now_s: float) -> None:
        if isinstance(event, FirstToken):
            job = self._jobs.by_id[event.request_id]
            self._jobs.began(job, now_s)
            self._store.use(job.request.prefix, job.kind, job.block_seconds(self._costs, self._spec.block_tokens), now_s)
        elif isinstance(event, Finished):
            self._jobs.by_id[event.request_id].finished_s = now_s

    def _restored(self, index: int, name: str, now_s: float) -> None:
        node = self._nodes[index]
        job = node.parked.pop(name, None)
        if job is None:  # its engine was lost
            return
        node.engine.install(job.request.prefix[: job.restoring // self._spec.block_tokens])
        job.node = index
        hits = self._hit_tokens_of(node, job)
        self._queue.add(self._jobs.waiting(job, hits, now_s), now_s)
        if not node.busy:
            self._fill(index, now_s)

    def _lose(self, index: int, now_s: float) -> None:
        """An engine is gone, with all it had; its requests begin anew elsewhere, in the order of their first arrival."""
        node = self._nodes[index]
        node.alive = False
        back = [self._jobs.by_id[name] for name in node.engine.requests]
        for job in back:
            job.restart(node.engine.progress(job.request.id).generated)
        back += node.parked.values()
        back += [job for job in self._jobs.ordered if job.node == index and job.request.id in self._queue and job not in back]
        node.parked = {}
        for job in back:
            job.tried, job.node, job.left = False, -1, 0
            self._queue.remove(job.request.id)
            self._queue.add(self._jobs.waiting(job, 0, now_s), now_s)
        for other, found in enumerate(self._nodes):
            if found.alive and not found.busy:
                self._fill(other, now_s)

    # ---- choosing ----

    def _fill(self, index: int, now_s: float) -> None:
        """Choose for the next step, and begin it."""
        node = self._nodes[index]
        engine, queue = node.engine, self._queue
        load = engine.load
        tokens = self._pace.tokens(engine, now_s)
        if queue:
            estimator = Estimator(self._costs, self._limits, load, Releases((), 0, 0))
            stretch = max(0.5, round(self._jobs.stretch(estimator) * engine.pace, 2))
            self._retier(node, now_s, stretch)
            node.short = False
            engine.allotted = {name: 0 for name in engine.allotted if name in queue}
            self._share_out(index, estimator, tokens - load.decodes, now_s)
            if self._variant.prefetch and not self._variant.sync and queue:
                self._prefetch(index, node, estimator, now_s)
        ends_s = engine.begin_step(now_s, tokens, node.transfer_s)
        node.busy = ends_s is not None
        if ends_s is not None:
            self._push(ends_s, STEP, index, "")
            given = sum([part for _, part in engine.prompts]) / max(1, tokens - load.decodes) if node.short else 1.0
            node.used += min(1.0, (ends_s - now_s) / USED_S) * (min(1.0, given) - node.used)
            engine.clock(self._costs, ends_s - now_s - node.transfer_s)
            for name, given in engine.prompts:
                self._jobs.by_id[name].serve(ends_s - now_s, given / tokens)
        node.transfer_s = 0.0

    def _retier(self, node: Node, now_s: float, stretch: float) -> None:
        """Where slots or blocks run out, mh goes by what they left lately; the paper's rule, by when a place will be free."""
        alive = [one for one in self._nodes if one.alive]
        if self._variant.order == "mh":
            self._queue.retier(now_s, 0.0, max(USED_LEAST, sum([one.used for one in alive])), stretch)
        else:
            self._queue.retier(now_s, self._release_s(node) if node.short else 0.0, float(len(alive)), stretch)

    def _release_s(self, node: Node) -> float:
        """Until those who decode, if their answers are as long as told, have given back a slot and the blocks of a usual
        prompt."""
        engine, load = node.engine, node.engine.load
        left = [(self._jobs.left(one.id, one.generated), one.blocks) for one in engine.decoding]
        releases = Releases(left, self._limits.max_num_seqs - engine.running, engine.free_blocks - self._headroom)
        steps = releases.steps(1, self._limits.blocks_for(USUAL.tokens))
        return steps * self._costs.step_s(load.decodes, load.kv_tokens)

    def _share_out(self, index: int, estimator: Estimator, room: int, now_s: float) -> None:
        """Tier 1 all but tier 2's share, then tier 2 the rest: slots and blocks are tier 1's first, since a prompt that a
        small share brings on slowly would hold its blocks for long."""
        first, second, share = self._queue.first(now_s), self._queue.second(now_s), self._queue.share
        self._order = [*first, *second]
        shared = bool(first) and bool(second)
        due = share.due(room) if shared else 0
        early = self._give(index, first, room - due, estimator, now_s)
        late = self._give(index, second, room - early, estimator, now_s)
        if shared and early == room - due:  # tier 1 could have used more
            early += self._give(index, first, room - early - late, estimator, now_s)
            share.count(early, late)

    def _give(self, index: int, order: list[Waiting], room: int, estimator: Estimator, now_s: float) -> int:
        """So many tokens of the next step to those in this order, as far as slots and blocks go; what was given."""
        node, given = self._nodes[index], 0
        for waiting in order:
            if given >= room:
                break
            job = self._jobs.by_id[waiting.id]
            if job.node not in (-1, index) or waiting.id not in self._queue:
                continue
            if not job.left:
                if not job.tried and self._park(index, node, job, estimator, now_s):
                    continue
                if not self._enter(index, job, estimator, now_s):
                    break
            tokens = min(job.left, room - given)
            given += tokens
            job.left -= tokens
            node.engine.allotted[waiting.id] = node.engine.allotted.get(waiting.id, 0) + tokens
            if job.left:
                cost_s, work_s, mean_s = self._jobs.seconds(job, job.prompt_tokens - job.left)
                self._queue.revise(waiting.id, cost_s, now_s, work_s, mean_s)
            else:
                self._queue.remove(waiting.id)
        return given

    def _enter(self, index: int, job: Job, estimator: Estimator, now_s: float) -> bool:
        """Into the engine, if there is a slot and room for its prompt."""
        engine = self._nodes[index].engine
        if not self._make_way(index, job):
            self._nodes[index].short = True
            return False
        hits = self._hit_tokens_of(self._nodes[index], job)
        self._hit_tokens += hits
        self._computed_tokens += job.prompt_tokens - hits
        job.left = job.prompt_tokens - hits
        job.node = index
        job.send(now_s, estimator.prefill_s(Need(job.left, hits)))
        engine.enqueue(job.engine_request())
        return True

    def _make_way(self, index: int, job: Job) -> bool:
        """Whether there is a slot, and room for its prompt beside what decoding may need soon; if need be by taking them
        from the last in the order whose prompt is begun and not complete. What that one has computed stays in the prefix
        cache while it can."""
        engine = self._nodes[index].engine
        blocks = self._blocks(job)
        blocks += sum(self._blocks(self._jobs.by_id[name]) for name in engine.entering)
        blocks += self._headroom if engine.running else 0
        if self._fits(engine, blocks):
            return True
        behind = []
        for waiting in reversed(self._order):
            if waiting.id == job.request.id:
                break
            other = self._jobs.by_id[waiting.id]
            if other.left and other.node == index and not engine.allotted.get(waiting.id):
                behind.append(other)
        if engine.free_blocks + sum(self._blocks(other) for other in behind) < blocks:
            return False  # in vain
        for other in behind:
            engine.abort(other.request.id)
            engine.allotted.pop(other.request.id, None)
            other.left, other.node, other.tried = 0, -1, False
            if self._fits(engine, blocks):
                break
        return self._fits(engine, blocks)

    def _blocks(self, job: Job) -> int:
        return self._limits.blocks_for(job.prompt_tokens + 1)

    def _fits(self, engine: CascadeEngine, blocks: int) -> bool:
        return blocks <= engine.free_blocks and engine.running + engine.waiting < self._limits.max_num_seqs

    def _hit_tokens_of(self, node: Node, job: Job) -> int:
        """Prompt tokens that its cache saves; one at least is computed."""
        block = self._spec.block_tokens
        return min(node.engine.hit_blocks(job.request.prefix), (job.prompt_tokens - 1) // block) * block

    def _left_s(self, waiting: Waiting, now_s: float) -> float:
        """Until the deadline; whoever cannot keep it any more is not in a hurry."""
        if waiting.tier == 2 or waiting.deadline_s <= now_s:
            return math.inf
        return waiting.deadline_s - now_s

    def _park(self, index: int, node: Node, job: Job, estimator: Estimator, now_s: float) -> bool:
        """Judge its prefix; True if it now waits for a transfer, and is out of the queue."""
        job.tried = True
        block = self._spec.block_tokens
        prefix = job.request.prefix
        hits = node.engine.hit_blocks(prefix)
        found = self._store.found(prefix, hits, block)
        if found.reach[-1] <= found.hbm_tokens or self._variant.restore == "never":
            return False

        def compute_s(tokens: int, cached: int) -> float:
            return estimator.prefill_s(Need(tokens, cached)) * self._jobs.gamma(job, tokens)

        verdict = node.restorer.verdict(found, job.prompt_tokens, self._left_s(job.waiting, now_s), compute_s, now_s)
        upto = verdict.tokens // block * block
        if upto <= found.hbm_tokens:
            return False
        job.restoring = upto
        self._restored_tokens += upto - found.hbm_tokens
        ends_s = node.restorer.begin(found, upto, now_s)
        if self._variant.sync:
            node.engine.install(prefix[: upto // block])
            job.sync_s = ends_s - now_s
            node.transfer_s = max(node.transfer_s, job.sync_s)
            return False
        self._queue.remove(job.request.id)
        node.parked[job.request.id] = job
        self._push(ends_s, READY, index, job.request.id)
        return True

    def _prefetch(self, index: int, node: Node, estimator: Estimator, now_s: float) -> None:
        """While its links are idle, fetch for those at the head of tier 1 that will find room beside those before them, least
        budget first: elsewhere what is fetched would take the place of what is cached, and be gone before its turn."""
        if any(link.free_at_s > now_s for link in node.restorer.links):
            return
        wanted = []
        room = node.engine.free_blocks - self._headroom
        for waiting in self._queue.leading(LOOK):
            job = self._jobs.by_id[waiting.id]
            room -= 0 if job.left else self._blocks(job)
            if room < 0:
                break
            if not job.tried:
                hits = node.engine.hit_blocks(job.request.prefix)
                found = self._store.found(job.request.prefix, hits, self._spec.block_tokens)
                restore_s = node.restorer.restore_s(found, found.reach[-1], now_s)
                wanted.append(Fetch(waiting.id, waiting.deadline_s - now_s - waiting.cost_s, restore_s))
        for name in prefetch_order(wanted)[:1]:
            self._park(index, node, self._jobs.by_id[name], estimator, now_s)
