"""Which replica gets a request that needs no prediction: by what the gateway itself counts. Pure.

For policies that predict this serves what they do not cover (embeddings, audio, forms): there the one with fewer
requests in flight of two. What they do cover goes over the desk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.config import ModelSpec
from gateway.policies.base import Policy
from gateway.policies.counts import PowerOfDRequests
from gateway.policies.table import COUNTING
from gateway.replica import Replica


class Ask:
    """What a policy may know of a request."""

    __slots__ = ("model", "prompt_tokens", "session")

    def __init__(self, model: str, session: str = "", prompt_tokens: int = 0) -> None:
        self.model = model
        self.session = session
        self.prompt_tokens = prompt_tokens


@dataclass(frozen=True, slots=True)
class Hold:
    """Nobody is open: wait. `reason` is for metrics and the refusal's message."""

    reason: str


class Dispatcher:
    """One policy object per model, and what surrounds every choice: only open replicas, none that this request tried."""

    def __init__(self, rule: Callable[[str], ModelSpec], rng: Random) -> None:
        self._rule = rule
        self._rng = rng
        self._policies: dict[str, Policy] = {}

    def choose(
        self, ask: Ask, replicas: Sequence[Replica], now_s: float, exclude: frozenset[str] = frozenset()
    ) -> Replica | Hold:
        """A replica, or why to wait. `replicas` are the routable ones; Hold("excluded") when all were tried."""
        policy = self._policies.get(ask.model)
        if policy is None:
            policy = self._policy(ask.model)
        if not exclude and replicas:
            chosen = policy.choose(ask, replicas, now_s)
            if chosen.open(now_s):
                return chosen
        left = [r for r in replicas if r.name not in exclude]
        if not left:
            return Hold("excluded" if replicas else "none ready")
        opened = [r for r in left if r.open(now_s)]
        return policy.choose(ask, opened, now_s) if opened else Hold("all full")

    def _policy(self, model: str) -> Policy:
        if len(self._policies) >= 4096:
            self._policies.clear()
        spec = self._rule(model)
        policy = self._policies[model] = COUNTING.get(spec.policy, PowerOfDRequests)(spec, self._rng)
        return policy
