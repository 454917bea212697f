"""What the KV of one engine will have to hold: the peak with one more request, and when there will be room for it. Pure.

Kept by a mirror, from its seats. A block that several prompts share counts once, and to the end. The curve of the
peak is exact where a request is sent; for the wait of those that are not, one of a moment ago will do: it is asked for
every replica and each of the first who wait.
"""

from collections.abc import Mapping

from predictor.peak import PeakCurve
from predictor.request import LengthEstimate
from predictor.rest import Rest
from predictor.seats import Demand, Seat

CURVE_S = 0.5  # how old the peak may be, which moves by surprises only
WAIT_S = 0.4  # ... and the one by which waits are told


class Memory:
    """`final_tokens` is the context of all requests at their ends: an upper bound of the peak."""

    __slots__ = ("_curve", "_curve_s", "_pins", "_seats", "_wait_curve", "_wait_s", "block_tokens", "final_tokens")

    def __init__(self, seats: Mapping[str, Seat]) -> None:
        """`seats` are the requests there, kept by the caller."""
        self._seats = seats
        self.block_tokens = 0
        self.final_tokens = 0
        self._pins: dict[int, int] = {}
        self._curve: PeakCurve | None = None
        self._curve_s = 0.0
        self._wait_curve: PeakCurve | None = None
        self._wait_s = 0.0

    @property
    def pinned_tokens(self) -> int:
        """In blocks that prompts can share."""
        return len(self._pins) * self.block_tokens

    def joined(self, seat: Seat) -> None:
        """A request came."""
        self._curve = None
        self.final_tokens += seat.prompt_tokens + seat.rest.median
        for block in seat.prefix:
            self._pins[block] = self._pins.get(block, 0) + 1

    def revised(self, seat: Seat, lengths: LengthEstimate) -> None:
        """Its answer is expected to be so long now."""
        before = seat.left()
        seat.rest, self._curve = Rest(lengths), None
        self.final_tokens += seat.left() - before

    def left(self, seat: Seat) -> None:
        """It is gone."""
        self._curve = None
        for block in seat.prefix:
            count = self._pins[block] - 1
            if count:
                self._pins[block] = count
            else:
                del self._pins[block]

    def refreshed(self, final_tokens: int, now_s: float) -> None:
        """The sum is known anew; a curve that is too old is forgotten."""
        self.final_tokens = final_tokens
        if now_s - self._curve_s >= CURVE_S:
            self._curve, self._curve_s = None, now_s

    def fits(self, demand: Demand, limit: float) -> bool:
        """Whether the predicted peak, with this request, stays within so many tokens."""
        if self.final_tokens + demand.prompt_tokens + demand.lengths.q50 <= limit:
            return True
        return self._now().with_one(demand.lengths.q50, self._own_tokens(demand)) <= limit

    def crowd(self, now_s: float) -> PeakCurve:
        """The curve by which waits are told: the same object as long as it will do."""
        curve = self._wait_curve
        if curve is None or now_s - self._wait_s > WAIT_S:
            curve, self._wait_s = self._now(), now_s
            self._wait_curve = curve
        return curve

    def frees_steps(self, demand: Demand, limit: float, curve: PeakCurve) -> int:
        """Steps until it fits, by that curve; 0 when it does now."""
        own = self._own_tokens(demand)
        if curve.with_one(demand.lengths.q50, own) <= limit:
            return 0
        return curve.steps_until(limit - own - demand.lengths.q50)

    def _now(self) -> PeakCurve:
        curve = self._curve
        if curve is None:
            parts = [(seat.left(), seat.private_tokens + seat.generated()) for seat in self._seats.values()]
            curve = self._curve = PeakCurve(parts, self.pinned_tokens)
        return curve

    def _own_tokens(self, demand: Demand) -> int:
        if not demand.prefix:
            return demand.prompt_tokens
        shared = sum([block not in self._pins for block in demand.prefix]) * demand.block_tokens
        return shared + max(0, demand.prompt_tokens - len(demand.prefix) * demand.block_tokens)
