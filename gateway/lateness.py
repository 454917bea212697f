"""How late a model's requests will be, given when it can start how many: a fluid in closed form. Pure.

Requests wait in the order that is told; more arrive at a constant rate until the horizon; windows say when a replica is
there, how many requests it takes at once (at the rate of its prefills) and how many per second from then on. Cumulated
starts are piecewise linear, and so is each request's wait, so that lateness is a sum of trapezoids. It must never know
of devices, swaps or costs: those decide which windows there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model is asked for. `waiting` are groups of (requests, seconds until their start is late, 0 or
    less for what is late already) in the order in which they start; `slack_s` is that of a request when it comes, `classes`
    its kinds where they differ (share of the requests, slack); `oldest_s` how long the oldest has waited."""

    waiting: tuple[tuple[float, float], ...] = ()
    rate_per_s: float = 0.0
    slack_s: float = 10.0
    oldest_s: float = 0.0
    classes: tuple[tuple[float, float], ...] = ()

    @property
    def count(self) -> float:
        """Requests that wait."""
        return sum(group[0] for group in self.waiting)


@dataclass(frozen=True, slots=True)
class Window:
    """A replica that may be given requests from `open_s` until `close_s`: `slots` at `start_per_s`, then `steady_per_s`."""

    open_s: float
    close_s: float
    slots: float
    start_per_s: float
    steady_per_s: float


@dataclass(frozen=True, slots=True)
class Prices:
    """What lateness costs. A request that comes to be late costs `miss_s` and its lateness; one that is late already
    each further second times `late_weight`. The first start after `starve_s` of waiting costs `starve_weight` a second."""

    horizon_s: float = 60.0
    miss_s: float = 60.0
    late_weight: float = 0.05
    starve_s: float = 240.0
    starve_weight: float = 300.0


def turn(now_s: float, arrived_s: float, latest_s: float, aged_s: float) -> tuple[int, float]:
    """The order of those who wait for one model, lowest first: who has waited for `aged_s`, as they came; then who can still
    start by their latest start, the most urgent first; then who is late already, as they came."""
    if now_s - arrived_s >= aged_s:
        return 0, arrived_s
    return (1, latest_s) if latest_s >= now_s else (2, arrived_s)


def lateness_s(demand: Demand, windows: Sequence[Window], prices: Prices) -> float:
    """Expected cost in seconds of lateness. The last window must be open for ever, or some requests would never start."""
    if not demand.waiting and demand.rate_per_s <= 0:
        return 0.0
    rates = _rates(windows)
    place, now_s, cost_s = 0, 0.0, 0.0
    if demand.waiting:
        place = next(i for i, stretch in enumerate(rates) if stretch[2] > 0)
        now_s = rates[place][0]
        over_s = demand.oldest_s + now_s - prices.starve_s
        cost_s = over_s * prices.starve_weight if over_s > 0 else 0.0
        for count, slack_s in demand.waiting:
            cost, place, now_s = _serve_waiting(count, slack_s, rates, place, now_s, prices)
            cost_s += cost
    if demand.rate_per_s <= 0:
        return cost_s
    return cost_s + _serve_coming(demand, rates, place, now_s, prices)


def _serve_waiting(
    count: float, slack_s: float, rates: Sequence[tuple[float, float, float]], place: int, now_s: float, prices: Prices
) -> tuple[float, int, float]:
    """What a group costs from `now_s` on in that stretch; where and when the next one begins."""
    cost_s = 0.0
    while True:
        begin_s, end_s, per_s = rates[place]
        now_s = max(now_s, begin_s)
        later_s = min(now_s + count / per_s, end_s) if per_s > 0 else now_s
        if later_s > now_s:
            part = per_s * (later_s - now_s)
            if slack_s <= 0:
                cost_s += part * (now_s + later_s) / 2 * prices.late_weight
            elif later_s > slack_s:
                cost_s += _positive(part, now_s - slack_s, later_s - slack_s, prices.miss_s)
            count -= part
            now_s = later_s
        if count <= 1e-9:
            return cost_s, place, now_s
        place += 1


def _serve_coming(
    demand: Demand, rates: Sequence[tuple[float, float, float]], place: int, now_s: float, prices: Prices
) -> float:
    """What those cost that come until the horizon. `came` of them have been started."""
    rate, horizon_s = demand.rate_per_s, prices.horizon_s
    classes = demand.classes or ((1.0, demand.slack_s),)
    last = rate * horizon_s - 1e-9
    came, cost_s = 0.0, 0.0
    for begin_s, end_s, per_s in rates[place:]:
        now_s = max(now_s, begin_s)
        if per_s <= 0 or now_s >= end_s:
            continue
        arrived_s = came / rate
        if arrived_s < now_s or per_s < rate:
            now_s = max(now_s, arrived_s)
            level_s = now_s + (rate * now_s - came) / (per_s - rate) if per_s > rate else NEVER
            until_s = min(end_s, level_s, now_s + (last - came) / per_s)
            if until_s > now_s:
                part = per_s * (until_s - now_s)
                first_s, last_s = now_s - arrived_s, until_s - (came + part) / rate
                for share, slack_s in classes:
                    cost_s += _positive(part * share, first_s - slack_s, last_s - slack_s, prices.miss_s)
                came += part
                now_s = until_s
        if now_s < end_s and came < last:  # nobody waits: whoever comes is started at once
            came = max(came, rate * min(end_s, horizon_s))
        if came >= last - 1e-6:
            break
    return cost_s


def _positive(part: float, first_s: float, last_s: float, miss_s: float) -> float:
    """So many requests, their lateness linear from the first to the last: what those that are late cost."""
    if first_s <= 0 and last_s <= 0:
        return 0.0
    if first_s >= 0 and last_s >= 0:
        return part * ((first_s + last_s) / 2 + miss_s)
    worst_s = max(first_s, last_s)
    return part * worst_s / abs(last_s - first_s) * (worst_s / 2 + miss_s)


def _rates(windows: Sequence[Window]) -> list[tuple[float, float, float]]:
    """Stretches of constant rate: begin, end, starts per second."""
    if len(windows) == 1 and windows[0].close_s == NEVER:
        only = windows[0]
        full_s = only.open_s + only.slots / only.start_per_s
        last = (full_s, NEVER, only.steady_per_s)
        return [(only.open_s, full_s, only.start_per_s), last] if full_s > only.open_s else [last]
    edges: list[tuple[float, float]] = []
    for window in windows:
        full_s = window.open_s + window.slots / window.start_per_s
        if full_s < window.close_s:
            edges.append((window.open_s, window.start_per_s))
            edges.append((full_s, window.steady_per_s - window.start_per_s))
            edges.append((window.close_s, -window.steady_per_s))
        elif window.open_s < window.close_s:
            edges.append((window.open_s, window.start_per_s))
            edges.append((window.close_s, -window.start_per_s))
    edges.sort()
    found, rate = [], 0.0
    for place, (at_s, change) in enumerate(edges):
        rate += change
        end_s = edges[place + 1][0] if place + 1 < len(edges) else NEVER
        if end_s > at_s and at_s < NEVER:
            found.append((at_s, end_s, rate if rate > 1e-9 else 0.0))
    return found
