"""How long an answer will be: quantiles learnt from finished answers, and what remains of one under way.

Quantiles are of the survival curve of the answers seen (Kaplan and Meier, on bins of a fixed ratio): one that was cut
off (by `max_tokens`, a client that left) only tells that the whole would have been longer. Old answers fade.
Under way, the length is taken as log-normal through the quantiles, given that it exceeds what has been generated (rest).
The paper's rule of adding ten to an estimate that proved too short is kept as `repaired`.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator

from predictor.kept import Kept, State
from predictor.request import LengthEstimate
from predictor.rest import REPAIR_TOKENS, Rest

RATIO = 2.0**0.25  # from one bin's lower edge to the next: 19 %, finer than lengths can be foretold
BINS = 72  # up to 2^18 tokens
HALF_LIFE = 400.0  # answers after which one counts half
ANSWERS_MIN = 8  # answers seen to the end before a key's own quantiles are used
SHRINKAGE = 4.0  # answers that what is known of a wider circle counts for
EVERYTHING = ("\0", "\0")  # the key of all models together
UNKNOWN = LengthEstimate(20, 250, 1000, "default")  # chat, before anything has been seen
CURVES_AT_ONCE = 16


def capped(estimate: LengthEstimate, max_tokens: int) -> LengthEstimate:
    """The same under a request's limit."""
    if max_tokens >= estimate.q90 or max_tokens < 1:
        return estimate
    q10, q50 = estimate.q10, estimate.q50
    return LengthEstimate(min(q10, max_tokens), min(q50, max_tokens), max_tokens, estimate.source)


def remaining(estimate: LengthEstimate, generated: int) -> LengthEstimate:
    """Quantiles of the tokens still to come, given that the answer is not complete after so many; at least 1 each."""
    if generated < 1:
        return estimate
    rest = Rest(estimate)
    return _estimate([rest.share(generated, p) for p in (0.1, 0.5, 0.9)], estimate.source)


def repaired(estimate: LengthEstimate, generated: int) -> LengthEstimate:
    """The paper's rule: what is left of the estimate, and ten where nothing is left."""
    rest = [q - generated if q > generated else REPAIR_TOKENS for q in (estimate.q10, estimate.q50, estimate.q90)]
    return _estimate(rest, estimate.source)


def _estimate(tokens: list[int], source: str) -> LengthEstimate:
    q10, q50, q90 = sorted(tokens)
    return LengthEstimate(q10, q50, q90, source)


