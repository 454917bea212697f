"""Continuous batching with chunked prefill on paged KV blocks: one engine, advanced step by step.

Order of a step, as in vLLM V1: every running sequence in the order of admission (one token each, or the next chunk
of a prompt), then the waiting queue first come first served, within `max_num_batched_tokens` and `max_num_seqs`.
A sequence that needs a block when none is free takes it from the newest running one, which loses everything, returns
to the front of the queue and computes prompt and output again; a step that preempted admits nobody.
Order "sglang": prompts are computed in steps of their own, before any decoding; the victim is the sequence with the
fewest output tokens (of those the longest prompt), and it goes to the back of the queue.
The blocks of a whole prompt are taken at admission, so a prompt once begun never waits for blocks; those of its
beginning that the cache still has are reused and not computed again, the last prompt token excepted.

The caller owns time: it passes `now_s` and calls `finish_step` when `step_ends_at_s` has come.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from predictor.kv import BlockLedger
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Decoded, Event, Finished, FirstToken, Preempted, Request
from predictor.sequence import Sequence
from predictor.snapshot import Resident, Snapshot, held_blocks, settle


class Instance:
    """One engine: waiting and running requests, KV blocks, a step in progress or none.

    A broken assertion here is a mistake of this module or of a caller that breaks the protocol, never of traffic.
    """

    def __init__(self, profile: StepProfile, limits: EngineLimits) -> None:
        self.profile = profile
        self.limits = limits
        self.preemptions = 0
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._kv = BlockLedger(limits.kv_blocks)
        self._started_at_s = float("-inf")
        # The step in progress: its end (None: no step), what it made happen, who decodes, how much of whose prompt.
        self._ends_at_s: float | None = None
        self._events: list[Event] = []
        self._decoding: list[Sequence] = []
        self._prefilling: list[tuple[Sequence, int]] = []
        self.step_tokens = 0  # computed by the step in progress
        # Derived from `_running`: the decoders in its order, their ids, their context tokens, who needs a block next.
        self._decoders: list[Sequence] = []
        self._names: tuple[str, ...] = ()
        self._context_tokens = 0
        self._edge: list[Sequence] = []

    def __repr__(self) -> str:
        step = "idle>" if self._ends_at_s is None else f"step ends at {self._ends_at_s:.6f} s>"
        free = f"free_blocks={self.free_blocks}/{self.limits.kv_blocks} "
        return f"<Instance waiting={self.waiting} running={self.running} " + free + step

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._kv.free

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return 1.0 - self._kv.free / self.limits.kv_blocks

    @property
    def step_ends_at_s(self) -> float | None:
        """When the step in progress ends; None when there is none, that is when there is nothing to do."""
        return self._ends_at_s

    def progress(self, request_id: str) -> Sequence:
        """How far a request is, live: its `generated` and `computed` follow. Raises KeyError if it is not here."""
        return self._by_id[request_id]

    def hit_tokens(self, request: Request) -> int:
        """Prompt tokens that the cache would save this request if it entered now."""
        return self._hits(Sequence(request, self.limits.block_size)) * self.limits.block_size

    def forget_prefixes(self) -> bool:
        """Empty the prefix cache; while requests hold blocks nothing happens and the answer is False."""
        if not self._running:
            self._kv.forget()
        return not self._running

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request; an idle engine starts a step with it at once.

        Raises ValueError when prompt and output together exceed `max_model_len`.
        """
        if request.prompt_tokens + request.output_tokens > self.limits.max_model_len:
            needs = f"request {request.id!r} needs {request.prompt_tokens} + {request.output_tokens} tokens"
            raise ValueError(f"{needs}, the engine holds {self.limits.max_model_len}")
        assert request.id not in self._by_id, f"request {request.id!r} submitted twice"
        sequence = Sequence(request, self.limits.block_size)
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)
        if self._ends_at_s is None:
            self._start_step(now_s)

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False if it is not here. The step in progress keeps its end."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.blocks:
            self._running.remove(sequence)
            self._free(sequence)
            self._decoding = [other for other in self._decoding if other is not sequence]
            self._prefilling = [pair for pair in self._prefilling if pair[0] is not sequence]
            self._refresh()
        else:
            self._waiting.remove(sequence)
        return True

    def finish_step(self, now_s: float) -> tuple[Event, ...]:
        """End the step in progress, start the next one at `now_s`, and return what happened in the ended one.

        Admissions and preemptions carry the instant at which that step began, tokens and ends carry `now_s`.
        """
        assert self._ends_at_s is not None, "finish_step on an idle instance"
        assert now_s >= self._ends_at_s, f"step ends at {self._ends_at_s}, not yet at {now_s}"
        events = self._events
        self._collect_tokens(events, now_s)
        self._start_step(now_s)
        return tuple(events)

    def _start_step(self, now_s: float) -> None:
        """Compose the next step; leaves none if there is nothing to run."""
        assert now_s >= self._started_at_s, f"time runs backwards: {now_s} after {self._started_at_s}"
        self._started_at_s = now_s
        self._events, self._prefilling, self._decoding = [], [], []
        if self.limits.order == "sglang":
            self._compose_prompts_first(now_s)
        else:
            self._compose_mixed(now_s)
        if not self._running:
            assert not self._waiting, f"nobody can be admitted to an empty batch: {self!r}"
            self._ends_at_s = None
            return
        decoding = len(self._decoding)
        same = decoding == len(self._decoders)
        kv_tokens = self._context_tokens if same else sum(sequence.computed for sequence in self._decoding)
        prefill_tokens = sum([tokens for _, tokens in self._prefilling])
        pairs = sum([tokens * (sequence.computed + 0.5 * tokens) for sequence, tokens in self._prefilling])
        self.step_tokens = prefill_tokens + decoding
        self._ends_at_s = now_s + self.profile.step_s(prefill_tokens, decoding, kv_tokens, pairs)

    def _compose_mixed(self, now_s: float) -> None:
        """Decoders and the next chunks together, then the queue: vLLM's order."""
        budget, preempted = self.limits.max_num_batched_tokens, False
        if len(self._edge) <= self._kv.free and len(self._decoders) == len(self._running) <= budget:
            self._grow(self._edge)
            self._decoding = self._decoders
            budget -= len(self._decoding)
        else:
            budget, preempted = self._walk(budget, now_s)
        if not preempted and budget and self._waiting:
            self._admit(budget, now_s)

    def _walk(self, budget: int, now_s: float) -> tuple[int, bool]:
        """Every running sequence in turn. Returns the tokens left for others, and whether somebody was preempted."""
        before, index = self.preemptions, 0
        while index < len(self._running) and budget:
            sequence = self._running[index]
            if not sequence.decoding:
                tokens = min(sequence.target - sequence.computed, budget)
                self._prefilling.append((sequence, tokens))
                budget -= tokens
            elif self._make_room(sequence, now_s):
                self._decoding.append(sequence)
                budget -= 1
            index += 1
        if self.preemptions != before:
            self._refresh()
        return budget, self.preemptions != before

    def _make_room(self, sequence: Sequence, now_s: float) -> bool:
        """Give a decoding sequence the block its next token needs; False if it had to be preempted itself."""
        if sequence.computed < sequence.blocks * self.limits.block_size:
            return True
        while not self._kv.free:
            victim = self._running.pop()
            self._preempt(victim, now_s)
            self._waiting.appendleft(victim)
            if victim is sequence:
                return False
        self._grow([sequence])
        return True

    def _compose_prompts_first(self, now_s: float) -> None:
        """Prompts alone as long as there are any to compute, else one token for every decoder: SGLang's order."""
        budget = self.limits.max_num_batched_tokens
        for sequence in self._running:
            if not sequence.decoding and budget:
                tokens = min(sequence.target - sequence.computed, budget)
                self._prefilling.append((sequence, tokens))
                budget -= tokens
        if budget and self._waiting:
            self._admit(budget, now_s)
        if self._prefilling:
            return
        while len(self._edge) > self._kv.free:
            victim = min(self._running, key=lambda sequence: (sequence.generated, -sequence.prompt))
            self._running.remove(victim)
            self._preempt(victim, now_s)
            self._waiting.append(victim)
            self._refresh()
        self._grow(self._edge)
        self._decoding = self._decoders[: self.limits.max_num_batched_tokens]

    def _admit(self, budget: int, now_s: float) -> None:
        while self._waiting and budget and len(self._running) < self.limits.max_num_seqs:
            sequence = self._waiting[0]
            hits = self._hits(sequence)
            prefix = sequence.prefix[:hits]
            blocks = self.limits.blocks_for(sequence.target)
            fresh = blocks - sequence.shared - hits
            watermark = self.limits.watermark_blocks if self._running else 0
            if fresh + hits - self._kv.in_use(prefix) + watermark > self._kv.free:
                return
            self._waiting.popleft()
            self._running.append(sequence)
            self._kv.reuse(prefix)
            self._kv.take(fresh)
            sequence.enter(blocks, hits, self.limits.block_size)
            tokens = min(sequence.target - sequence.computed, budget)
            self._prefilling.append((sequence, tokens))
            budget -= tokens
            self._events.append(Admitted(sequence.id, now_s, sequence.computed))

    def _hits(self, sequence: Sequence) -> int:
        """Blocks to be reused; one token at least is always computed."""
        if not sequence.prefix:
            return 0
        return self._kv.hits(sequence.prefix, (sequence.target - 1) // self.limits.block_size)

    def _grow(self, sequences: list[Sequence]) -> None:
        """One more block for each."""
        self._kv.take(len(sequences))
        for sequence in sequences:
            sequence.blocks += 1

    def _preempt(self, victim: Sequence, now_s: float) -> None:
        """Take everything from a sequence that is out of the batch already."""
        self._free(victim)
        victim.restart()
        self.preemptions += 1
        self._events.append(Preempted(victim.id, now_s))

    def _collect_tokens(self, events: list[Event], now_s: float) -> None:
        """Advance every scheduled sequence; one whose prompt is complete has sampled a token."""
        block_size = self.limits.block_size
        finished: list[Sequence] = []
        same = len(self._decoding) == len(self._names)
        names = self._names if same else tuple(sequence.id for sequence in self._decoding)
        edge: list[Sequence] = []
        for sequence in self._decoding:
            sequence.computed = computed = sequence.computed + 1
            if computed == sequence.blocks * block_size:
                edge.append(sequence)
            if computed == sequence.last:
                finished.append(sequence)
        self._context_tokens += len(names)
        self._edge = edge
        if self._prefilling:
            names += self._collect_prompts(events, finished, now_s)
        elif len(names) != len(self._decoders):
            self._refresh()
        if names:
            events.append(Decoded(names, now_s))
        if finished:
            self._retire(finished, events, now_s)

    def _collect_prompts(self, events: list[Event], finished: list[Sequence], now_s: float) -> tuple[str, ...]:
        """Returns the ids of those that gave another token than their first: they had been preempted."""
        again = []
        for sequence, tokens in self._prefilling:
            if sequence.advance(tokens, self.limits.block_size, self._kv):
                if sequence.generated == 1:
                    events.append(FirstToken(sequence.id, now_s))
                else:
                    again.append(sequence.id)
                if sequence.computed == sequence.last:
                    finished.append(sequence)
        self._refresh()
        return tuple(again)

    def _retire(self, finished: list[Sequence], events: list[Event], now_s: float) -> None:
        for sequence in finished:
            del self._by_id[sequence.id]
            self._free(sequence)
            events.append(Finished(sequence.id, now_s))
        self._running = [sequence for sequence in self._running if sequence.blocks]
        self._refresh()

    def _free(self, sequence: Sequence) -> None:
        self._kv.give(sequence.blocks - sequence.shared - sequence.named)
        self._kv.drop(sequence.prefix[: sequence.named])
        sequence.blocks = sequence.named = 0

    def _refresh(self) -> None:
        """Derive anew what follows from `_running`, after somebody came, went or changed from prompt to decoding."""
        block_size = self.limits.block_size
        self._decoders = [sequence for sequence in self._running if sequence.decoding]
        self._names = tuple([sequence.id for sequence in self._decoders])
        self._context_tokens = sum([sequence.computed for sequence in self._decoders])
        self._edge = [sequence for sequence in self._decoders if sequence.computed == sequence.blocks * block_size]
        held = sum([sequence.blocks - sequence.shared - sequence.named for sequence in self._running])
        assert 0 <= self._kv.free <= self.limits.kv_blocks - held, f"{held} blocks held: {self!r}"
        assert len(self._by_id) == len(self._running) + len(self._waiting), repr(self)

    def fork(self) -> "Instance":
        """An independent copy, step in progress included."""
        twin = Instance(self.profile, self.limits)
        twin.preemptions, twin._started_at_s, twin._ends_at_s = self.preemptions, self._started_at_s, self._ends_at_s
        twin._kv = self._kv.fork()
        twin._events = list(self._events)
        twins = {name: sequence.fork() for name, sequence in self._by_id.items()}
        twin._by_id = twins
        twin._running = [twins[sequence.id] for sequence in self._running]
        twin._waiting = deque(twins[sequence.id] for sequence in self._waiting)
        twin._prefilling = [(twins[sequence.id], tokens) for sequence, tokens in self._prefilling]
        twin._refresh()
        decoding = [twins[sequence.id] for sequence in self._decoding]
        twin._decoding = twin._decoders if decoding == twin._decoders else decoding
        return twin

    def snapshot(self, now_s: float, expected: Mapping[str, int] | None = None) -> Snapshot:
        """The state when the step in progress will have ended.

        `expected` gives total output tokens to be assumed instead of the true ones, by request.
        """
        lengths = expected or {}
        tokens = dict.fromkeys(self._decoding, 1) | dict(self._prefilling)
        named: set[int] = set()
        running: list[Resident] = []
        free = self.limits.kv_blocks
        for sequence in self._running:
            who = sequence.resident(lengths, tokens.get(sequence, 0))
            if who.generated_tokens == sequence.output:
                continue
            if sequence.prefix:
                prefix = sequence.prefix[: who.computed_tokens // self.limits.block_size]
                who = replace(who, shared_blocks=sequence.shared + sum(name in named for name in prefix))
                named.update(prefix)
            free -= held_blocks(who, self.limits) - who.shared_blocks
            running.append(who)
        waiting = [self._expected_entry(sequence, lengths) for sequence in self._waiting]
        ends_s = 0.0 if self._ends_at_s is None else max(0.0, self._ends_at_s - now_s)
        cached = min(self._kv.cached, free)
        return Snapshot(now_s, self.limits, tuple(running), tuple(waiting), free, cached, ends_s, self.preemptions)

    def _expected_entry(self, sequence: Sequence, lengths: Mapping[str, int]) -> Resident:
        who = sequence.resident(lengths, 0)
        hits = self._hits(sequence)
        if not hits:
            return replace(who, computed_tokens=sequence.expected_hits) if sequence.expected_hits else who
        shared = sequence.shared + self._kv.in_use(sequence.prefix[:hits])
        return replace(who, computed_tokens=hits * self.limits.block_size, shared_blocks=shared)

    @classmethod
    def restore(cls, profile: StepProfile, snapshot: Snapshot) -> "Instance":
        """An engine in that state; what its residents share and what the cache saves the waiting ones is fixed then.

        It is in a step that does nothing and ends at `taken_s + step_ends_s`. Raises ValueError for a state that no
        engine can be in.
        """
        snapshot = settle(snapshot)
        instance = cls(profile, snapshot.limits)
        instance.preemptions = snapshot.preemptions
        instance._started_at_s = snapshot.taken_s
        instance._running = [instance._resume(who, snapshot.taken_s) for who in snapshot.running]
        instance._waiting.extend(instance._resume(who, snapshot.taken_s) for who in snapshot.waiting)
        for sequence, who in zip(instance._running, snapshot.running, strict=True):
            sequence.seat(who, snapshot.limits)
        instance._kv.take(snapshot.limits.kv_blocks - snapshot.free_blocks)
        instance._refresh()
        if instance._by_id or snapshot.step_ends_s > 0:
            instance._ends_at_s = snapshot.taken_s + snapshot.step_ends_s
        return instance

    def _resume(self, who: Resident, now_s: float) -> Sequence:
        sequence = Sequence(Request(who.id, who.prompt_tokens, who.output_tokens, now_s), self.limits.block_size)
        sequence.resume(who)
        if who.id in self._by_id:
            raise ValueError(f"request {who.id!r} twice")
        self._by_id[who.id] = sequence
        return sequence
