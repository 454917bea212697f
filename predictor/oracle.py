"""What a sidecar answers: the newest sighting, what is reserved on top of it, and the forecast for one request. Pure.

The forecast is loaded once for each state and set of reservations, however many requests are asked about. Times of a
reply count from the moment of the question; until the step in progress ends nothing can begin, and a step that lasts
longer than foretold is taken to end now. How requests turned out before corrects the time per token (outcomes).
Where the engine orders its queue by budgets or priorities, a request and the reserved ones get their places in it.
"""

import math
from dataclasses import replace
from typing import Protocol

from predictor.forecast import Forecast
from predictor.foretold import Foretold
from predictor.kvview import KvView
from predictor.outcomes import Outcomes
from predictor.places import Comer, Places
from predictor.prefill import StepCosts, step_costs
from predictor.prefix import PrefixIndex
from predictor.profile import StepProfile
from predictor.request import Estimate, Request
from predictor.reservations import Reservations
from predictor.sighting import Sighting
from predictor.snapshot import ProbeReply, Resident
from predictor.wire import Ask, Correction

CLAIM_STATES = 1000  # a request that was reserved and not seen in so many states never came


class Pace(Protocol):
    """Learns from observed steps how far a profile is off."""

    @property
    def profile(self) -> StepProfile: ...
    @property
    def spread(self) -> float: ...
    @property
    def least(self) -> float: ...
    @property
    def error(self) -> float:
        """Recent mean relative error of foretold steps."""
        ...

    def saw(self, sighting: Sighting) -> bool:
        """Take in a state; whether the profile has changed with it."""
        ...


class FixedPace:
    """The profile as it was given."""

    spread = least = 1.0
    error = 0.0

    def __init__(self, profile: StepProfile) -> None:
        self.profile = profile

    def saw(self, sighting: Sighting) -> bool:
        return False


