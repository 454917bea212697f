"""A sentence encoder beside trees, trained on the same answers: what `train-trees --sentences` writes. Extra `train`."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.tag_sentences import metadata_of
from gateway.tagger import sentence_body, sentence_fit, sentence_writer
from gateway.tagger.sentence_body import TOKENIZER, VECTOR, CheckpointError
from gateway.tagger.tree_rows import TreeRow
from gateway.tagger.trees import Grown, TreeOptions, ensembles
from predictor.features import FEATURES
from predictor.sentences import Reading, shared_runs

Floats = NDArray[np.float64]
Known = dict[tuple[int, ...], Floats]  # vectors of inputs that were asked for before
ROWS_MAX = 20_000  # answers whose prompts are read; of more, as many at random
LENGTHS = "lengths.onnx"
SIGNS = (("[CLS]", "<s>"), ("[SEP]", "</s>"))
TOLD_EVERY = 1000


def train(
    rows: Sequence[TreeRow], grown: Grown, options: TreeOptions, folder: Path, known: Known, tell: Callable[[str], None]
) -> bytes:
    """The file, from the rows that the trees were grown on, and as those were. Raises CheckpointError."""
    body, reading, inputs = _read(rows, folder)
    picked = np.random.default_rng(options.seed).permutation(len(rows))[:ROWS_MAX]
    vectors = _vectors(body, [inputs[row] for row in picked], known, tell)
    target = grown.target[picked]
    places = sentence_fit.places(vectors, grown.numbers[0][picked], len(FEATURES))
    points = [places.of(vectors, numbers[picked]) for numbers in grown.numbers]
    kept = sentence_fit.ridges(points[0], target)
    drawn = [
        np.column_stack([numbers[picked], sentence_fit.columns(one, target, fold[picked], kept)])
        for one, numbers, fold in zip(points, grown.numbers, grown.folds, strict=True)
    ]
    trees = ensembles(drawn, target, np.array([rows[row].weight for row in picked]), options)
    linear = np.zeros(len(places.middle))
    linear[: len(grown.linear)] = grown.linear
    return sentence_writer.with_head(body, places, kept, trees, linear, metadata_of(reading, grown.data))


def write(data: bytes, checkpoint: Path, folder: Path) -> None:
    """Beside the trees. Raises OSError."""
    (folder / LENGTHS).write_bytes(data)
    shutil.copyfile(checkpoint / TOKENIZER, folder / TOKENIZER)


def _read(rows: Sequence[TreeRow], folder: Path) -> tuple[Any, Reading, list[tuple[int, ...]]]:
    """The body, what is left out of texts, and each row's input."""
    body, tokenizer = sentence_body.body(folder), sentence_body.tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    signs = [[vocabulary[name] for name in names if name in vocabulary] for names in SIGNS]
    if not all(signs):
        raise CheckpointError(f"{folder / TOKENIZER} has none of the signs {SIGNS}")
    tokens = [tokenizer.encode(row.text, add_special_tokens=False).ids for row in rows]
    reading = Reading(signs[0][0], signs[1][0], shared_runs(tokens))
    return body, reading, [tuple(reading.ids(one)) for one in tokens]


def _vectors(body: Any, inputs: Sequence[tuple[int, ...]], known: Known, tell: Callable[[str], None]) -> Floats:
    """One by one, as in service: what is beside an input would change its figures in int8."""
    from gateway.tagger.shipped import session

    asked = session(body.SerializeToString())
    for number, one in enumerate(dict.fromkeys(inputs)):
        if one not in known:
            ids = np.array([one], np.int64)
            known[one] = asked.run([VECTOR], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0]
        if number % TOLD_EVERY == TOLD_EVERY - 1:
            tell(f"read {number + 1} prompts")
    return np.array([known[one] for one in inputs], np.float64)
