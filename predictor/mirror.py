"""The gateway's own picture of one engine: what it sent there, how far that is, what it holds. Pure.

Fed by dispatches, first tokens and ends; progress in between is read lazily, never told token by token. Where the
engine's clock cannot be seen, `stepclock` reckons it, and `pace` learns how much slower steps are than the profile says.
"""

from collections.abc import Collection

from predictor.memory import Memory
from predictor.ordered import joins
from predictor.pace import Pace
from predictor.peak import PeakCurve
from predictor.picture import picture
from predictor.prefill import StepCosts, step_costs
from predictor.prefix import PrefixIndex
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate
from predictor.seats import Demand, Mark, Progress, Seat, Sent, Sight
from predictor.snapshot import Snapshot
from predictor.step_budget import StepBudget
from predictor.stepclock import StepClock

NEVER = float("inf")
REFRESH_S = 0.1  # how old sums over running requests may be
WINDOW_S = 1.0  # steps are counted over so long
STEPS_MIN = 10


class Mirror:
    """See the module's words. After `look(now_s)` these hold for that instant:

    `lag_s` until the step in progress ends, `pending_tokens` of prompts left beyond that step and their `pending_pairs`
    (for the quadratic cost), `decodes` running sequences over `kv_tokens` of context, `step_s` of a step with them, and
    `room` for prompt tokens in it. `overdue_s` is by how much the oldest first token is late that should be here.
    """

    def __init__(
        self,
        profile: StepProfile,
        limits: EngineLimits,
        *,
        sight: Sight | None = None,
        learns: bool = False,
        common: Pace | None = None,
    ) -> None:
        self.profile = profile
        self.limits = limits
        self.costs: StepCosts = step_costs(profile)
        self.index = PrefixIndex(0)
        self.pace = 1.0
        self.error = 0.0  # see Pace
        self.lag_s = 0.0
        self.pending_tokens = 0
        self.pending_pairs = 0.0
        self.decodes = 0
        self.kv_tokens = 0.0
        self.step_s = 0.0
        self.room = limits.max_num_batched_tokens
        self.overdue_s = 0.0
        self.heard_s = 0.0
        self.scheduling = ""  # how the engine orders its queue, as far as it is known
        self.foreign = 0  # requests that others sent there, as far as the engine's own figures show them
        self.foreign_tokens = 0
        self._sight = sight
        self._learns = learns
        self.learned = Pace()
        self.budget = StepBudget()
        self._common = common
        self._window: Mark | None = None
        self._filled_s = 0.0
        self._seats: dict[str, Seat] = {}
        self.memory = Memory(self._seats)
        self.filling: list[Seat] = []  # no first token yet, in the order of computing
        self._clock = StepClock(self.costs, limits.max_num_batched_tokens, self.filling)
        self._refreshed_s = -NEVER
        self._running = 0  # sequences that decode
        self._running_tokens = 0  # ... and their context, as last refreshed
        self._redo_tokens = 0
        self._idle()

    def __repr__(self) -> str:
        return f"<Mirror {len(self._seats)} there, {len(self.filling)} filling, pending={self.pending_tokens}>"

    def __len__(self) -> int:
        return len(self._seats)

    # -- events

    def dispatched(self, demand: Sent, hit_tokens: int, now_s: float, progress: Progress | None = None, tier: int = 1) -> float:
        """It goes there now, from that tier of the line. Gives the predicted seconds to its first token."""
        self.look(now_s)
        seat = Seat(demand, hit_tokens, now_s, progress, tier)
        behind = joins(self.filling, seat, self.scheduling, self.work_s, now_s)
        wait_s = self.ttft_s(demand.prompt_tokens, seat.computed, *behind)
        seat.starts_s, seat.due_s = now_s + self.lag_s, now_s + wait_s
        self.heard_s = self.heard_s if self._seats else now_s
        self._seats[seat.id] = seat
        self.memory.joined(seat)
        if seat.prefix:
            self._touch(seat, demand.block_tokens)
        left = seat.prompt_tokens - seat.computed
        self.pending_tokens += left
        self.pending_pairs += left * (seat.computed + 0.5 * left)
        if self._sight is None and self._clock.ends_s <= now_s:
            self._clock.begin(now_s, self.decodes, self.kv_tokens)
        return wait_s

    def started(self, job_id: str, progress: Progress) -> None:
        """Its progress can be read from now on."""
        seat = self._seats.get(job_id)
        if seat is not None:
            seat.progress = progress

    def revised(self, job_id: str, lengths: LengthEstimate) -> bool:
        """How long its answer may be was found out after it was sent. False when it is not there."""
        seat = self._seats.get(job_id)
        if seat is not None:
            self.memory.revised(seat, lengths)
        return seat is not None

    def first_token(self, job_id: str, now_s: float) -> None:
        """Its first output token came: its prompt is computed, and so are those before it."""
        seat = self._seats.get(job_id)
        if seat is None or seat.first_s >= 0:
            return
        self.budget.computed(seat.sent_s, seat.prompt_tokens - seat.hit_tokens)
        if self._learns and seat.progress is not None:
            self._saw_first(seat, now_s)
        in_turn = self.filling[0] is seat
        self._count_fill(seat)
        if self._sight is None:
            self._clock.heard(now_s, self.decodes, self.kv_tokens)
            for earlier in self.filling:
                earlier.computed = earlier.prompt_tokens
                if earlier is seat:
                    break
                earlier.passed = True
        self._decodes(seat, now_s)
        self.heard_s = now_s
        if self._learns and in_turn:
            self._mark(now_s)

    def finished(self, job_id: str, now_s: float) -> None:
        """Its answer is complete."""
        seat = self._seats.get(job_id)
        if seat is None:
            return
        if self._learns and seat.progress is None and now_s < seat.due_s:
            self._saw_first(seat, now_s)  # all of it came before that
        if self._sight is None:
            self._clock.heard(now_s, self.decodes, self.kv_tokens)
        self._leave(seat)
        self.heard_s = now_s

    def lost(self, job_id: str) -> None:
        """It is gone without an end: cancelled or failed."""
        if job_id in self._seats:
            self._leave(self._seats[job_id])

    def retune(self, profile: StepProfile, limits: EngineLimits) -> None:
        """The engine turned out to be another one than believed; what is there stays."""
        self.profile, self.limits, self.costs = profile, limits, step_costs(profile)
        self._clock.costs, self._clock.step_tokens = self.costs, limits.max_num_batched_tokens
        if self.memory.block_tokens:
            self.index.resize(limits.kv_blocks * limits.block_size // self.memory.block_tokens)
        self._refreshed_s = -NEVER
        self._idle()

    def restarted(self) -> None:
        """The engine is a new process: nothing is cached there."""
        self.index.forget()

    def reported(self, requests: int, kv_usage: float) -> None:
        """The engine's own figures: requests running and waiting, share of its KV in use. What exceeds our own picture
        is others' traffic; it counts until the next report."""
        self.foreign = max(0, requests - len(self._seats))
        own = sum(seat.private_tokens + seat.generated() for seat in self._seats.values())
        held = int(kv_usage * self.limits.kv_blocks * self.limits.block_size)
        self.foreign_tokens = max(0, held - own - self.memory.pinned_tokens) if self.foreign else 0
        self._idle()

    # -- what is read

    def hit_tokens(self, demand: Demand) -> int:
        """Prompt tokens that the engine's cache will probably save; one token is always computed."""
        prefix = demand.prefix
        if not prefix:
            return 0
        whole = (demand.prompt_tokens - 1) // demand.block_tokens
        return min(self.index.hit_blocks(prefix), whole) * demand.block_tokens

    def staleness_s(self, now_s: float) -> float:
        """Since anything was heard of an engine that has work; 0 when it has none."""
        return now_s - self.heard_s if self._seats else 0.0

    def look(self, now_s: float) -> None:
        """Bring the figures up to `now_s`."""
        if not self._seats and not self.foreign:
            return  # the figures of an idle engine stand already
        if now_s - self._refreshed_s >= REFRESH_S:
            self._refresh(now_s)
        if self._sight is None and self._seats:
            self._clock.advance(now_s, self.decodes, self.kv_tokens)
        self._count(now_s)

    def ttft_s(self, prompt_tokens: int, cached: int, behind: int = 0, behind_pairs: float = 0.0) -> float:
        """Seconds to the first token of a prompt sent now, `cached` of it in the cache, `behind` of what is pending after it;
        after `look`."""
        left = prompt_tokens - cached
        own_s = -(-left // self.room) * self.step_s + self.costs.tokens_s(left, left * (cached + 0.5 * left))
        return self.lag_s + self.backlog_s(behind, behind_pairs) + own_s * self.pace

    def work_s(self, prompt_tokens: int, cached: int) -> float:
        """Seconds to compute a prompt alone."""
        return self.costs.prefill_s(prompt_tokens - cached, cached, 0, 0.0, self.limits.max_num_batched_tokens) * self.pace

    def backlog_s(self, less: int = 0, less_pairs: float = 0.0) -> float:
        """Seconds to compute what is pending, less so much of it; after `look`."""
        pending, pairs = self.pending_tokens - less, max(0.0, self.pending_pairs - less_pairs)
        if pending <= 0:
            return 0.0
        return (-(-pending // self.room) * self.step_s + self.costs.tokens_s(pending, pairs)) * self.pace

    def opens_s(self, now_s: float, ahead_tokens: int) -> float:
        """When no more than `ahead_tokens` will be pending beyond the step then in progress; after `look`. Infinity if a
        preempted request has to come back first: that takes room, not time."""
        if self._redo_tokens:
            return NEVER
        over = self.pending_tokens - ahead_tokens
        if over <= 0:
            return now_s
        steps = -(-over // self.room) - 1
        share = min(1.0, steps * self.room / self.pending_tokens)
        filled_s = steps * self.step_s + share * self.costs.tokens_s(self.pending_tokens, self.pending_pairs)
        return now_s + self.lag_s + filled_s * self.pace

    @property
    def seats(self) -> Collection[Seat]:
        """All requests there."""
        return self._seats.values()

    def fits(self, demand: Demand, margin: float) -> bool:
        """Whether the predicted peak of KV with this request stays within (1 - margin) of all; an empty one takes any."""
        if not self._seats and not self.foreign:
            return True
        return self.memory.fits(demand, self._limit_tokens(margin))

    def roomy_tokens(self, margin: float) -> float:
        """A request of no more tokens in all fits without a look at the peak; below 0 when everybody there is too much."""
        if not self._seats and not self.foreign:
            return NEVER
        return self._limit_tokens(margin) - self.memory.final_tokens

    def frees_steps(self, demand: Demand, margin: float, crowd: PeakCurve) -> int:
        """Steps until `fits` is expected to hold, by the memory's picture of who is there."""
        return self.memory.frees_steps(demand, self._limit_tokens(margin), crowd)

    def snapshot(self, now_s: float) -> Snapshot:
        """The picture as a record for a what-if."""
        self.look(now_s)
        return picture(self._seats.values(), self.limits, now_s, self.lag_s)

    # -- inside

    def _limit_tokens(self, margin: float) -> float:
        return (1.0 - margin) * self.limits.kv_blocks * self.limits.block_size - self.foreign_tokens

    def _idle(self) -> None:
        """The figures of an engine without work, if it has none."""
        if self._seats or self.foreign:
            return
        self._clock.stop()
        self._running = self._running_tokens = self._redo_tokens = self.memory.final_tokens = 0
        self.decodes, self.kv_tokens, self.lag_s, self.overdue_s = 0, 0.0, 0.0, 0.0
        self.pending_tokens, self.pending_pairs = 0, 0.0
        self.step_s, self.room = self.costs.step_s(0, 0.0), self.limits.max_num_batched_tokens

    def _decodes(self, seat: Seat, now_s: float) -> None:
        seat.first_s = now_s
        seat.computed = seat.prompt_tokens
        self.filling.remove(seat)
        self._running += 1
        self._running_tokens += seat.prompt_tokens

    def _touch(self, seat: Seat, block_tokens: int) -> None:
        if self.memory.block_tokens != block_tokens:
            self.memory.block_tokens = block_tokens
            self.index.resize(self.limits.kv_blocks * self.limits.block_size // block_tokens)
        self.index.touch(seat.prefix)

    def _leave(self, seat: Seat) -> None:
        del self._seats[seat.id]
        self.memory.left(seat)
        if seat.first_s < 0:
            self.filling.remove(seat)
        else:
            self._running -= 1
            self._running_tokens -= min(self._running_tokens, seat.prompt_tokens + seat.generated())
        self._idle()

    def _refresh(self, now_s: float) -> None:
        """Sums over all that is there: exact now, reused for a moment."""
        self._refreshed_s = now_s
        running = final = redo = 0
        for seat in self._seats.values():
            progress = seat.progress
            if progress is not None:
                generated = progress.generated
                if seat.first_s >= 0 and 0 <= progress.computed < seat.prompt_tokens:
                    redo += seat.prompt_tokens + generated - progress.computed  # preempted: computed again
            elif seat.first_s >= 0 and self.step_s > 0:
                generated = seat.reckoned = int((now_s - seat.first_s) / (self.step_s * self.pace))
            else:
                generated = 0
            final += seat.prompt_tokens + generated + seat.room_after(generated)
            if seat.first_s >= 0:
                running += seat.prompt_tokens + generated
        self._running_tokens, self._redo_tokens = running, redo
        self.memory.refreshed(final, now_s)
        if self._learns and not self.filling:
            self._mark(now_s)

    def _count(self, now_s: float) -> None:
        """The figures, from the requests that fill and the sums."""
        left_all, pairs, flying = self._redo_tokens, 0.0, 0
        unseen: Seat | None = None
        self.overdue_s = 0.0
        for seat in self.filling:
            progress = seat.progress
            if progress is not None and progress.computed >= 0:
                seat.computed = max(seat.computed, progress.computed)
            left = seat.prompt_tokens - seat.computed
            if left > 0:
                left_all += left
                pairs += left * (seat.computed + 0.5 * left)
                if seat.starts_s <= now_s:
                    flying += left
            elif progress is None and not seat.streams:
                unseen = seat
            elif not seat.passed:  # else it waits for something of its own
                self.overdue_s = max(self.overdue_s, now_s - seat.due_s)
        if unseen is not None:
            self._decodes(unseen, now_s)  # nobody will tell of its first token
        self.decodes = self._running + self.foreign
        self.kv_tokens = float(self._running_tokens + self.foreign_tokens)
        self.step_s = self.costs.step_s(self.decodes, self.kv_tokens)
        self.room = max(1, self.limits.max_num_batched_tokens - self.decodes)
        chunk = self._flight(now_s, flying)
        if chunk and left_all:
            pairs *= 1.0 - chunk / left_all
        self.pending_tokens, self.pending_pairs = left_all - chunk, pairs

    def _flight(self, now_s: float, flying: int) -> int:
        """Prompt tokens in the step in progress; sets when that ends."""
        if self._sight is None:
            reckoned_s = self._clock.ends_s - now_s if self._seats else 0.0
            self.lag_s = max(0.0, reckoned_s, self.overdue_s)  # what has been late so long is late for about as long again
            return min(self._clock.chunk, flying)
        ends_s = self._sight.step_ends_at_s
        self.lag_s = 0.0 if ends_s is None else max(0.0, ends_s - now_s)
        return 0 if ends_s is None else min(self.room, flying)

    def _mark(self, now_s: float) -> None:
        """An instant at which it is known how far prompts are: compare with the last one."""
        seat = next((seat for seat in self._seats.values() if seat.first_s >= 0 and seat.progress is not None), None)
        if seat is None or seat.progress is None:
            self._window = None
            return
        here = Mark(seat.id, now_s, seat.progress.generated, self._filled_s, self.step_s)
        last = self._window
        if last is not None and last.id == here.id:
            came, took_s = here.generated - last.generated, now_s - last.at_s
            if took_s < WINDOW_S or came < STEPS_MIN:
                return
            self.learned.window(came * 0.5 * (here.step_s + last.step_s) + here.filled_s - last.filled_s, took_s)
            self.take_pace()
        self._window = here

    def _count_fill(self, seat: Seat) -> None:
        """What a prompt takes beyond its steps; with a hit nobody knows, it may have been gone."""
        if seat.hit_tokens:
            self._window = None
        left = seat.prompt_tokens - seat.hit_tokens
        saved = max(0.0, self.costs.knee_tokens - self.decodes) * self.costs.over_knee_s * -(-left // self.room)
        self._filled_s += max(0.0, self.costs.tokens_s(left, left * (seat.hit_tokens + 0.5 * left)) - saved)

    def _saw_first(self, seat: Seat, now_s: float) -> None:
        predicted_s, observed_s = seat.due_s - seat.sent_s, now_s - seat.sent_s
        self.learned.first_token(predicted_s, observed_s)
        if self._common is not None:
            self._common.hint(predicted_s, observed_s, self.pace)
        self.take_pace()

    def take_pace(self) -> bool:
        """Go by what was learned. False when that is its own: nobody else's lessons matter then."""
        shared = self._common is not None and not self.learned.grown
        learned = self._common if shared and self._common is not None else self.learned
        self.pace = self._clock.pace = learned.value
        self.error = self.learned.error
        return shared
