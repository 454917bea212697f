"""A regression that learns from one answer after the other: dense inputs by recursive least squares, words beside it. Pure.

Recursive least squares with forgetting: the state is what a ridge regression over all answers, older ones fading, would
have. What it leaves is learnt by the words, one weight for each bucket, with steps that shrink as a bucket is seen more
often (AdaGrad). Residuals are clipped, so that one odd answer moves little. Learning costs about 0.3 ms for 50 inputs,
predicting 0.02; it needs no library.
"""

import math
from array import array
from collections.abc import Sequence
from operator import mul

from predictor.kept import Kept, State

RIDGE = 3.0
KEEP = 0.9995  # of an older answer's weight with each new one
CLIP = 1.5  # of a residual, in log tokens
WORD_RATE = 0.15
SPREAD_MAX = 8.0 / RIDGE  # of one input's uncertainty: beyond it nothing more is forgotten


class Regression:
    """Residuals of a baseline, as a linear function of `size` inputs and of words in `buckets` buckets."""

    __slots__ = ("_cover", "_seen", "_weights", "_words")

    def __init__(self, size: int, buckets: int) -> None:
        self._weights = [0.0] * size
        self._cover = _identity(size)
        self._words = array("f", bytes(4 * buckets))
        self._seen = array("f", bytes(4 * buckets))

    def predict(self, inputs: Sequence[float], words: Sequence[int]) -> tuple[float, float]:
        """By the inputs alone, and what the words add to it."""
        dense = sum(map(mul, self._weights, inputs))
        if not words:
            return dense, 0.0
        weights = self._words
        return dense, sum([weights[word] for word in words]) / math.sqrt(len(words))

    def weight(self, place: int) -> float:
        """Of one input."""
        return self._weights[place]

    def learn(self, inputs: Sequence[float], words: Sequence[int], dense_left: float, words_left: float) -> None:
        """What the prediction by the inputs left, and what the one with words left: truth minus prediction."""
        self._learn_inputs(inputs, min(max(dense_left, -CLIP), CLIP))
        if words:
            self._learn_words(words, min(max(words_left, -CLIP), CLIP))

    def state(self) -> State:
        """For `restored`: without the words, whose buckets would tell something of prompts (docs/tagger.md)."""
        upper = [one for row, ones in enumerate(self._cover) for one in ones[row:]]
        return {"weights": self._weights, "cover": upper}

    def restored(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError."""
        size = len(self._weights)
        weights = kept.numbers("weights", size, size, -1e3, 1e3)
        upper = iter(kept.numbers("cover", size * (size + 1) // 2, size * (size + 1) // 2, -1e6, 1e6))
        cover = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for column in range(row, size):
                cover[row][column] = cover[column][row] = next(upper)
        self._weights, self._cover = weights, cover

    def _learn_inputs(self, inputs: Sequence[float], left: float) -> None:
        reach = [sum(map(mul, row, inputs)) for row in self._cover]
        spread = sum(map(mul, reach, inputs))
        if not 0.0 <= spread < 1e6:  # rounding has eaten it up: what is believed stays, how firmly is begun anew
            self._cover = _identity(len(self._weights))
            return
        keep = KEEP if max(map(max, self._cover)) < SPREAD_MAX else 1.0
        gain = [one / (keep + spread) for one in reach]
        self._weights = [weight + left * one for weight, one in zip(self._weights, gain, strict=True)]
        grow = 1.0 / keep
        self._cover = [
            [(one - step * other) * grow for one, other in zip(row, reach, strict=True)]
            for row, step in zip(self._cover, gain, strict=True)
        ]

    def _learn_words(self, words: Sequence[int], left: float) -> None:
        step = left / math.sqrt(len(words))
        seen, weights, squared = self._seen, self._words, step * step
        for word in words:
            seen[word] += squared
            weights[word] += WORD_RATE * step / math.sqrt(1.0 + seen[word])


def _identity(size: int) -> list[list[float]]:
    return [[1.0 / RIDGE if row == column else 0.0 for column in range(size)] for row in range(size)]
