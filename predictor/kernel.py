# cython: annotation_typing=False, infer_types=True, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What-if by events: simulate an engine forward until a new request ends, jumping over steps of equal shape.

Between two changes of the batch every decoder gains one token a step, so progress is kept as an offset from one
counter of such steps: a decoder's context is `base + steps_done`, it ends when the counter reaches `fin`, and a jump
of k steps costs O(block size) however many run. Both orders are those of `Instance`, step for step.
It runs as it stands, and with `kernel.pxd` it compiles to C. So: integers below 2^63 (`load` and `predict` check), no
negative operand of // or %, no memoryview in a local. Not re-entrant: one object for each replica, in one thread.
"""

from array import array
from collections.abc import MutableSequence, Sequence

from predictor.profile import EngineLimits
from predictor.snapshot import Resident

COMPILED = not __file__.endswith(".py")
_COUNT_MAX = 2**31 - 1


class UnfitError(ValueError):
    """This state or request is outside of what the algorithm is exact for: simulate it step by step instead."""


def _zeros(n: int) -> MutableSequence[int]:
    """Lists are a quarter faster than arrays when interpreted; compiled, the fields are views of arrays."""
    return array("q", bytes(8 * n)) if COMPILED else [0] * n


class Kernel:
    """One engine's state and one scratch area.

    After `predict` these hold its result, in seconds from the loaded state: `wait_s` until the first admission,
    `ttft_s`, `e2e_s`; and `preemptions` of the new request, `peak_blocks` in use at once until its end, `steps`
    simulated. After a run with `drain` also `ends_sum_s`: the ends of all other requests, summed.
    """

    def __init__(self, limits: EngineLimits, coefficients: Sequence[float]) -> None:
        if max(limits.kv_blocks * limits.block_size, limits.max_num_batched_tokens, limits.block_size << 15) > _COUNT_MAX:
            raise UnfitError("limits out of range")
        self.prompts_first = limits.order == "sglang"
        self.kv_blocks, self.bs, self.watermark = limits.kv_blocks, limits.block_size, limits.watermark_blocks
        self.cap, self.chunk = limits.max_num_seqs, limits.max_num_batched_tokens
        self.n, self.target_index, self.place, self.steps_max, self.turns_max = -1, -1, 0, 1_000_000, 20_000
        self.phases, self.phases0 = _zeros(self.bs), _zeros(self.bs)
        self._grow(128)
        self.tune(coefficients)

    def _grow(self, room: int) -> None:
        self.room = room
        self.target0, self.done0, self.left0, self.again0, self.ends0 = [_zeros(room) for _ in range(5)]
        self.target, self.done, self.left, self.again, self.ends = [_zeros(room) for _ in range(5)]
        self.prompt, self.shared, self.base, self.fin, self.decodes, self.queue = [_zeros(room) for _ in range(6)]
        self.nxt, self.prv = _zeros(room + 1), _zeros(room + 1)  # the run order: a ring through its own place, `room`

    def tune(self, coefficients: Sequence[float]) -> None:
        """Set the step time: the eight numbers of `StepProfile.coefficients`."""
        self.base_s, self.prefill_s, self.over_knee_s, self.knee = coefficients[:4]
        self.decode_base_s, self.decode_s, self.kv_s, self.pair_s = coefficients[4:]

    def load(self, running: Sequence[Resident], waiting: Sequence[Resident], free_blocks: int) -> int:
        """Take over a state: who runs, in the order of admission, and who waits, in that of the queue.

        Returns how many blocks nobody accounts for: kv_blocks - free - held; what-ifs are exact if it is 0.
        Raises UnfitError for a state that the algorithm does not cover; nothing may be predicted from it then.
        """
        self.n, nrun = -1, len(running)
        n = nrun + len(waiting)
        if nrun > self.cap or not 0 <= free_blocks <= self.kv_blocks:
            raise UnfitError("more requests run, or more blocks are free, than the engine has")
        if n + 1 > self.room:
            self._grow(2 * (n + 1))
        self.S = self.phase = self.nd = self.ksum = 0
        self.part0 = -1
        held = 0
        for i in range(self.bs):
            self.phases[i] = 0
        for i in range(n):
            self._load_counts(running[i] if i < nrun else waiting[i - nrun], i)
            if i < nrun:
                tokens = self.target0[i]
                if self.again0[i] > 0 and self.done0[i] + 1 == tokens:
                    tokens -= 1
                    self._insert(i, tokens)
                elif i < nrun - 1:
                    raise UnfitError("a half-done prompt that is not the newest")
                else:
                    self.part0 = i
                held += (tokens + self.bs - 1) // self.bs - self.shared[i]
        for i in range(self.nd):
            self.ends0[i] = self.ends[i]
        for i in range(self.bs):
            self.phases0[i] = self.phases[i]
        self.n, self.nrun, self.nd0, self.ksum0, self.free0 = n, nrun, self.nd, self.ksum, free_blocks
        return self.kv_blocks - free_blocks - held

    def _load_counts(self, who: Resident, i: int) -> None:
        prompt = who.prompt_tokens
        generated = who.generated_tokens
        left = who.output_tokens - generated
        if not (0 < prompt <= _COUNT_MAX and 0 <= generated <= _COUNT_MAX and 0 < left <= _COUNT_MAX):
            raise UnfitError("token counts out of range, or nothing left to produce")
        self.target0[i] = prompt + generated
        self.done0[i] = who.computed_tokens
        self.left0[i] = self.left[i] = left
        self.again0[i] = 1 if generated > 0 else 0
        self.shared[i] = who.shared_blocks
        self.prompt[i] = prompt
        fits = 0 <= self.done0[i] < self.target0[i] and prompt + generated + left <= self.kv_blocks * self.bs
        if not fits or not 0 <= self.shared[i] <= prompt // self.bs:
            raise UnfitError("more tokens computed or to come, or more blocks shared, than there can be")

    def predict(self, prompt: int, outputs: int, hit: int = 0, shared: int = 0, drain: bool = False, place: int = -1) -> bool:
        """Simulate until a new request has ended (with `drain`: until all have); `place` wait before it, below 0: all.

        It has so many prompt and output tokens; `hit` of the prompt's need no computing, `shared` blocks of it are held by
        others. Returns whether the end was reached within the limits; if not, no result holds. Raises UnfitError when
        nothing is loaded or the counts are out of range.
        """
        n = self.n
        fits = 0 <= hit < prompt and outputs > 0 and prompt + outputs <= self.kv_blocks * self.bs
        if n < 0 or not fits or not 0 <= shared <= prompt // self.bs:
            raise UnfitError("no state is loaded, or token counts out of range")
        self.target0[n], self.done0[n], self.left0[n], self.again0[n] = prompt, hit, outputs, 0
        self.prompt[n], self.shared[n] = prompt, shared
        self.target_index, self.drain = n, drain
        self.place = n if place < 0 else min(n, self.nrun + place)
        return self._run(n + 1)

    def drain_all(self) -> bool:
        """Simulate until every request of the loaded state has ended; `ends_sum_s` and `steps` hold the result."""
        self.target_index, self.place, self.drain = -1, self.n, True
        return self.n >= 0 and self._run(self.n)

    def _reset(self, total: int) -> None:
        nrun = self.nrun
        self.S = self.phase = self.steps = self.turns = self.preemptions = 0
        self.nd, self.nr, self.ksum, self.part = self.nd0, nrun, self.ksum0, self.part0
        self.free = self.min_free = self.free0
        self.hit = False
        self.now, self.ends_sum_s, self.wait_s, self.ttft_s, self.e2e_s = 0.0, 0.0, -1.0, -1.0, -1.0
        for i in range(self.bs):
            self.phases[i] = self.phases0[i]
        for i in range(self.nd):
            self.ends[i] = self.ends0[i]
        for i in range(total):
            self.target[i], self.done[i] = self.target0[i], self.done0[i]
            self.left[i], self.again[i] = self.left0[i], self.again0[i]
            self.decodes[i] = 0
            self.queue[i] = i if i <= self.place else i - 1
        if self.place < total:
            self.queue[self.place] = total - 1
        for i in range(nrun):
            self.base[i], self.fin[i] = self.done0[i], self.left0[i]
            self.nxt[i], self.prv[i] = i + 1, i - 1
            self.decodes[i] = 1
        self.h, self.t, self.dp = nrun, total, 0
        self.nxt[self.room] = self.prv[self.room] = self.room
        if nrun > 0:
            self.nxt[self.room], self.prv[self.room] = 0, nrun - 1
            self.nxt[nrun - 1] = self.prv[0] = self.room
        if self.part >= 0:
            self.decodes[self.part] = 0
            self.dp = self.done0[self.part]

    def _run(self, total: int) -> bool:
        self._reset(total)
        while self.steps < self.steps_max and self.turns < self.turns_max:
            if self.hit and not self.drain:
                break
            self.turns += 1
            self.working = self.nd
            if self.prompts_first and (self.part >= 0 or self._enters(0)):
                self.working = 0
            room = self.chunk - self.working
            c = min(self.target[self.part] - self.dp, room) if self.part >= 0 else 0
            need = self.phases[self.phase] if self.working > 0 else 0
            if need > self.free:
                self.min_free = 0
                if not (self._retract() if self.prompts_first else self._crowded()):
                    return False
            elif room > c and self._enters(need):
                self._entry(c)
            elif self.nr > 0:
                self._jump(c)
            else:
                break
        return self.nr == 0 and self.h == self.t if self.drain else self.hit

    def _enters(self, need: int) -> bool:
        """Whether the head of the queue may enter, beside `need` blocks that the decoders take in this step."""
        if self.h >= self.t or self.nr >= self.cap:
            return False
        r = self.queue[self.h]
        need += (self.target[r] + self.bs - 1) // self.bs - self.shared[r] + (self.watermark if self.nr > 0 else 0)
        return need <= self.free

    def _insert(self, r: int, context: int) -> None:
        """Count r, in the run order already, as a decoder with so many tokens in the cache."""
        fin = self.S + self.left[r]
        self.fin[r] = fin
        self.decodes[r] = 1
        self.base[r] = context - self.S
        self.ksum += context - self.S
        self.phases[(context + self.phase) % self.bs] += 1
        i = self.nd
        while i > 0 and self.fin[self.ends[i - 1]] < fin:
            self.ends[i] = self.ends[i - 1]
            i -= 1
        self.ends[i] = r
        self.nd += 1

    def _unlink(self, r: int) -> None:
        self.nxt[self.prv[r]] = self.nxt[r]
        self.prv[self.nxt[r]] = self.prv[r]
        self.nr -= 1

    def _leave(self, r: int) -> None:
        """Take decoder r out of the batch, except from `ends`, and give its blocks back."""
        context = self.base[r] + self.S
        self.decodes[r] = 0
        self.ksum -= self.base[r]
        self.phases[(context + self.phase) % self.bs] -= 1
        self.nd -= 1
        self._unlink(r)
        self.free += (context + self.bs - 1) // self.bs - self.shared[r]

    def _note_end(self, r: int) -> None:
        if r == self.target_index:
            self.hit = True
            self.e2e_s = self.now
            self.peak_blocks = self.kv_blocks - self.min_free
        else:
            self.ends_sum_s += self.now

    def _progress(self, r: int, computed: int) -> None:
        """r has so many tokens of its prompt: all (a token is sampled then), all but its newest output, or some."""
        if computed >= self.target[r]:
            self.left[r] -= 1
            if r == self.target_index and self.ttft_s < 0:
                self.ttft_s = self.now
            if self.left[r] > 0:
                self._insert(r, self.target[r])
            else:
                self._unlink(r)
                self.free += (self.target[r] + self.bs - 1) // self.bs - self.shared[r]
                self._note_end(r)
        elif self.again[r] > 0 and computed + 1 == self.target[r]:
            if computed % self.bs == 0:
                self.free += 1
            self._insert(r, computed)
        else:
            self.part, self.dp = r, computed

    def _need(self, k: int) -> int:
        """Blocks that the decoders take in the next k steps."""
        phase, blocks = self.phase, k // self.bs * self.nd
        for _ in range(k % self.bs):
            blocks += self.phases[phase]
            phase = phase - 1 if phase > 0 else self.bs - 1
        return blocks

    def _fits(self) -> int:
        """The most steps for which the free blocks suffice."""
        phase = self.phase
        k = self.free // self.nd * self.bs
        blocks = self.free % self.nd
        while self.phases[phase] <= blocks:
            blocks -= self.phases[phase]
            phase = phase - 1 if phase > 0 else self.bs - 1
            k += 1
        return k

    def _spend(self, k: int, prefill: int, pairs: float, decodes: int, context: float) -> None:
        """k steps of equal shape; pairs and context are summed over them. Then the ends."""
        step_s = self.base_s + self.prefill_s * prefill
        if prefill + decodes > self.knee:
            step_s += self.over_knee_s * (prefill + decodes - self.knee)
        if decodes > 0:
            step_s += self.decode_base_s + self.decode_s * decodes
            self.S += k
            self.phase = (self.phase + self.bs - k % self.bs) % self.bs
        self.now += k * step_s + self.kv_s * context + self.pair_s * pairs
        self.steps += k
        self.min_free = min(self.min_free, self.free)
        while self.nd > 0 and self.fin[self.ends[self.nd - 1]] <= self.S:
            r = self.ends[self.nd - 1]
            self._leave(r)
            self._note_end(r)

    def _jump(self, c: int) -> None:
        """As many steps as nothing but the half-done prompt (c tokens a step) and the contexts grow."""
        k = self.steps_max - self.steps
        if c > 0:
            k = min(k, max(1, (self.target[self.part] - self.dp + c - 1) // c - 1))
        context = 0.0
        if self.working > 0:
            k = min(k, self.fin[self.ends[self.nd - 1]] - self.S)
            if self._need(k) > self.free:
                k = self._fits()
            self.free -= self._need(k)
            context = 1.0 * k * (self.ksum + self.nd * self.S) + 0.5 * self.nd * k * (k - 1)
        pairs = c * (k * (self.dp + 0.5 * c) + c * (0.5 * k * (k - 1)))
        self._spend(k, c, pairs, self.working, context)
        if c > 0:
            r, self.part = self.part, -1
            self._progress(r, self.dp + k * c)

    def _entry(self, c: int) -> None:
        """One step in which requests enter; the half-done prompt before them gets its last c tokens."""
        prefill, pairs = c, c * (self.dp + 0.5 * c)
        old, first = self.part, self.h
        room = self.chunk - self.working - c
        x, context = 0, 0.0
        if self.working > 0:
            self.free -= self.phases[self.phase]
            context = 1.0 * (self.ksum + self.nd * self.S)
        while room > 0 and self._enters(0):
            r = self.queue[self.h]
            self.free -= (self.target[r] + self.bs - 1) // self.bs - self.shared[r]
            self.h += 1
            newest = self.prv[self.room]
            self.nxt[newest] = self.prv[self.room] = r
            self.prv[r], self.nxt[r] = newest, self.room
            self.nr += 1
            if r == self.target_index and self.wait_s < 0:
                self.wait_s = self.now
            x = min(self.target[r] - self.done[r], room)
            room -= x
            prefill += x
            pairs += x * (self.done[r] + 0.5 * x)
        self._spend(1, prefill, pairs, self.working, context)
        if old >= 0:
            self.part = -1
            self._progress(old, self.target[old])
        for i in range(first, self.h):
            r = self.queue[i]
            self._progress(r, self.done[r] + x if i == self.h - 1 else self.target[r])

    def _crowded(self) -> bool:
        """One step with preemptions, in run order: whoever needs a block takes it from the newest. False if nobody ran."""
        decodes, context, cur = 0, 0, self.nxt[self.room]
        while cur != self.room:
            if (self.base[cur] + self.S) % self.bs == 0:
                while self.free < 1 and self.decodes[cur] == 1:
                    self._preempt(self.prv[self.room])
                if self.decodes[cur] == 0:
                    break
                self.free -= 1
            decodes += 1
            context += self.base[cur] + self.S
            cur = self.nxt[cur]
        if decodes > 0:
            self._spend(1, 0, 0.0, decodes, 1.0 * context)
        return decodes > 0

    def _retract(self) -> bool:
        """The same in SGLang's order: the fewest output tokens give first, of those the longest prompt."""
        while self.phases[self.phase] > self.free:
            victim, least, cur = -1, 0, self.nxt[self.room]
            while cur != self.room:
                outputs = self.base[cur] + self.S + 1 - self.prompt[cur]
                if victim < 0 or outputs < least or (outputs == least and self.prompt[cur] > self.prompt[victim]):
                    victim, least = cur, outputs
                cur = self.nxt[cur]
            self._preempt(victim)
        if self.nd > 0:
            self.free -= self.phases[self.phase]
            self._spend(1, 0, 0.0, self.nd, 1.0 * (self.ksum + self.nd * self.S))
            return True
        return False

    def _preempt(self, r: int) -> None:
        if self.decodes[r] == 1:
            self.left[r] = self.fin[r] - self.S
            self.target[r] = self.base[r] + self.S + 1
            self.again[r] = 1
            j = 0
            for i in range(self.nd):
                if self.ends[i] != r:
                    self.ends[j] = self.ends[i]
                    j += 1
            self._leave(r)
        else:
            self._unlink(r)
            self.part = -1
            self.free += (self.target[r] + self.bs - 1) // self.bs - self.shared[r]
        self.done[r] = 0
        if not self.prompts_first:
            self.h -= 1
            self.queue[self.h] = r
        else:
            if self.t == self.room:
                for i in range(self.h, self.t):
                    self.queue[i - self.h] = self.queue[i]
                self.h, self.t = 0, self.t - self.h
            self.queue[self.t] = r
            self.t += 1
        if r == self.target_index:
            self.preemptions += 1