class Oracle:
    """One engine's. `overhead_s` is what passes outside the engine's steps before a first token is seen."""

    def __init__(self, pace: Pace, overhead_s: float = 0.0) -> None:
        self.reservations = Reservations()
        self.outcomes = Outcomes()
        self._lengths = Foretold()
        self._pace = pace
        self._overhead_s = overhead_s
        self._sighting: Sighting | None = None
        self._forecast: Forecast | None = None
        self._loaded = (-1, -1)
        self._step_s = 0.0
        self._costs: StepCosts | None = None
        self._places: Places | None = None
        self._order: tuple[list[int], bool] = ([], False)  # of those who wait, and whether a slot was given up, as loaded
        self._prefixes = PrefixIndex(0)
        self._hit_tokens: dict[str, int] = {}
        self._claimed: dict[str, int] = {}  # reserved: the state's number then, -1 once it decodes
        self.kv: KvView | None = None

    def follow_kv(self) -> KvView:
        """Hand this to whoever reads the engine's KV events: what is believed of prefixes is then corrected by them."""
        self.kv = KvView(self._prefixes)
        return self.kv

    @property
    def step_error(self) -> float:
        """Recent mean relative error of foretold steps."""
        return self._pace.error

    def __repr__(self) -> str:
        return f"<Oracle {self._forecast!r} {self.outcomes!r} reserved={len(self.reservations)}>"

    def saw(self, sighting: Sighting) -> None:
        """Take in a state, if it is a new one."""
        last = self._sighting
        if sighting is last:
            return
        self._sighting = sighting
        snapshot, changed = sighting.snapshot, self._pace.saw(sighting)
        if self._forecast is None:
            self._forecast = Forecast(self._pace.profile, snapshot.limits)
        elif changed:
            self._forecast.tune(self._pace.profile)
            self._costs = None
        self._forecast.spread = self._forecast.most = max(self._pace.spread, self.outcomes.spread)
        self._forecast.least = min(self._pace.least, self.outcomes.least)
        if last is not None and sighting.number < last.number:  # another engine
            self._prefixes.forget()
            self.outcomes.forget()
            self._lengths.forget()
        self.outcomes.saw(snapshot)
        if self.kv is not None and self._claimed:
            self._follow_prompts(self.kv, sighting)
        if len(self.reservations) or len(self._lengths):
            present = sighting.names()
            self.reservations.seen(present.__contains__, snapshot.taken_s)
            self._lengths.saw(present)

    def reserve(self, ask: Ask, now_s: float) -> float:
        """Count a request that is on its way; the instant at which that ends by itself. One that the engine shows already
        (the word of it came later than itself, or twice) is not counted again: only its lengths are news."""
        present = set() if self._sighting is None else self._sighting.names()
        there = ask.id in present
        if ask.id not in self.reservations:
            if not there and self._sighting is not None and self._sighting.lists_requests:
                self.outcomes.told(ask.id, self._foretold(ask, self._sighting, now_s).estimate.tpot_s, now_s)
            self._hit_tokens[ask.id] = self._hits(ask)
            self._use(ask)
            self._lengths.told(ask.id, ask.lengths)
            if there:
                self._lengths.saw(present)
                self._loaded = (-1, -1)
            if self.kv is not None and ask.prefix:
                self.kv.sent(ask)
                self._claimed[ask.id] = 0 if self._sighting is None else self._sighting.number
        return now_s if there else self.reservations.make(ask, now_s)

    def correct(self, correction: Correction) -> bool:
        """The lengths of a request that was reserved are known better now: while it is on its way and in the engine. False
        for one that is in neither."""
        reserved = self.reservations.correct(correction.id, correction.lengths)
        foretold = self._lengths.correct(correction.id, correction.lengths)
        if foretold:
            self._loaded = (-1, -1)
        return reserved or foretold

    def reply(self, ask: Ask, now_s: float) -> ProbeReply:
        """What is foretold for a request that is sent now. A state must have been seen."""
        sighting = self._sighting
        assert sighting is not None
        reply = self._foretold(ask, sighting, now_s)
        age_s = max(0.0, now_s - sighting.snapshot.taken_s) if sighting.busy else 0.0
        lead_s = self._overhead_s + (max(0.0, self._step_s - age_s) if sighting.busy else 0.0)
        return replace(reply, estimate=_later(reply.estimate, lead_s, self.outcomes.stretch), snapshot_age_s=age_s)

    def _foretold(self, ask: Ask, sighting: Sighting, now_s: float) -> ProbeReply:
        """From the end of the step in progress on, as if nobody else came."""
        forecast = self._forecast
        assert forecast is not None
        self._load(sighting, forecast, ask, now_s)
        request = Request(ask.id, ask.prompt_tokens, ask.lengths.q50, now_s)
        hit_tokens, place = self._hits(ask), -1
        if self._places is not None:
            comer = self._comer(ask, hit_tokens, forecast)
            order, place = self._places.place(comer, ask.asked_s)
            arranged = order, self._places.gives(comer, place, ask.asked_s)
            if arranged != self._order:  # it changes the others' places
                self._order = arranged
                forecast.load(self._places.arranged(*arranged))
        reply = forecast.reply(request, hit_tokens=hit_tokens, place=place)
        if not ask.harm:
            return reply
        return replace(reply, estimate=forecast.predict(request, harm=True, hit_tokens=hit_tokens, place=place))

    def _comer(self, ask: Ask, hit_tokens: int, forecast: Forecast) -> Comer:
        """The request as it comes to a queue that asks for more than its arrival."""
        if self._costs is None:
            self._costs = step_costs(forecast.profile)
        resident = Resident(ask.id, ask.prompt_tokens, hit_tokens, 0, ask.lengths.q50)
        chunk = forecast.limits.max_num_batched_tokens
        alone_s = self._costs.prefill_s(ask.prompt_tokens - hit_tokens, hit_tokens, 0, 0.0, chunk)
        arrival_s = ask.arrival_s if ask.deadline_s < math.inf else ask.asked_s
        return Comer(resident, arrival_s, ask.deadline_s, ask.class_name, ask.tier, alone_s)

    def _load(self, sighting: Sighting, forecast: Forecast, ask: Ask, now_s: float) -> None:
        self.reservations.expire(now_s)
        wanted = (sighting.number, self.reservations.version)
        if wanted == self._loaded:
            return
        self._loaded = wanted
        step = sighting.step
        self._step_s = sighting.snapshot.step_ends_s
        if step.prefill_tokens or step.decode_seqs:
            self._step_s = forecast.profile.step_s(step.prefill_tokens, step.decode_seqs, step.kv_tokens, step.pairs)
        pending = self.reservations.pending()
        self._hit_tokens = {one.id: self._hit_tokens.get(one.id, 0) for one in pending}
        snapshot = self._lengths.corrected(replace(sighting.snapshot, step_ends_s=0.0))
        if sighting.queueing is None or not ask.asked_s:  # an asker without a clock gets the place of its arrival
            reserved = tuple(
                Resident(one.id, one.prompt_tokens, self._hit_tokens[one.id], 0, one.lengths.q50) for one in pending
            )
            self._places = None
            forecast.load(replace(snapshot, waiting=(*snapshot.waiting, *reserved)) if reserved else snapshot)
            return
        self._places = Places(sighting.queueing, snapshot)
        for one in pending:
            self._places.join(self._comer(one, self._hit_tokens[one.id], forecast))
        self._order = self._places.order(ask.asked_s), False
        forecast.load(self._places.arranged(*self._order))

    # -- prefixes, as far as reservations tell of them

    def _hits(self, ask: Ask) -> int:
        """Tokens of the prompt that the engine probably has: those of prompts reserved before."""
        return min(self._prefixes.hit_blocks(ask.prefix) * ask.block_tokens, ask.prompt_tokens - 1)

    def _follow_prompts(self, kv: KvView, sighting: Sighting) -> None:
        """Whose prompt is computed; those that are no longer there, or have not come for long, are over."""
        running = {resident.id: resident for resident in sighting.snapshot.running}
        waiting = {resident.id for resident in sighting.snapshot.waiting}
        for name, since in [*self._claimed.items()]:
            resident = running.get(name)
            if resident is not None and resident.generated_tokens:
                kv.computed(name)
                self._claimed[name] = -1
            elif resident is None and name not in waiting and (since < 0 or sighting.number - since > CLAIM_STATES):
                kv.gone(name)
                del self._claimed[name]

    def _use(self, ask: Ask) -> None:
        sighting = self._sighting
        if ask.block_tokens < 1 or not ask.prefix or sighting is None or not sighting.caches_prefixes:
            return
        limits = sighting.snapshot.limits
        capacity = limits.kv_blocks * limits.block_size // ask.block_tokens
        if capacity != self._prefixes.capacity_blocks:
            self._prefixes.resize(capacity)
        self._prefixes.touch(ask.prefix)


def _later(estimate: Estimate, lead_s: float, stretch: float) -> Estimate:
    """All of it so much later, and the time per token so many times as long."""
    if math.isnan(estimate.e2e_s):
        return estimate
    return replace(
        estimate,
        ttft_s=estimate.ttft_s + lead_s,
        wait_s=estimate.wait_s + lead_s,
        tpot_s=estimate.tpot_s * stretch,
        e2e_s=estimate.ttft_s + lead_s + (estimate.e2e_s - estimate.ttft_s) * stretch,
    )
