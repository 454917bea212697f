"""One simulated gateway: its desk, what it believes of each engine, and when it wants to be called. Pure.

As in the live gateway, engines that are believed to be alike learn a common pace until each has lessons of its own.
"""

from random import Random

from gateway.desk import Desk
from gateway.sim.scenario import PolicySpec, ReplicaSpec, ViewSpec
from gateway.views import View
from predictor.mirror import Mirror
from predictor.pace import Pace
from predictor.profile import StepProfile
from predictor.seats import Sight

NEVER_S = float("inf")


class Front:
    """See the module's words. `due_s` and `alarm` are the cluster's note of the desk's next call."""

    __slots__ = ("_common", "_fresh", "_policy", "_view", "alarm", "desk", "due_s", "views")

    def __init__(self, policy: PolicySpec, view: ViewSpec, rng: Random) -> None:
        self.desk = Desk(policy.rule, rng, own_dispatches=policy.own_dispatches)
        self.views: dict[str, View] = {}
        self.due_s = NEVER_S
        self.alarm = -1
        self._policy = policy
        self._view = view
        self._common: dict[StepProfile, Pace] = {}
        self._fresh: list[Mirror] = []

    def meets(self, name: str, kind: ReplicaSpec, sight: Sight) -> None:
        """An engine is there, or there again and empty."""
        profile, learns = kind.profile.scaled(kind.slower), self._view.learns
        common = self._common.setdefault(profile, Pace()) if learns else None
        mirror = Mirror(profile, kind.limits, sight=sight if self._view.sight else None, learns=learns, common=common)
        if learns:
            mirror.take_pace()
            self._fresh.append(mirror)
        self.views[name] = View(name, kind.weight, kind.max_in_flight, mirror, self._policy.sidecar)
        self.desk.sync(list(self.views.values()))

    def misses(self, name: str) -> None:
        """An engine is gone."""
        del self.views[name]
        self.desk.removed(name)

    def teaches(self) -> None:
        """Somebody learned something: those without enough lessons of their own go by all of them."""
        if self._fresh:
            self._fresh = [mirror for mirror in self._fresh if mirror.take_pace()]
