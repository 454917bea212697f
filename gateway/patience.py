"""How long a request at a backend is waited for, and whose slowness that is: the backend's, the client's, nobody's. Pure.

A backend's silence is its own only while it may speak: not while its engine is paused for another model, and not while
the client reads too slowly to be written to. The request as a whole has one end, whoever is slow.
"""

from typing import Literal

from gateway.config import Timeouts

NEVER = float("inf")
PAUSED_LOOK_S = 1.0

Limit = Literal["first byte", "silent", "stalled", "total", ""]
AGAINST_BACKEND = {"first byte": "no first byte in time", "silent": "stream went silent"}


def silent_s(timeouts: Timeouts, stream: bool) -> float:
    """How long an engine may give nothing at all."""
    return timeouts.first_byte_s if stream else timeouts.unary_s


class Patience:
    """With one request; all instants are of the loop's clock. `heard_s`: when its backend last gave a sign, or was last excused
    for giving none; `stalled_s`: since when its client does not read (infinity: it reads)."""

    heard_s: float = 0.0
    stalled_s: float = NEVER

    def first_byte(
        self, timeouts: Timeouts, now_s: float, sent_s: float, end_s: float, *, stream: bool, paused: bool
    ) -> tuple[Limit, float]:
        """Of a request that was sent and is over at `end_s` at the latest: the limit that it has passed ("": none), and when to
        look again. `paused`: its engine is."""
        due_s = self._excused(now_s, end_s) if paused else max(self.heard_s, sent_s) + silent_s(timeouts, stream)
        return ("first byte" if now_s >= due_s else ""), due_s

    def answer(self, timeouts: Timeouts, now_s: float, end_s: float, *, paused: bool) -> tuple[Limit, float]:
        """The same of one whose answer is under way."""
        if now_s >= end_s:
            return "total", end_s
        if paused:
            return "", self._excused(now_s, end_s)
        stalled = self.stalled_s < NEVER
        due_s = self.stalled_s + timeouts.write_stall_s if stalled else self.heard_s + timeouts.idle_s
        if now_s >= due_s:
            return ("stalled" if stalled else "silent"), due_s
        return "", min(due_s, end_s)

    def _excused(self, now_s: float, end_s: float) -> float:
        self.heard_s = now_s
        return min(now_s + PAUSED_LOOK_S, end_s)
