"""What one model's answers teach: which layers to believe, how far each is off, and how wide the spread must be. Pure.

Weights are exponential in the discounted sum of each layer's absolute errors (Hedge), so a layer that is better by a few
log tokens in sum takes over; with nothing seen, trained guesses count more than a constant that knows nothing.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from zlib import crc32

from predictor.coverage import Coverage
from predictor.features import BUCKETS, FEATURES, Cues
from predictor.kept import Kept, KeptError, State
from predictor.regression import Regression

Triple = tuple[float, float, float]
LAYERS = ("running", "trees", "encoder", "online", "words")
TRAINED = ("trees", "encoder")
HANDICAP = {"running": 0.0, "trees": 0.0, "encoder": 0.0, "online": 2.0, "words": 3.0}  # of layers that know nothing yet
IGNORANT = 1.5  # handicap of running quantiles before the model's first answer
IGNORANT_UNTIL = 30
KEEP = 0.998  # of an older error's weight with each new one
HEAT = 1.5  # how much worse, in summed log tokens, makes a layer count e times less
OFF = 0.02  # a layer of less weight is off
OFFSETS_KEPT = 100
OFFSET_PRIOR = 3.0  # answers without residual that an offset begins with: 0.9 of the median after 30
SPREAD_MIN = 0.08
LOG_MAX = math.log(1_000_000)
DISTRUST = 0.02  # by how much more than running quantiles the whole may lose before these are told instead
SHAPE = crc32(",".join((*FEATURES, *LAYERS)).encode())  # of what a kept learner's numbers stand for
_SHARES = frozenset(("digits", "capitals", "signs", "wide"))
SHARE_MIN = 0.1
_FIRST_TRAINED = 2  # place of the first trained layer among the regression's inputs
_SPECIALS = 4  # inputs of the regression beside the features


@dataclass(frozen=True, slots=True)
class Guess:
    """What a trained model says of one request: natural logs of the answer's tokens at three quantiles, and who says it."""

    q10: float
    q50: float
    q90: float
    source: str


def usable(source: str, guess: Guess) -> bool:
    """Whether it is a guess at all: a known source, finite, in order, and no shorter than nothing or longer than any."""
    return source in TRAINED and -1.0 <= guess.q10 <= guess.q50 <= guess.q90 <= LOG_MAX


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer: whether it counts, its weight, its mean absolute error in log tokens (NaN: none yet), answers it was
    there for, and, of a trained one, its share in what the regression says. It is off where its weight is below OFF (others
    were better, or it has not been there) and the regression makes next to nothing of it either."""

    name: str
    on: bool
    weight: float
    error: float
    answers: int
    share: float = 0.0

    @property
    def why(self) -> str:
        """For people."""
        if not self.answers:
            return "nothing seen yet" if self.on else "has not been there"
        share = f", share in the regression {self.share:.2f}" if self.name in TRAINED else ""
        return (
            f"{'on' if self.on else 'off'}: error {self.error:.3f} over {self.answers} answers, weight {self.weight:.2f}{share}"
        )


@dataclass(frozen=True, slots=True)
class Mixed:
    """A prediction and what it was made of, all in log tokens."""

    told: Triple
    layer: str
    running: Triple
    middles: dict[str, float]  # of each layer that was there
    raw: dict[str, float]  # of each trained one, before its offset
    inputs: tuple[float, ...]
    words: tuple[int, ...]
    middle: float
    below: float  # spreads foretold
    above: float
    blended: Triple  # as told, had running quantiles not been preferred


class Offsets:
    """By how much trained guesses are too short for a model and route: a shrunk median of the last residuals."""

    __slots__ = ("_known", "_left")

    def __init__(self) -> None:
        self._left: dict[str, deque[float]] = {}
        self._known: dict[str, float] = {}

    def of(self, source: str) -> float:
        """To be added."""
        return self._known.get(source, 0.0)

    def saw(self, mixed: Mixed, log: float) -> None:
        """An answer of that log length."""
        for source, raw in mixed.raw.items():
            left = self._left.setdefault(source, deque(maxlen=OFFSETS_KEPT))
            left.append(log - raw)
            if len(left) < OFFSETS_KEPT or not len(left) % 4:
                self._known[source] = _shrunk(left)

    def state(self) -> State:
        """For `restored`."""
        return {source: list(self._left[source]) for source in TRAINED if source in self._left}

    def restored(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError."""
        for source in TRAINED:
            if kept.has(source):
                left = kept.numbers(source, 1, OFFSETS_KEPT, -1e3, 1e3)
                self._left[source] = deque(left, maxlen=OFFSETS_KEPT)
                self._known[source] = _shrunk(left)


