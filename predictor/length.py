"""The length tagger: how long each answer may be, learnt from the answers that ended. Pure.

`tag` says it before dispatch, `observe` learns from the end, `remaining` what is left of one under way. Layers: running
quantiles (by route, shrunk to the model and to all); trained guesses (trees, encoder), each with a running offset for the
model and route; a regression over the features that learns online, with and without the words. They are weighted per model
by their discounted errors, running quantiles being the measure of all; one that does not help is off, goes on being watched,
and `report` says so. Spreads are corrected until they cover what they promise (predictor.coverage).
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from predictor.features import Cues
from predictor.kept import Kept, KeptError, State
from predictor.layers import LAYERS, Guess, LayerReport, Learner, Mixed, Offsets, Triple, usable
from predictor.lengths import RunningQuantiles, capped, remaining
from predictor.request import LengthEstimate

__all__ = ["Guess", "LayerReport", "LengthTagger", "Report", "Tag", "remaining"]

LEARNERS_MAX = 48  # models that have one, 0.3 MB each
TOKENS_MAX = 1_000_000
KEPT_FROM = 20  # answers of a model: the sums of fewer would tell what single prompts were like
OFFSETS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Tag:
    """A prediction, by which layer (the one that weighs most), and what `observe` needs to learn from the answer."""

    estimate: LengthEstimate
    layer: str
    model: str
    route: str
    cues: Cues | None
    max_tokens: int
    mixed: Mixed | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """How the prediction for a model stands. Errors and losses are in log tokens, older answers fading."""

    model: str
    answers: int
    layers: tuple[LayerReport, ...]
    coverage_q90: float  # share of the answers within q90; NaN before any
    pinball: float  # mean over q10, q50 and q90, of what was told
    pinball_running: float  # ... of running quantiles
    rejected: dict[str, int]  # guesses that were none, by source, of all models


class LengthTagger:
    """Learns per model and route; holds at most `capacity` of them, the one unused longest is forgotten first."""

    def __init__(self, capacity: int = 2048) -> None:
        self.rejected: Counter[str] = Counter()
        self._capacity = capacity
        self._running = RunningQuantiles(capacity)
        self._learners: OrderedDict[str, Learner] = OrderedDict()
        self._offsets: OrderedDict[tuple[str, str], Offsets] = OrderedDict()

    def tag(self, model: str, route: str, cues: Cues | None, guesses: Mapping[str, Guess], max_tokens: int) -> Tag:
        """The length of one answer. `cues` None: nothing is known of the prompt; `max_tokens` below 1: no limit."""
        *logs, known = self._running.shrunk(model, route)
        running: Triple = (logs[0], logs[1], logs[2])
        sound = {source: guess for source, guess in guesses.items() if self._sound(source, guess)}
        if cues is None:
            return Tag(capped(_estimate(running, "running"), max_tokens), "running", model, route, None, max_tokens)
        mixed = self._learner(model).mix(running, known, cues, sound, self._offsets_of(model, route))
        return Tag(capped(_estimate(mixed.told, mixed.layer), max_tokens), mixed.layer, model, route, cues, max_tokens, mixed)

    def observe(self, tag: Tag, output_tokens: int, truncated: bool) -> None:
        """The answer ended after so many tokens, or was cut off there. One without tokens says nothing."""
        if output_tokens < 1:
            return
        tokens = min(output_tokens, TOKENS_MAX)
        self._running.saw(tag.model, tag.route, tokens, truncated=truncated)
        if tag.mixed is not None:
            ended = self._learner(tag.model).learn(tag.mixed, math.log(tokens), truncated)
            self._offsets_of(tag.model, tag.route).saw(tag.mixed, ended)

    def report(self, model: str) -> Report:
        """Which layers are on for a model, and why."""
        learner = self._learners.get(model)
        known = self._running.shrunk(model, "")[3]
        if learner is None:
            off = tuple([LayerReport(name, name == "running", float(name == "running"), math.nan, 0) for name in LAYERS])
            return Report(model, known, off, math.nan, math.nan, math.nan, dict(self.rejected))
        rows, told, plain = learner.report()
        return Report(model, known, rows, learner.covered, told, plain, dict(self.rejected))

    def states(self) -> Iterator[State]:
        """What is learnt, in pieces (predictor.kept). Nothing of a prompt is in it: no words, not even as numbers, and of the
        features only sums over many answers."""
        yield from self._running.states()
        for model in list(self._learners):
            learner = self._learners.get(model)
            if learner is not None and learner.answers >= KEPT_FROM:
                yield {"kind": "learner", "model": model, **learner.state()}
        names = list(self._offsets)
        for first in range(0, len(names), OFFSETS_AT_ONCE):
            found = [(name, self._offsets.get(name)) for name in names[first : first + OFFSETS_AT_ONCE]]
            offsets = [{"model": name[0], "route": name[1], **one.state()} for name, one in found if one is not None]
            yield {"kind": "offsets", "offsets": offsets}

    def restore(self, kept: Kept) -> None:
        """Take one piece over. Raises KeptError."""
        kind = kept.text("kind")
        if kind == "curves":
            self._running.restore(kept)
        elif kind == "learner":
            learner = Learner()
            learner.restored(kept)
            self._learners[kept.text("model")] = learner
            if len(self._learners) > min(LEARNERS_MAX, self._capacity):
                self._learners.popitem(last=False)
        elif kind == "offsets":
            found = {}
            for one in kept.items("offsets", OFFSETS_AT_ONCE):
                offsets = found[one.text("model"), one.text("route")] = Offsets()
                offsets.restored(one)
            self._offsets.update(found)
            while len(self._offsets) > self._capacity:
                self._offsets.popitem(last=False)
        else:
            raise KeptError("kind is unknown")

    def _sound(self, source: str, guess: Guess) -> bool:
        sound = usable(source, guess)
        if not sound:
            self.rejected[source if source in LAYERS else "unknown"] += 1
        return sound

    def _learner(self, model: str) -> Learner:
        learner = self._learners.get(model)
        if learner is None:
            learner = self._learners[model] = Learner()
            if len(self._learners) > min(LEARNERS_MAX, self._capacity):
                self._learners.popitem(last=False)
        self._learners.move_to_end(model)
        return learner

    def _offsets_of(self, model: str, route: str) -> Offsets:
        offsets = self._offsets.get((model, route))
        if offsets is None:
            offsets = self._offsets[model, route] = Offsets()
            if len(self._offsets) > self._capacity:
                self._offsets.popitem(last=False)
        self._offsets.move_to_end((model, route))
        return offsets


def _estimate(logs: Triple, source: str) -> LengthEstimate:
    q10, q50, q90 = sorted([max(1, min(TOKENS_MAX, round(math.exp(min(log, 20.0))))) for log in logs])
    return LengthEstimate(q10, q50, q90, source)
