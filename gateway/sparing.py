"""For which models the encoder is spared: where its word is off, or was seen to change nothing. Pure; counts only.

A request that waits in a line may get another place by its length; one that is held where KV is short may fit somewhere
or not. Each is watched by itself: the line by `Hindsight.moving`, fitting here, by what the same length would have been
without the encoder. Until hundreds were watched nothing is spared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.jobs import Job
from gateway.views import View
from predictor.layers import LayerReport
from predictor.request import LengthEstimate

JUDGED_FROM = 200  # answers until the encoder's layer may be found to be off
CHANGING_MIN = 0.05  # the encoder is spared where fewer than that are placed or fit otherwise
ANYWAY = 10  # of those for whom it is spared, it is asked about one in so many all the same
MEMORY = 200  # held requests by which `fitting` forgets


class Sparing:
    """`fitting`: by model, the share of the requests held lately that fit elsewhere, or no more, by what the encoder said."""

    __slots__ = ("_asked", "_helpless", "_settled", "fitting")

    def __init__(self) -> None:
        self.fitting: dict[str, float] = {}
        self._asked = 0
        self._helpless: set[str] = set()  # models whose lengths the encoder does not help to foretell
        self._settled: set[str] = set()  # models in whose lines lengths move hardly anybody

    def judge(self, model: str, layers: Iterable[LayerReport], moving: float) -> None:
        """How the model's layers stand, and the share of those who were moved in its line."""
        for layer in layers:
            if layer.name == "encoder":
                (self._helpless.discard if layer.on or layer.answers < JUDGED_FROM else self._helpless.add)(model)
        (self._settled.discard if moving >= CHANGING_MIN else self._settled.add)(model)

    def clear(self) -> None:
        """Forget all models."""
        self._helpless.clear()
        self._settled.clear()
        self.fitting.clear()

    def helpless(self, model: str) -> bool:
        """The encoder says nothing that helps."""
        return model in self._helpless

    def in_line(self, model: str) -> bool:
        """Spared for those who wait in the model's line."""
        return model in self._helpless or model in self._settled

    def held(self, model: str, *, by_length: bool) -> bool:
        """Spared for those who are held since KV is short. Who fits nowhere joins the line, which is in order `by_length` or
        not: where it is, lengths must move nobody there, either."""
        if by_length and model not in self._settled:
            return model in self._helpless
        return model in self._helpless or self.fitting.get(model, 1.0) < CHANGING_MIN

    def asks(self, spared: bool) -> bool:
        """Whether the encoder is to be asked now: it is not spared, or is looked at again."""
        self._asked += 1
        return not spared or self._asked % ANYWAY == 0

    def saw(self, model: str, *, changed: bool) -> None:
        """The encoder was asked about a held request; whether what it said changed where the request fits."""
        known = self.fitting.get(model, 1.0)
        self.fitting[model] = known + (float(changed) - known) / MEMORY


def fits_alike(job: Job, views: Sequence[View], margin: float, one: LengthEstimate, other: LengthEstimate) -> bool:
    """Whether the job fits in the same engines by either length. `margin` of their KV stays free."""
    first, second = replace(job, lengths=one), replace(job, lengths=other)
    mirrors = [view.mirror for view in views if view.mirror is not None]
    return all(mirror.fits(first, margin) == mirror.fits(second, margin) for mirror in mirrors)
