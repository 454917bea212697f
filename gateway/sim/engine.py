"""The simulated truth, quickly: `predictor.instance.Instance` without prefix reuse, advanced by stretches of steps.

Between two changes of the batch every decoding sequence gains one token a step, so a stretch of k steps is one event:
progress is kept as an offset from a counter of steps, and the KV tokens read grow by an arithmetic series. Equal to
the step-by-step engine (tests/sim/test_engine.py): same tokens, same blocks, same instants to 1e-9 s. What happens
inside a stretch can be read at any moment through the shared clock. The step time must be affine in the KV tokens read
and in the prefill's attention pairs. Pure: time comes in as `now_s` and from `Clock`, which the caller sets.
"""

from collections import deque
from collections.abc import Mapping

from gateway.sim.decoders import Decoders, Sequence
from gateway.sim.stalls import NEVER, Clock, Stalls
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Estimate, Event, Finished, FirstToken, Preempted, Request
from predictor.rest import REPAIR_TOKENS
from predictor.snapshot import ProbeReply, Resident, Snapshot


class Progress:
    """How far a request is, read whenever it is asked."""

    __slots__ = ("_engine", "_sequence")

    def __init__(self, engine: "JumpEngine", sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        seq, engine = self._sequence, self._engine
        if not seq.decoding:
            return seq.output if seq.done else seq.spent
        steps = engine.steps_now if engine.seen_at_s == engine.clock.now_s else engine.steps_seen()
        return seq.output - seq.fin + steps

    @property
    def computed(self) -> int:
        """Tokens whose KV is in the cache."""
        seq = self._sequence
        if seq.decoding:
            return seq.base + self._engine.steps_seen()
        return seq.computed + self._engine.chunks_seen(seq)


class JumpEngine:
    """One engine in stretches. Interface as `Instance`: submit, finish_step, step_ends_at_s, progress, snapshot."""

    def __init__(self, profile: StepProfile, limits: EngineLimits, clock: Clock, stalls: Stalls | None = None) -> None:
        self.profile = profile
        self.limits = limits
        self.preemptions = 0
        self.clock = clock
        self._stalls = stalls
        self._stall_in = stalls.gap() if stalls is not None else NEVER
        self._stall_s = stalls.stall_s if stalls is not None else 0.0
        self._by_id: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._run: dict[Sequence, None] = {}  # in the order of admission
        self._part: Sequence | None = None  # the one half-done prompt: always the newest
        self._decoders = Decoders(limits.block_size)  # as they stood when the stretch began
        self._free = limits.kv_blocks
        self._events: list[Event] = []
        self._entering: list[tuple[Sequence, int]] = []
        self._leaving: list[str] = []
        self._k = 0  # steps of the stretch; 0 = idle
        self._chunk = 0  # prompt tokens of `_part` in each of its steps
        self._grows = False  # whether its steps take blocks that are not yet subtracted
        self._start_s = 0.0
        self._first_s = 0.0
        self._slope_s = 0.0
        self.steps_now = 0  # steps completed by `seen_at_s`: a note for `steps_seen`
        self.seen_at_s = -1.0

    def __repr__(self) -> str:
        return f"<JumpEngine waiting={self.waiting} running={self.running} free_blocks={self.free_blocks} k={self._k}>"

    # ---- what others read ----

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._run)

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        if not self._grows:
            return self._free
        return self._free - self._decoders.need(min(self._k, self.steps_seen() - self._decoders.steps + 1))

    @property
    def step_ends_at_s(self) -> float | None:
        """When the stretch in progress ends; None when there is nothing to do."""
        return self._at(self._k) if self._k else None

    def steps_seen(self) -> int:
        """Steps completed by the clock's now."""
        now_s = self.clock.now_s
        if now_s != self.seen_at_s:
            self.steps_now = self._decoders.steps + self._completed(now_s)
            self.seen_at_s = now_s
        return self.steps_now

    def chunks_seen(self, seq: Sequence) -> int:
        """Prompt tokens that `seq` has computed in the stretch in progress."""
        return (self.steps_seen() - self._decoders.steps) * self._chunk if seq is self._part else 0

    def progress(self, request_id: str) -> Progress:
        """A live view of a request in this engine; KeyError if it is not here."""
        return Progress(self, self._by_id[request_id])

    def current_step_ends_at_s(self) -> float | None:
        """When the single step in progress ends; None when there is none."""
        return self._at(min(self._k, self._completed(self.clock.now_s) + 1)) if self._k else None

    def reply(self, expected: Mapping[str, int]) -> ProbeReply:
        """What run-time metrics say now, without a prediction; `expected` as in `snapshot`."""
        queued = 0
        for seq in self._run:
            prefill = 0 if seq.decoding else seq.target - seq.computed - self.chunks_seen(seq)
            queued += prefill + self._outputs_left(seq, expected)
        waiting_blocks = 0
        for seq in self._waiting:
            waiting_blocks += self.limits.blocks_for(seq.target)
            queued += seq.target + self._outputs_left(seq, expected)
        return ProbeReply(Estimate.unknown, len(self._run), len(self._waiting), self.free_blocks, waiting_blocks, queued, 0.0)

    def hit_tokens(self, request: Request) -> int:
        """None: this engine reuses no prefixes."""
        return 0

    def _outputs_left(self, seq: Sequence, expected: Mapping[str, int]) -> int:
        generated = seq.output - (seq.fin - self.steps_seen()) if seq.decoding else seq.spent
        left = expected.get(seq.request_id, seq.output) - generated
        return left if left > 0 else REPAIR_TOKENS

    # ---- time ----

    def _at(self, steps: int) -> float:
        """The instant at which so many steps of the stretch have ended."""
        at_s = self._start_s + steps * self._first_s + self._slope_s * (steps * (steps - 1) / 2)
        return at_s + self._stall_s if steps == self._stall_in else at_s

    def _completed(self, now_s: float) -> int:
        """Steps of the stretch that have ended by `now_s`."""
        if not self._k or now_s < self._at(1):
            return 0
        gone_s = now_s - self._start_s
        half = self._slope_s / 2
        if half > 1e-15:
            linear = self._first_s - half
            steps = int(((linear * linear + 4 * half * gone_s) ** 0.5 - linear) / (2 * half))
        else:
            steps = int(gone_s / self._first_s) if self._first_s else self._k
        steps = min(max(steps, 0), self._k)
        while steps and self._at(steps) > now_s:
            steps -= 1
        while steps < self._k and self._at(steps + 1) <= now_s:
            steps += 1
        return steps

    # ---- what happens to it ----

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request; ValueError when it exceeds `max_model_len`."""
        if request.prompt_tokens + request.output_tokens > self.limits.max_model_len:
            raise ValueError(f"request {request.id!r} is longer than max_model_len {self.limits.max_model_len}")
        assert request.id not in self._by_id, f"request {request.id!r} submitted twice"
        seq = Sequence(request)
        self._by_id[request.id] = seq
        self._waiting.append(seq)
        if not self._k:
            self._begin(now_s)
        elif len(self._waiting) == 1:
            self._cut(now_s)

    def abort(self, request_id: str, now_s: float) -> bool:
        """Take a request out when the step in progress ends; False if it is not here."""
        if request_id not in self._by_id:
            return False
        self._leaving.append(request_id)
        self._cut(now_s)
        return True

    def _cut(self, now_s: float) -> None:
        """End the stretch with the step that is in progress now."""
        self._k = min(self._k, self._completed(now_s) + 1)

    def finish_step(self, now_s: float) -> list[Event]:
        """End the stretch, begin the next one, and return what happened (no record of single decoded tokens)."""
        k = self._k
        assert k, "finish_step on an idle engine"
        events = self._events
        if self._grows:
            self._free -= self._decoders.need(k)
        self._decoders.steps += k
        self.seen_at_s = -1.0
        self._stall_in -= k
        if self._stalls is not None and not self._stall_in:
            self._stall_in = self._stalls.gap()
        over = list(self._decoders.ended())
        if self._part is not None:
            self._computes(self._part, k * self._chunk, over, now_s)
        for seq, tokens in self._entering:
            self._part = seq
            self._computes(seq, tokens, over, now_s)
        for seq in over:
            self._release(seq)
            seq.done = True
            del self._by_id[seq.request_id]
            events.append(Finished(seq.request_id, now_s))
        for request_id in self._leaving:
            self._drop(request_id)
        self._begin(now_s)
        return events

    def _computes(self, seq: Sequence, tokens: int, over: list[Sequence], now_s: float) -> None:
        """The half-done prompt is so many tokens further; who is done with it joins `over`."""
        seq.computed += tokens
        if seq.computed >= seq.target:
            self._part = None
            self._prefilled(seq, over, now_s)
        elif seq.spent and seq.computed + 1 == seq.target:  # what is left is the newest output token: it decodes
            self._part = None
            self._free += not seq.computed % self.limits.block_size
            self._decoders.add(seq, seq.computed)

    def _prefilled(self, seq: Sequence, over: list[Sequence], now_s: float) -> None:
        """The prompt is complete and a token sampled: decode, or be done."""
        if not seq.spent:
            self._events.append(FirstToken(seq.request_id, now_s))
        seq.spent += 1
        if seq.spent == seq.output:
            over.append(seq)
        else:
            self._decoders.add(seq, seq.target)

    def _drop(self, request_id: str) -> None:
        """Forget a request between two steps."""
        seq = self._by_id.pop(request_id, None)
        if seq is None:
            return
        if seq in self._run:
            self._release(seq)
        else:
            self._waiting.remove(seq)

    def _release(self, seq: Sequence) -> None:
        """Out of the batch, with its blocks."""
        del self._run[seq]
        if seq is self._part:
            self._part = None
        self._free += self.limits.blocks_for(self._decoders.remove(seq) if seq.decoding else seq.target)

    # ---- composing a stretch ----

    def _begin(self, now_s: float) -> None:
        self._events = []
        self._entering = []
        self._leaving = []
        self._start_s = now_s
        self.seen_at_s = -1.0
        self._chunk = 0
        self._k = 0
        if not self._run and not self._waiting:
            return
        need = self._decoders.need(1)
        if need > self._free:
            self._crowded(now_s)
            return
        left = self.limits.max_num_batched_tokens - self._decoders.count
        if self._part is not None:
            self._chunk = min(self._part.target - self._part.computed, left)
        if left > self._chunk and self._enterable(self._free - need):
            self._entry(left - self._chunk, need, now_s)
        else:
            assert self._run, f"nobody can be admitted to an empty batch: {self!r}"
            self._jump()

    def _enterable(self, free: int) -> bool:
        """Whether the head of the queue may enter a batch with so many free blocks."""
        if not self._waiting or len(self._run) >= self.limits.max_num_seqs:
            return False
        return free - self.limits.blocks_for(self._waiting[0].target) >= (self.limits.watermark_blocks if self._run else 0)

    def _entry(self, left: int, need: int, now_s: float) -> None:
        """One step in which requests enter."""
        self._grows = False
        self._free -= need
        prefill = self._chunk
        pairs = self._pairs()
        while left and self._enterable(self._free):
            seq = self._waiting.popleft()
            self._run[seq] = None
            self._free -= self.limits.blocks_for(seq.target)
            tokens = min(seq.target, left)
            left -= tokens
            prefill += tokens
            pairs += tokens * tokens / 2
            self._entering.append((seq, tokens))
            self._events.append(Admitted(seq.request_id, now_s))
        self._steps_take(1, prefill, pairs, 0.0)

    def _pairs(self) -> float:
        """Attention pairs of the half-done prompt's next chunk."""
        return self._chunk * (self._part.computed + self._chunk / 2) if self._part is not None else 0.0

    def _jump(self) -> None:
        """As many steps as the batch stays the same."""
        k = self._stall_in
        if self._decoders.count:
            k = min(k, self._decoders.steps_to_end())
            if self._decoders.need(k) > self._free:
                k = self._decoders.fits(self._free)
        if self._part is not None and self._chunk:
            k = min(k, max(1, -(-(self._part.target - self._part.computed) // self._chunk) - 1))
        self._grows = True
        self._steps_take(k, self._chunk, self._pairs(), float(self._chunk * self._chunk))

    def _steps_take(self, k: int, prefill: int, pairs: float, pairs_grow: float) -> None:
        """Set the stretch's length and the time of its steps."""
        self._k = k
        decoders = self._decoders.count
        kv = self._decoders.base_sum + decoders * self._decoders.steps
        step_s = self.profile.step_s
        self._first_s = step_s(prefill, decoders, kv, pairs)
        self._slope_s = step_s(prefill, decoders, kv + decoders, pairs + pairs_grow) - self._first_s if k > 1 else 0.0

    def _crowded(self, now_s: float) -> None:
        """One step with too few blocks: in order of admission each takes its own, the newest running one gives."""
        self._grows = False
        for seq in list(self._run):
            if seq not in self._run:
                break
            if seq.decoding and self._decoders.at_edge(seq):
                while not self._free and seq in self._run:
                    self._preempt(next(reversed(self._run)), now_s)
                if seq not in self._run:
                    break
                self._free -= 1
        part = self._part
        self._chunk = 0
        if part is not None:
            self._chunk = min(part.target - part.computed, self.limits.max_num_batched_tokens - self._decoders.count)
        self._steps_take(1, self._chunk, self._pairs(), 0.0)

    def _preempt(self, victim: Sequence, now_s: float) -> None:
        self._release(victim)
        victim.target = victim.prompt + victim.spent
        victim.computed = 0
        self._waiting.appendleft(victim)
        self.preemptions += 1
        self._events.append(Preempted(victim.request_id, now_s))

    # ---- snapshot ----

    def snapshot(self, now_s: float, expected: Mapping[str, int]) -> Snapshot:
        """The state when the step in progress ends; `expected` gives the total output tokens assumed for each request."""
        if not self._k:
            return Snapshot(now_s, self.limits, (), (), self._free, preemptions=self.preemptions)
        steps = min(self._completed(now_s) + 1, self._k)
        free = self._free - (self._decoders.need(steps) if self._grows else 0)
        entering = dict(self._entering)
        running: list[Resident] = []
        for seq in self._run:
            resident = self._resident(seq, steps, entering.get(seq, 0), expected)
            if resident.generated_tokens < seq.output:
                running.append(resident)
                if not seq.decoding and resident.decoding and resident.computed_tokens < seq.target:
                    free += not resident.computed_tokens % self.limits.block_size
            else:
                free += self.limits.blocks_for(resident.computed_tokens)
        waiting = tuple(
            Resident(seq.request_id, seq.prompt, 0, seq.spent, expected.get(seq.request_id, seq.output))
            for seq in self._waiting
        )
        ends_s = max(self._at(steps) - now_s, 0.0)
        return Snapshot(now_s, self.limits, tuple(running), waiting, free, 0, ends_s, self.preemptions)

    def _resident(self, seq: Sequence, steps: int, entering: int, expected: Mapping[str, int]) -> Resident:
        if seq.decoding:
            done = self._decoders.steps + steps
            computed, generated = seq.base + done, seq.output - (seq.fin - done)
        else:
            computed = entering or (seq.computed + steps * self._chunk if seq is self._part else seq.computed)
            generated = seq.spent + (computed >= seq.target)
        return Resident(seq.request_id, seq.prompt, computed, generated, expected.get(seq.request_id, seq.output))
