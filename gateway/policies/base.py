"""What a dispatch policy is: `choose`, and before it `drawn` where the choice rests on replies. Pure.

`drawn` names the replicas whose prediction or state is asked for; policies that count by themselves have none of it.
`choose` picks one. Adding a policy = one class, one table of cases in the tests, one line in the table, one line
in the README. The random source is given at construction.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random
from typing import Protocol, TypeVar

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.views import View
from predictor.snapshot import ProbeReply

V = TypeVar("V", bound=View)
Replies = Mapping[str, ProbeReply]


class Asked(Protocol):
    """What policies that count by themselves know of a request."""

    @property
    def session(self) -> str: ...


class Policy(Protocol):
    """A policy that needs nothing but the views. They are never empty, and all may be chosen."""

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V: ...


class Probing(Protocol):
    """A policy that rests on replies: a good one of each view that it may choose is there when it chooses."""

    def drawn(self, job: Job, views: Sequence[View]) -> Sequence[View]: ...
    def choose(self, job: Job, views: Sequence[View], now_s: float, replies: Replies) -> View: ...


class Base:
    """Keeps the rule and the random source."""

    def __init__(self, rule: ModelSpec, rng: Random) -> None:
        self.rule = rule
        self.rng = rng


def least(views: Sequence[V], score: Callable[[V], float], rng: Random) -> V:
    """The view of least score, ties at random."""
    best: list[V] = []
    best_score = inf
    for view in views:
        value = score(view)
        if value < best_score:
            best_score, best = value, [view]
        elif value == best_score:
            best.append(view)
    if len(best) == 1:
        return best[0]
    pool: Sequence[V] = best or views
    return pool[int(rng.random() * len(pool))]


PAIR_VIEWS_MAX = 21  # of more, `sample` draws in another way


def pair(views: Sequence[V], rng: Random) -> list[V]:
    """Two different views at random: what `rng.sample(views, 2)` draws, at a quarter of its price."""
    count = len(views)
    first, second = _below(count, rng), _below(count - 1, rng)
    return [views[first], views[count - 1 if second == first else second]]


def _below(limit: int, rng: Random) -> int:
    bits = limit.bit_length()
    drawn = rng.getrandbits(bits)
    while drawn >= limit:
        drawn = rng.getrandbits(bits)
    return drawn


def load(view: View) -> float:
    """In-flight requests per unit of weight."""
    return view.in_flight / view.weight
