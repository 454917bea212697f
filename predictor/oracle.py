"""What a sidecar answers: the newest sighting, what is reserved on top of it, and the forecast for one request. Pure.

The forecast is loaded once for each state and set of reservations, however many requests are asked about. A step that
lasts longer than foretold moves everything behind it: predictions are made as if it ended now.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate, Request
from predictor.reservations import Reservations
from predictor.sighting import Sighting
from predictor.snapshot import ProbeReply, Resident, Snapshot
from predictor.wire import Ask


class Forecaster(Protocol):
    """predictor.forecast.Forecast, as far as it is used here."""

    def load(self, snapshot: Snapshot) -> None: ...
    def reply(self, request: Request) -> ProbeReply: ...
    def predict(self, request: Request, *, harm: bool = False) -> Estimate: ...


class Pace(Protocol):
    """Learns from observed steps how far the profile is off."""

    @property
    def profile(self) -> StepProfile: ...
    def saw(self, sighting: Sighting) -> bool: ...


class Oracle:
    """One engine's. `make` builds the forecast for a profile and limits."""

    def __init__(self, pace: Pace, make: Callable[[StepProfile, EngineLimits], Forecaster]) -> None:
        self.reservations = Reservations()
        self._pace = pace
        self._make = make
        self._sighting: Sighting | None = None
        self._forecast: Forecaster | None = None
        self._limits: EngineLimits | None = None
        self._loaded: tuple[int, int] = (-1, -1)
        self._step_ends_s = 0.0

    def saw(self, sighting: Sighting) -> None:
        """Take in a state, if it is a new one."""
        if sighting is self._sighting:
            return
        self._sighting = sighting
        snapshot = sighting.snapshot
        if self._pace.saw(sighting) or self._forecast is None or snapshot.limits != self._limits:
            self._forecast = self._make(self._pace.profile, snapshot.limits)
            self._limits = snapshot.limits
            self._loaded = (-1, -1)
        if len(self.reservations):
            present = {resident.id for resident in (*snapshot.running, *snapshot.waiting)} if sighting.lists_requests else set()
            self.reservations.seen(present.__contains__, snapshot.taken_s)

    def reply(self, ask: Ask, now_s: float) -> ProbeReply:
        """What is foretold for a request that is dispatched now; `saw` comes first. Times count from `now_s`."""
        sighting, forecast = self._sighting, self._forecast
        assert sighting is not None
        assert forecast is not None
        self._load(sighting, forecast, now_s)
        snapshot = sighting.snapshot
        # The forecast begins where the step in progress ends; `begin_s` is that end, on the clock of `now_s`.
        begin_s = snapshot.taken_s + self._step_ends_s
        late_s = max(0.0, now_s - begin_s) if sighting.busy else 0.0
        request = Request(ask.id, ask.prompt_tokens, ask.lengths.q50, max(0.0, now_s - late_s), ask.prefix)
        reply = forecast.reply(request)
        estimate = forecast.predict(request, harm=True) if ask.harm else reply.estimate
        age_s = max(0.0, now_s - snapshot.taken_s) if sighting.busy else 0.0
        return replace(reply, estimate=estimate, snapshot_age_s=age_s)

    def _load(self, sighting: Sighting, forecast: Forecaster, now_s: float) -> None:
        self.reservations.expire(now_s)
        wanted = (sighting.number, self.reservations.version)
        if wanted == self._loaded:
            return
        self._loaded = wanted
        step = sighting.step
        self._step_ends_s = 0.0
        if step.prefill_tokens or step.decode_seqs:
            self._step_ends_s = self._pace.profile.step_s(step.prefill_tokens, step.decode_seqs, step.kv_tokens, step.pairs)
        snapshot = sighting.snapshot
        reserved = tuple(Resident(ask.id, ask.prompt_tokens, 0, 0, ask.lengths.q50) for ask in self.reservations.pending())
        taken_s = snapshot.taken_s if sighting.busy else now_s
        forecast.load(replace(snapshot, taken_s=taken_s, waiting=(*snapshot.waiting, *reserved), step_ends_s=self._step_ends_s))