def _shrunk(left: Collection[float]) -> float:
    return median(left) * len(left) / (len(left) + OFFSET_PRIOR)


class Learner:
    """All that is learnt of one model beside running quantiles and offsets."""

    __slots__ = ("_coverage", "_losses", "_regression", "_seen", "_told_loss", "_width", "answers")

    def __init__(self) -> None:
        self.answers = 0
        self._regression = Regression(len(FEATURES) + _SPECIALS, BUCKETS)
        self._coverage = Coverage()
        self._losses = dict.fromkeys(LAYERS, 0.0)
        self._seen = dict.fromkeys(LAYERS, 0)
        self._told_loss = [0.0, 0.0, 0.0]  # discounted: of the blend, of running quantiles, and the weight of both
        self._width = 0.0  # mean absolute residual of the blend, discounted

    @property
    def covered(self) -> float:
        """Share of the answers within q90."""
        return self._coverage.hits / self._coverage.total if self._coverage.total else math.nan

    def mix(self, running: Triple, known: int, cues: Cues, guesses: Mapping[str, Guess], offsets: Offsets) -> Mixed:
        """The layers' common prediction. `known`: answers of the model seen."""
        middles = {"running": running[1]}
        raw = {source: guess.q50 for source, guess in guesses.items()}
        middles.update({source: log + offsets.of(source) for source, log in raw.items()})
        base = sum(middles.values()) / len(middles)
        inputs = _inputs(cues, middles)
        dense, words = self._regression.predict(inputs, cues.words)
        middles["online"] = base + min(max(dense, -4.0), 4.0)
        middles["words"] = middles["online"] + min(max(words, -3.0), 3.0)
        weights = self._weights(middles, known)
        middle = sum([weight * middles[name] for name, weight in weights.items()])
        below, above = self._spreads(running, guesses, weights)
        blended = self._quantiles(middle, below, above)
        layer = max(weights, key=weights.__getitem__)
        lost, lost_running, _ = self._told_loss
        if self.answers >= 200 and lost > lost_running * (1.0 + DISTRUST):
            return Mixed(running, "running", running, middles, raw, inputs, cues.words, middle, below, above, blended)
        return Mixed(blended, layer, running, middles, raw, inputs, cues.words, middle, below, above, blended)

    def learn(self, mixed: Mixed, log: float, cut: bool) -> float:
        """An answer that was foretold like that. Returns its log length; of one that was cut off, the one to be expected."""
        blended, middles = mixed.blended, mixed.middles
        self.answers += 1
        ended = _expected(log, mixed.middle, 1.25 * self._width if self.answers > 20 else 1.0) if cut else log
        score = (log - mixed.middle) / (mixed.above if log > mixed.middle else mixed.below)
        covered = {quantile: log <= told + 1e-9 for quantile, told in zip((0.1, 0.5, 0.9), blended, strict=True)}
        self._coverage.saw(score, covered, cut)
        lost = abs(ended - mixed.middle)
        for name in LAYERS:
            there = name in middles
            self._losses[name] = KEEP * self._losses[name] + (abs(ended - middles[name]) if there else lost)
            self._seen[name] += there
        losses = self._told_loss
        for place, quantiles in enumerate((blended, mixed.running)):
            losses[place] = KEEP * losses[place] + pinball(ended, quantiles)
        losses[2] = KEEP * losses[2] + 1.0
        self._width += (lost - self._width) / min(self.answers, 200)
        self._regression.learn(mixed.inputs, mixed.words, ended - middles["online"], ended - middles["words"])
        return ended

    def report(self) -> tuple[tuple[LayerReport, ...], float, float]:
        """The layers, and the pinball losses of what was told and of running quantiles."""
        told, running, weight = self._told_loss
        weights = self._weights(dict.fromkeys([name for name in LAYERS if self._seen[name]], 0.0), self.answers)
        rows = []
        for name in LAYERS:
            share = weights.get(name, 0.0)
            error = self._losses[name] / weight if weight and self._seen[name] else math.nan
            within = self._share(name) if weights.keys() & {"online", "words"} else 0.0
            rows.append(LayerReport(name, share > 0.0 or abs(within) >= SHARE_MIN, share, error, self._seen[name], within))
        return tuple(rows), told / weight if weight else math.nan, running / weight if weight else math.nan

    def state(self) -> State:
        """For `restored`: all but the words of the regression."""
        losses, seen = list(self._losses.values()), list(self._seen.values())
        own = {"shape": SHAPE, "answers": self.answers, "losses": losses, "seen": seen, "told": list(self._told_loss)}
        return {**own, "width": self._width, **self._regression.state(), **self._coverage.state()}

    def restored(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError; then this one is good for nothing."""
        if kept.whole("shape") != SHAPE:
            raise KeptError("learnt with other features")
        self.answers = kept.whole("answers")
        self._losses = dict(zip(LAYERS, kept.numbers("losses", len(LAYERS), len(LAYERS), 0.0, 1e6), strict=True))
        seen = kept.numbers("seen", len(LAYERS), len(LAYERS), 0, self.answers)
        self._seen = {name: int(count) for name, count in zip(LAYERS, seen, strict=True)}
        self._told_loss = kept.numbers("told", 3, 3, 0.0, 1e6)
        self._width = kept.number("width", 0.0, 100.0)
        self._regression.restored(kept)
        self._coverage.restored(kept)

    def _share(self, name: str) -> float:
        """What the regression makes of one more log token told by a trained layer."""
        there = [source for source in TRAINED if self._seen[source]]
        if name not in there:
            return 0.0
        return 1.0 / (1 + len(there)) + self._regression.weight(_FIRST_TRAINED + TRAINED.index(name))

    def _weights(self, there: Mapping[str, float], known: int) -> dict[str, float]:
        """Of the layers that are there and on; they sum up to 1."""
        if not there:
            return {"running": 1.0}
        late = {name: self._losses[name] + HANDICAP[name] for name in there}
        if "running" in late:
            late["running"] += IGNORANT * max(0.0, 1.0 - known / IGNORANT_UNTIL)
        least = min(late.values())
        shares = {name: math.exp((least - lost) / HEAT) for name, lost in late.items()}
        total = sum(shares.values())
        kept = {name: share for name, share in shares.items() if share >= OFF * total}
        total = sum(kept.values())
        return {name: share / total for name, share in kept.items()}

    def _spreads(self, running: Triple, guesses: Mapping[str, Guess], weights: Mapping[str, float]) -> tuple[float, float]:
        """Down to q10 and up to q90, as far as the layers foretell them; the regression's is as wide as its errors were."""
        width = 1.9 * self._width if self.answers > 20 else 1.0
        below = above = 0.0
        for name, weight in weights.items():
            if name == "running":
                low, high = running[1] - running[0], running[2] - running[1]
            elif name in guesses:
                low, high = guesses[name].q50 - guesses[name].q10, guesses[name].q90 - guesses[name].q50
            else:
                tree = guesses.get("trees")
                low, high = (width, width) if tree is None else (tree.q50 - tree.q10, tree.q90 - tree.q50)
                low, high = 0.5 * (low + width), 0.5 * (high + width)
            below += weight * low
            above += weight * high
        return max(below, SPREAD_MIN), max(above, SPREAD_MIN)

    def _quantiles(self, middle: float, below: float, above: float) -> Triple:
        factors = [self._coverage.factor(quantile) for quantile in (0.1, 0.5, 0.9)]
        q10, q50, q90 = sorted([middle + factor * (above if factor > 0.0 else below) for factor in factors])
        return q10, q50, q90


def _expected(log: float, middle: float, sigma: float) -> float:
    """The mean of what is normal around `middle`, given that it is more than `log` (Buckley and James's way with answers cut
    off): so they pull up as much as the shorter ones that were not cut off pull down."""
    sigma = max(sigma, SPREAD_MIN)
    reached = (log - middle) / sigma
    if reached > 5.0:
        return log + 0.2 * sigma
    alive = 0.5 * math.erfc(reached / math.sqrt(2.0))
    return middle + sigma * math.exp(-0.5 * reached * reached) / math.sqrt(2.0 * math.pi) / alive


def pinball(log: float, quantiles: Triple) -> float:
    """Mean over q10, q50, q90 of the loss whose least value they are."""
    lost = 0.0
    for level, told in zip((0.1, 0.5, 0.9), quantiles, strict=True):
        lost += (log - told) * (level - (log < told))
    return lost / 3.0


def _inputs(cues: Cues, middles: Mapping[str, float]) -> tuple[float, ...]:
    """Those of the regression: features on a like scale, and what the other layers say."""
    running = middles["running"]
    said = [1.0, running - 5.0, *[middles.get(source, running) - running for source in TRAINED]]
    return (*said, *[_scaled(kind, number) for kind, number in zip(_KINDS, cues.numbers, strict=True)])


def _scaled(kind: int, number: float) -> float:
    if kind == 0:  # a log already
        scaled = number / 3.0
    elif kind == 1:  # a share
        scaled = 5.0 * min(number, 0.4)
    else:  # a count
        scaled = math.log1p(number) if number > 0.0 else 0.0
    return min(max(scaled, -4.0), 4.0)


def _kind(name: str) -> int:
    if name in _SHARES:
        return 1
    return 0 if name.startswith(("log_", "reply_")) else 2


_KINDS = tuple([_kind(name) for name in FEATURES])
