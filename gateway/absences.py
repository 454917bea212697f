"""When a model lay on no device, so that the time that a request waited for it is told from other waiting. Pure."""

from collections import deque
from dataclasses import dataclass, field

from gateway.residency import NEVER

ABSENCES = 16


@dataclass(slots=True)
class Absences:
    """When a model lay on no device: closed stretches, and since when if it does now (infinite: it does not)."""

    closed: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ABSENCES))
    since_s: float = NEVER

    def within_s(self, from_s: float, until_s: float) -> float:
        """Seconds of that stretch in which it lay on none."""
        parts = [max(0.0, min(end, until_s) - max(begin, from_s)) for begin, end in self.closed]
        return sum(parts) + max(0.0, until_s - max(self.since_s, from_s))
