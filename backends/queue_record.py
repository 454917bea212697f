"""How an engine's queue is ordered, as its record tells it: by a sender's priority, or by budgets. Pure.

Runs inside the engine, when somebody joins or leaves the queue; each step it tells some figures.
"""

from collections.abc import Sequence
from typing import Any

from backends.cascade import Cascade
from backends.scheduler_record import ID_CHARACTERS_MAX
from backends.snapshot_record import Begun, Bids, Figures, Rule

_NUMBER_MAX = 1 << 62
_NO_FIGURES, _NOBODY = Figures(), Begun()


class ByPriority:
    """vLLM's own order: the smallest `priority` first."""

    rule = Rule("priority")

    def bids(self, listed: Sequence[Any]) -> Bids:
        """Of those who wait."""
        return Bids(0, [max(-_NUMBER_MAX, min(_NUMBER_MAX, request.priority)) for request in listed])

    def begun(self, running: Sequence[Any]) -> Begun:
        """They keep their places."""
        return _NOBODY

    def figures(self) -> Figures:
        """None."""
        return _NO_FIGURES

    def gammas(self) -> dict[str, float]:
        """None."""
        return {}


class ByBudget:
    """Ours: `cascade` decides."""

    def __init__(self, cascade: Cascade) -> None:
        given = cascade.options
        self._cascade = cascade
        self.rule = Rule("leeway", given.order, cascade.queue.share.rho, given.alpha, given.age_s, given.preempt)

    def bids(self, listed: Sequence[Any]) -> Bids:
        """Of those who wait; who rests, or is held elsewhere, has none and stands before or behind the others."""
        found = [self._cascade.queue.get(request.request_id) for request in listed]
        known = [waiting for waiting in found if waiting is not None]
        first = next((place for place, waiting in enumerate(found) if waiting is not None), 0)
        if None in found[first : first + len(known)]:
            return Bids()  # somebody in between: nothing that could be told
        return Bids(
            first,
            [],
            [int(waiting.arrival_s * 1e3) for waiting in known],
            [int(waiting.deadline_s * 1e3) if waiting.slo_s < float("inf") else 0 for waiting in known],
            [int(waiting.cost_s * 1e6) for waiting in known],
        )

    def begun(self, running: Sequence[Any]) -> Begun:
        """Who has no token yet. (One that gave way and is computed again counts as keeping its place.)"""
        begun = [(at, one.leeway) for at, one in enumerate(running) if not one.num_output_tokens and not one.leeway.first_s]
        gamma = self._cascade.gamma
        return Begun(
            [at for at, _ in begun],
            [int(own.arrival_s * 1e3) for _, own in begun],
            [int(own.deadline_s * 1e3) if own.deadline_s < float("inf") else 0 for _, own in begun],
            [gamma.of(own.slo_class) for _, own in begun],
        )

    def figures(self) -> Figures:
        """As of the step that was composed last."""
        cascade = self._cascade
        pace, (gives, spare_s) = cascade.pace, cascade.offer
        debt, gives = float(cascade.queue.share.debt), gives[:ID_CHARACTERS_MAX]
        return Figures(pace.step_s, pace.token_s, cascade.reference_s, cascade.stretch, debt, gives, spare_s)

    def gammas(self) -> dict[str, float]:
        """The guards of the classes that were seen."""
        return self._cascade.gamma.known()