class _Curve:
    """The answers of one key: how many ended, and how many were cut off, in each bin."""

    __slots__ = ("answers", "cut", "ended", "known", "news", "weight")

    def __init__(self) -> None:
        self.ended = [0.0] * BINS
        self.cut = [0.0] * BINS
        self.weight = 1.0  # of the next answer: instead of letting all old ones fade, each new one counts more
        self.known: tuple[int, int, int] | None = None
        self.answers = 0  # seen to their end
        self.news = 0  # seen since the quantiles were reckoned

    def saw(self, tokens: int, truncated: bool) -> None:
        index = min(BINS - 1, int(math.log(max(1, tokens)) / math.log(RATIO)))
        (self.cut if truncated else self.ended)[index] += self.weight
        self.answers += not truncated
        self.news += 1
        self.weight *= 2.0 ** (1.0 / HALF_LIFE)
        if self.weight > 1e12:
            self.ended = [count / self.weight for count in self.ended]
            self.cut = [count / self.weight for count in self.cut]
            self.weight = 1.0

    def quantiles(self) -> tuple[int, int, int]:
        """q10, q50, q90. Where too few ended to tell, the longest seen, which is then a lower bound.

        Reckoned anew once a sixteenth of the answers is news: that costs as much as a request may.
        """
        if self.known is None or self.news * 16 > min(self.answers, HALF_LIFE):
            self.known = self._quantiles()
            self.news = 0
        return self.known

    def _quantiles(self) -> tuple[int, int, int]:
        at_risk = sum(self.ended) + sum(self.cut)
        alive, longest = 1.0, 1
        wanted = [0.1, 0.5, 0.9]
        found: list[int] = []
        for index, (ended, cut) in enumerate(zip(self.ended, self.cut, strict=True)):
            if not ended and not cut:
                continue
            longest = _within(index, 1.0)
            exposed = at_risk - 0.5 * cut  # those cut off in this bin were at risk for half of it
            after = alive * (1.0 - ended / exposed) if exposed > 0 else alive
            while wanted and 1.0 - after >= wanted[0] - 1e-12:
                share = (alive - (1.0 - wanted.pop(0))) / (alive - after)
                found.append(_within(index, share))
            alive = after
            at_risk -= ended + cut
        q10, q50, q90 = found + [longest] * len(wanted)
        return q10, q50, q90

    def state(self) -> State:
        """For `restored`: of the bins, those with something in them."""
        parts: dict[str, object] = {"weight": self.weight, "answers": self.answers, "news": self.news, "known": self.known}
        for name, bins in (("ended", self.ended), ("cut", self.cut)):
            parts[name] = [count for count in bins if count]
            parts[f"{name}_at"] = [index for index, count in enumerate(bins) if count]
        return parts

    def restored(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError."""
        for name, bins in (("ended", self.ended), ("cut", self.cut)):
            places = kept.numbers(f"{name}_at", 0, BINS, 0, BINS - 1)
            for place, count in zip(places, kept.numbers(name, len(places), len(places), 0.0, 1e18), strict=True):
                bins[int(place)] = count
        self.weight, self.answers, self.news = kept.number("weight", 1.0, 1e13), kept.whole("answers"), kept.whole("news")
        if kept.has("known"):
            q10, q50, q90 = [int(tokens) for tokens in kept.numbers("known", 3, 3, 1, 1 << 20)]
            self.known = (q10, q50, q90)


def _within(index: int, share: float) -> int:
    """Tokens at that share of a bin."""
    return max(1, round(math.pow(RATIO, index + min(max(share, 0.0), 1.0))))


class RunningQuantiles:
    """Lengths by (model, key or route), and by model for those of which too few answers are known.

    Holds at most `capacity` of them; the one unused longest is forgotten first.
    """

    def __init__(self, capacity: int = 2048) -> None:
        self._capacity = capacity
        self._curves: OrderedDict[tuple[str, str], _Curve] = OrderedDict()

    def __len__(self) -> int:
        return len(self._curves)

    def saw(self, model: str, route: str, output_tokens: int, *, truncated: bool = False) -> None:
        """An answer ended after so many tokens, or was cut off there. One without tokens says nothing."""
        if output_tokens < 1:
            return
        for name in (EVERYTHING, (model, ""), (model, route)) if route else (EVERYTHING, (model, "")):
            curve = self._curves.get(name)
            if curve is None:
                curve = self._curves[name] = _Curve()
                if len(self._curves) > self._capacity:
                    self._curves.popitem(last=False)
            self._curves.move_to_end(name)
            curve.saw(output_tokens, truncated)

    def states(self) -> Iterator[State]:
        """In pieces, those used longest ago first."""
        names = list(self._curves)
        for first in range(0, len(names), CURVES_AT_ONCE):
            found = [(name, self._curves.get(name)) for name in names[first : first + CURVES_AT_ONCE]]
            curves = [{"model": name[0], "route": name[1], **curve.state()} for name, curve in found if curve is not None]
            yield {"kind": "curves", "curves": curves}

    def restore(self, kept: Kept) -> None:
        """Take one piece over. Raises KeptError."""
        curves = {}
        for one in kept.items("curves", CURVES_AT_ONCE):
            curve = curves[one.text("model"), one.text("route")] = _Curve()
            curve.restored(one)
        self._curves.update(curves)
        while len(self._curves) > self._capacity:
            self._curves.popitem(last=False)

    def shrunk(self, model: str, route: str) -> tuple[float, float, float, int]:
        """Natural logs of q10, q50, q90, and of how many answers of the model: the route's own as far as it has answers,
        else its model's, else those of all models, else `UNKNOWN`."""
        logs = [math.log(tokens) for tokens in (UNKNOWN.q10, UNKNOWN.q50, UNKNOWN.q90)]
        known = 0
        for name in (EVERYTHING, (model, ""), (model, route)):
            curve = self._curves.get(name)
            if curve is not None and curve.answers:
                self._curves.move_to_end(name)
                share = curve.answers / (curve.answers + SHRINKAGE)
                own = [math.log(tokens) for tokens in curve.quantiles()]
                logs = [before + share * (after - before) for before, after in zip(logs, own, strict=True)]
                known = curve.answers if name[0] == model else known
        return logs[0], logs[1], logs[2], known

    def estimate(self, model: str, route: str = "") -> LengthEstimate:
        """What is known of answers like that; `UNKNOWN` at first."""
        for name, source in (((model, route), "route"), ((model, ""), "model")):
            curve = self._curves.get(name)
            if curve is not None and curve.answers >= ANSWERS_MIN:
                self._curves.move_to_end(name)
                q10, q50, q90 = curve.quantiles()
                return LengthEstimate(q10, q50, q90, source if route else "model")
        return UNKNOWN
