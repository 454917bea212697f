"""Boosted trees over a prompt's features: three quantiles of the log of its answer's tokens. Pure, and no runtime needed.

A prompt costs 0.1 ms in plain Python, less than handing it to a runtime would. What is made by `gateway tagger
train-trees` says which features it was trained on; a file for other ones is refused. Trees may look at one more number
for the prompt's words, or at one for each part of its grams (`predictor.grams`): sums of weights learnt before the trees.
Where the trees were grown on ranks of the lengths, their sums are turned into logs of tokens by a line of straight pieces.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from predictor.features import BUCKETS, FEATURES, Cues
from predictor.grams import GRAM_BUCKETS, Grams
from predictor.treefile import BRANCH, FEATURES_KEY, LEAF, TreeFile, TreeFileError, read
from predictor.walk import Table, Walk

TARGETS = 3
NODES_MAX = 200_000
WORD_WEIGHTS = "word_weights"
GRAM_WEIGHTS = "gram_weights"
GRAM_SCALES = "gram_scales"
NO_GRAMS = Grams()
GRAM_SCALE_MIN = 1e-9  # of a prompt without any gram that was seen in training
LINEAR = "linear"
SHIFT = "shift"
STRETCH_AT = "stretch_at"
STRETCH_TO = "stretch_to"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rising line of straight pieces through (at, to), gone on beyond both ends. Raises ValueError for one that is none."""

    at: tuple[float, ...]
    to: tuple[float, ...]

    def __post_init__(self) -> None:
        rises = all(a < b for a, b in pairwise(self.at)) and all(a <= b for a, b in pairwise(self.to))
        if len(self.at) < 2 or len(self.at) != len(self.to) or not rises or not all(map(math.isfinite, (*self.at, *self.to))):
            raise ValueError("the line that turns ranks into lengths does not rise")

    def __call__(self, score: float) -> float:
        """Log tokens."""
        piece = min(max(bisect_right(self.at, score), 1), len(self.at) - 1)
        left, right, low, high = self.at[piece - 1], self.at[piece], self.to[piece - 1], self.to[piece]
        return low + (high - low) * (score - left) / (right - left)


@dataclass(frozen=True, slots=True)
class Trees:
    """What a file holds, ready to be asked. Not for several threads at once."""

    walk: Walk
    base: tuple[float, float, float]
    linear: tuple[tuple[int, float], ...]  # features that count as they are, and by how much
    words: "array[float]"  # weight of each bucket; empty: words are not looked at
    grams: Table | None  # weights and scales of the grams' buckets
    stretch: Stretch | None  # None: the trees' sums are logs of tokens

    @classmethod
    def from_onnx(cls, data: bytes) -> "Trees":
        """Raises TreeFileError."""
        file = read(data)
        if file.metadata.get(FEATURES_KEY) != " ".join(FEATURES):
            raise TreeFileError("these trees were trained on other features; train them anew")
        try:
            return _built(file)
        except (KeyError, IndexError, ValueError) as error:
            raise TreeFileError(f"the trees in the file do not fit together: {error!r}") from error

    @property
    def reads_grams(self) -> bool:
        """Whether `quantiles` wants the prompt's grams."""
        return self.grams is not None

    def looked_at(self, cues: Cues, grams: Grams = NO_GRAMS) -> tuple[float, ...]:
        """All that the trees go by: the features, and what words or grams add up to."""
        numbers: tuple[float, ...] = cues.numbers
        if self.words:
            numbers = (*numbers, self._spoken(cues.words))
        table = self.grams
        if table is not None:
            numbers = (*numbers, *[table.weighed(part, GRAM_SCALE_MIN) for part in grams])
        return numbers

    def quantiles(self, cues: Cues, grams: Grams = NO_GRAMS) -> tuple[float, float, float]:
        """Natural logs of tokens at 0.1, 0.5 and 0.9, in rising order."""
        numbers = self.looked_at(cues, grams)
        straight = sum([numbers[looked] * weight for looked, weight in self.linear])
        sums: Iterable[float] = self.walk.sums(numbers)
        if self.stretch is not None:
            sums = map(self.stretch, sums)
        q10, q50, q90 = sorted([total + base + straight for total, base in zip(sums, self.base, strict=True)])
        return q10, q50, q90

    def _spoken(self, words: tuple[int, ...]) -> float:
        weights = self.words
        return sum([weights[word] for word in words]) / math.sqrt(len(words) or 1)


def _built(file: TreeFile) -> Trees:
    ints, floats, modes = file.trees.ints, file.trees.floats, file.trees.strings["nodes_modes"]
    trees, nodes = ints["nodes_treeids"], ints["nodes_nodeids"]
    if not 0 < len(nodes) <= NODES_MAX or not set(modes) <= {LEAF, BRANCH}:
        raise ValueError(f"{len(nodes)} nodes of the kinds {sorted(set(modes))[:4]}")
    place = {key: number for number, key in enumerate(zip(trees, nodes, strict=True))}
    feature, limit = list(ints["nodes_featureids"]), list(floats["nodes_values"])
    low, high = [0] * len(nodes), [0] * len(nodes)
    words = _table(file, WORD_WEIGHTS, BUCKETS)
    grams, scales = _table(file, GRAM_WEIGHTS, GRAM_BUCKETS), _table(file, GRAM_SCALES, GRAM_BUCKETS)
    if len(grams) != len(scales) or any(scale < 0.0 for scale in scales):
        raise ValueError("weights of grams without their scales")
    width = len(FEATURES) + bool(words) + (len(NO_GRAMS) if grams else 0)
    find = partial(_below, place)
    for number, mode in enumerate(modes):
        if mode == BRANCH:
            if not 0 <= feature[number] < width:
                raise ValueError(f"feature {feature[number]} of {width}")
            low[number] = find(number, trees[number], ints["nodes_truenodeids"][number])
            high[number] = find(number, trees[number], ints["nodes_falsenodeids"][number])
        else:
            feature[number], limit[number] = -1, 0.0
    leaves = zip(ints["target_treeids"], ints["target_nodeids"], ints["target_ids"], floats["target_weights"], strict=True)
    for tree, node, target, value in leaves:
        number = place[tree, node]
        if modes[number] != LEAF or not 0 <= target < TARGETS or not math.isfinite(value):
            raise ValueError(f"leaf {tree}:{node}")
        feature[number], limit[number] = -1 - target, value
    q10, q50, q90 = file.tensors[SHIFT]
    linear = tuple([(number, weight) for number, weight in enumerate(file.tensors.get(LINEAR, ())) if weight])
    roots = tuple([place[tree, 0] for tree in sorted(set(trees))])
    walk = Walk(roots, feature, limit, low, high, width)
    at, to = file.tensors.get(STRETCH_AT, ()), file.tensors.get(STRETCH_TO, ())
    stretch = Stretch(tuple(at), tuple(to)) if at or to else None
    return Trees(walk, (q10, q50, q90), linear, words, Table(grams, scales) if grams else None, stretch)


def _table(file: TreeFile, name: str, size: int) -> "array[float]":
    """A finite number for each bucket, or none at all."""
    found = array("f", file.tensors.get(name, ()))
    if found and (len(found) != size or not all(map(math.isfinite, found))):
        raise ValueError(f"{name}: {len(found)} numbers for {size} buckets")
    return found


def _below(place: dict[tuple[int, int], int], number: int, tree: int, node: int) -> int:
    """A child's place, which is behind its parent's: so no walk goes in circles."""
    found = place[tree, node]
    if found <= number:
        raise ValueError(f"node {tree}:{node} stands before its parent")
    return found
