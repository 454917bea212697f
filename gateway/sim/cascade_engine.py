"""An engine whose queue stands outside it, and into whose prefix cache KV may be brought from other memory. Pure.

It is `predictor.instance.Instance`; the step's end and the next one's beginning are apart, so that a scheduler can choose
in between: how many tokens of which prompt the next step computes (`allotted`). A prompt once begun keeps its blocks while
others pass. Stalls and synchronous transfers lengthen a step.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.sim.stalls import NEVER, Stalls
from predictor.budget import Load
from predictor.instance import Instance
from predictor.prefill import StepCosts
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Event, Request
from predictor.sequence import Sequence as Running

FADE = 0.998  # of a step's weight, with each further step
STALL = 2.0  # a step that takes more than so many times what is expected was held up; it counts as so long


class CascadeEngine(Instance):
    """See the module."""

    def __init__(self, profile: StepProfile, limits: EngineLimits, stalls: Stalls | None) -> None:
        super().__init__(profile, limits)
        self._stalls = stalls
        self._stall_in = stalls.gap() if stalls is not None else NEVER
        self.allotted: dict[
            str, int
        ] = {}  # prompt tokens of the next step, by request; not named: as many as there is room for
        self.believed_s = self.actual_s = 1e-9  # of all steps, the old ones fading: what was believed, what they took
        self._chunks: dict[int, EngineLimits] = {limits.max_num_batched_tokens: limits}

    @property
    def decoding(self) -> list[Running]:
        """Who decodes."""
        return self._decoders

    @property
    def load(self) -> Load:
        """What decodes."""
        return Load(len(self._decoders), float(self._context_tokens))

    @property
    def requests(self) -> list[str]:
        """Everybody's id."""
        return list(self._by_id)

    @property
    def prompts(self) -> list[tuple[str, int]]:
        """Ids of those whose prompts the step in progress computes, and how many tokens of each."""
        return [(one.id, tokens) for one, tokens in self._prefilling]

    @property
    def entering(self) -> list[str]:
        """Ids of those to be admitted next."""
        return [one.id for one in self._waiting]

    def enqueue(self, request: Request) -> None:
        """To be admitted to the next step."""
        sequence = Running(request, self.limits.block_size)
        assert request.id not in self._by_id, f"request {request.id!r} twice"
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)

    @property
    def pace(self) -> float:
        """How much longer steps take than believed."""
        return self.actual_s / self.believed_s

    def clock(self, costs: StepCosts, step_s: float) -> None:
        """The step in progress takes so long. A stall is no slowness: it would count most where steps are short, and
        long prompts would look hopeless after it."""
        tokens, pairs = 0, 0.0
        for sequence, part in self._prefilling:
            tokens += part
            pairs += part * (sequence.computed + 0.5 * part)
        bare_s = costs.step_s(len(self._decoding), float(self._context_tokens))
        believed_s = bare_s + costs.tokens_s(tokens, pairs)
        step_s = min(step_s, STALL * self.pace * believed_s)
        self.believed_s = self.believed_s * FADE + believed_s
        self.actual_s = self.actual_s * FADE + step_s

    def end_step(self, now_s: float) -> list[Event]:
        """End the step in progress; nothing runs until `begin_step`."""
        events = self._events
        self._collect_tokens(events, now_s)
        self._ends_at_s = None
        return events

    def begin_step(self, now_s: float, tokens: int, transfer_s: float) -> float | None:
        """Compose the next step of at most so many tokens, lengthened by a transfer; when it ends, None: nothing to do."""
        if tokens not in self._chunks:
            self._chunks[tokens] = replace(self.limits, max_num_batched_tokens=tokens)
        self.limits = self._chunks[tokens]
        self._start_step(now_s)
        if self._ends_at_s is None:
            return None
        self._stall_in -= 1
        if self._stalls is not None and not self._stall_in:
            self._stall_in = self._stalls.gap()
            transfer_s += self._stalls.stall_s
        self._ends_at_s += transfer_s
        return self._ends_at_s

    def _walk(self, budget: int, now_s: float) -> tuple[int, bool]:
        """Decoding sequences one token each, prompts what they were allotted."""
        before, index = self.preemptions, 0
        while index < len(self._running) and budget:
            sequence = self._running[index]
            if not sequence.decoding:
                budget -= self._chunk(sequence, budget)
            elif self._make_room(sequence, now_s):
                self._decoding.append(sequence)
                budget -= 1
            index += 1
        if self.preemptions != before:
            self._refresh()
        return budget, self.preemptions != before

    def _chunk(self, sequence: Running, budget: int) -> int:
        left = sequence.target - sequence.computed
        tokens = min(left, budget, self.allotted.get(sequence.id, left))
        if tokens:
            self._prefilling.append((sequence, tokens))
        return tokens

    def _admit(self, budget: int, now_s: float) -> None:
        """All who wait here, as the scheduler has chosen them."""
        while self._waiting and budget:
            sequence = self._waiting[0]
            hits = self._hits(sequence)
            prefix = sequence.prefix[:hits]
            blocks = self.limits.blocks_for(sequence.target)
            fresh = blocks - sequence.shared - hits
            if fresh + hits - self._kv.in_use(prefix) > self._kv.free:
                return
            self._waiting.popleft()
            self._running.append(sequence)
            self._kv.reuse(prefix)
            self._kv.take(fresh)
            sequence.enter(blocks, hits, self.limits.block_size)
            budget -= self._chunk(sequence, budget)

    def hit_blocks(self, prefix: Sequence[int]) -> int:
        """How many blocks of this beginning its cache has."""
        return self._kv.hits(prefix, len(prefix))

    def install(self, prefix: Sequence[int]) -> None:
        """This beginning has been brought here; as much of it as there is room for can be reused from now on."""
        kv = self._kv
        hits = kv.hits(prefix, len(prefix))
        kv.reuse(prefix[:hits])
        end = hits + min(len(prefix) - hits, kv.free)
        kv.take(end - hits)
        kv.name(prefix[hits:end])
        kv.drop(prefix[:end])
