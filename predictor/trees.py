"""Boosted trees over a prompt's features: three quantiles of the log of its answer's tokens. Pure, and no runtime needed.

A prompt costs 0.1 ms in plain Python, less than handing it to a runtime would. What is made by `gateway tagger
train-trees` says which features it was trained on; a file for other ones is refused. Trees may look at one more number
for the prompt's words, or at one for each part of its grams (`predictor.grams`): sums of weights learnt before the trees.
"""

import math
from array import array
from dataclasses import dataclass
from functools import partial

from predictor.features import BUCKETS, FEATURES, Cues
from predictor.grams import GRAM_BUCKETS, Grams
from predictor.treefile import BRANCH, FEATURES_KEY, LEAF, TreeFile, TreeFileError, read

TARGETS = 3
NODES_MAX = 200_000
WORD_WEIGHTS = "word_weights"
GRAM_WEIGHTS = "gram_weights"
GRAM_SCALES = "gram_scales"
NO_GRAMS = Grams()
GRAM_SCALE_MIN = 1e-9  # of a prompt without any gram that was seen in training
LINEAR = "linear"
SHIFT = "shift"


@dataclass(frozen=True, slots=True)
class Trees:
    """Nodes of all trees: of a branch the feature that is looked at, of a leaf minus one less than its target."""

    roots: tuple[int, ...]
    feature: tuple[int, ...]
    limit: tuple[float, ...]  # of a leaf: its value
    low: tuple[int, ...]  # where to go on if the feature is at most the limit
    high: tuple[int, ...]
    base: tuple[float, float, float]
    linear: tuple[tuple[int, float], ...]  # features that count as they are, and by how much
    words: "array[float]"  # weight of each bucket; empty: words are not looked at
    grams: "array[float]"  # the same of grams
    scales: "array[float]"  # by how much each gram adds to the square of what their sum is divided by

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
        return bool(self.grams)

    def quantiles(self, cues: Cues, grams: Grams = NO_GRAMS) -> tuple[float, float, float]:
        """Natural logs of tokens at 0.1, 0.5 and 0.9, in rising order."""
        numbers: tuple[float, ...] = cues.numbers
        if self.words:
            numbers = (*numbers, self._spoken(cues.words))
        if self.grams:
            numbers = (*numbers, *map(self._weighed, grams))
        sums = [0.0, 0.0, 0.0]
        feature, limit, low, high = self.feature, self.limit, self.low, self.high
        for node in self.roots:
            looked = feature[node]
            while looked >= 0:
                node = low[node] if numbers[looked] <= limit[node] else high[node]
                looked = feature[node]
            sums[-1 - looked] += limit[node]
        straight = sum([numbers[looked] * weight for looked, weight in self.linear])
        q10, q50, q90 = sorted([total + base + straight for total, base in zip(sums, self.base, strict=True)])
        return q10, q50, q90

    def _spoken(self, words: tuple[int, ...]) -> float:
        weights = self.words
        return sum([weights[word] for word in words]) / math.sqrt(len(words) or 1)

    def _weighed(self, grams: tuple[int, ...]) -> float:
        weights, scales = self.grams, self.scales
        square = sum([scales[gram] for gram in grams]) + GRAM_SCALE_MIN
        return sum([weights[gram] for gram in grams]) / math.sqrt(square)


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
    return Trees(roots, tuple(feature), tuple(limit), tuple(low), tuple(high), (q10, q50, q90), linear, words, grams, scales)


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
