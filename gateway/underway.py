"""The requests under way, for GET /v1/requests/ID by the key that sent them: there are as many as connections allow. Shell.

Beginning and ending cost one entry of a table; all else is looked up when somebody asks.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from gateway.spending import SoFar, told_so_far

if TYPE_CHECKING:
    from gateway.placement import Placement
    from gateway.server import DataPlane

STATES = {"tag": "waiting", "queue": "waiting", "probe": "waiting", "connect": "connecting", "engine": "running"}


class Underway:
    """By id; of two requests with one id the later one is known."""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self._placements: dict[str, Placement] = {}

    def __len__(self) -> int:
        return len(self._placements)

    def begun(self, name: str, placement: "Placement") -> None:
        """A request looks for its place."""
        self._placements[name] = placement

    def over(self, name: str, placement: "Placement") -> None:
        """It has its end."""
        if self._placements.get(name) is placement:
            del self._placements[name]

    def sent_before(self, backends: Collection[str], at_s: float) -> bool:
        """Whether one that is not over was sent to one of these before that instant."""
        for placement in self._placements.values():
            account = placement.account
            if 0 <= account.dispatched_s < at_s and account.backend in backends:
                return True
        return False

    def sent_s(self) -> dict[str, list[float]]:
        """When those that are not over were sent, by backend."""
        found: dict[str, list[float]] = {}
        for placement in self._placements.values():
            account = placement.account
            if account.dispatched_s >= 0:
                found.setdefault(account.backend, []).append(account.dispatched_s)
        return found

    def find(self, name: str, owner: str) -> dict[str, object] | None:
        """What is known of a request that this key sent and that is not over."""
        placement = self._placements.get(name)
        if placement is None or placement.account.owner != owner:
            return None
        plane, account = self._plane, placement.account
        now_s = plane.now()
        stage, (ahead, tier, second_s) = placement.whereabouts(now_s)
        state = "streaming" if account.first_byte_s >= 0 else STATES[stage]
        if account.dispatched_s >= 0 and state != "waiting":
            return told_so_far(account, state, SoFar(now_s), 0.0)
        wait_s = now_s - account.accepted_s
        swap_s = plane.lodging.waited_s(account.model, account.accepted_s, now_s) if plane.lodging.on else 0.0
        so_far = SoFar(now_s, ahead, tier, second_s, wait_s if stage == "tag" else 0.0, swap_s)
        return told_so_far(account, state, so_far, float(plane.drain_wait_s(account.model, ahead)))
