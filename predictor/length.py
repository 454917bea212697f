"""The length tagger: how long each answer may be, learnt from the answers that ended. Pure.

`tag` says it before dispatch, `observe` learns from the end. Layers are added to running quantiles where they prove
themselves on a model's own answers; one that does not is off and `report` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.features import Cues
from predictor.lengths import RunningQuantiles, capped
from predictor.request import LengthEstimate


@dataclass(frozen=True, slots=True)
class Guess:
    """What a trained model says of one request: natural logs of the answer's tokens at three quantiles, and who says it."""

    q10: float
    q50: float
    q90: float
    source: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A prediction, by which layer, and what `observe` needs to learn from the answer."""

    estimate: LengthEstimate
    layer: str
    model: str
    route: str
    cues: Cues | None
    max_tokens: int


class LengthTagger:
    """Learns per model and route; holds at most `capacity` of them, the one unused longest is forgotten first."""

    def __init__(self, capacity: int = 2048) -> None:
        self._running = RunningQuantiles(capacity)

    def tag(self, model: str, route: str, cues: Cues | None, guesses: Mapping[str, Guess], max_tokens: int) -> Tag:
        """The length of one answer. `cues` None: nothing is known of the prompt; `max_tokens` below 1: no limit."""
        estimate = capped(self._running.estimate(model, route), max_tokens)
        return Tag(estimate, "running", model, route, cues, max_tokens)

    def observe(self, tag: Tag, output_tokens: int, truncated: bool) -> None:
        """The answer ended after so many tokens, or was cut off there. One without tokens says nothing."""
        self._running.saw(tag.model, tag.route, output_tokens, truncated=truncated)
