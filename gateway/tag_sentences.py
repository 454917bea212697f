"""A sentence encoder in the tagger's process: trees that look at what a prompt's vector tells, too. Shell.

`gateway tagger train-trees --sentences` writes lengths.onnx and tokenizer.json beside the trees that they were trained with:
the graph reads a prompt's tokens and the numbers that those trees look at, and has trees of its own.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from predictor.features import cues
from predictor.grams import grams_of, spoken_of
from predictor.prompts import PromptView
from predictor.sentences import Reading, sentence_of
from predictor.trees import Trees

READS, SENTENCES = "reads", "sentences"  # the file's metadata: what kind it is, ...
TREES, SHARED, SIGNS = "trees", "shared", "signs"  # ... the digest of the trees, and a `Reading`
Triple = tuple[float, float, float]


class SentencesError(ValueError):
    """The files do not fit together; the text says why."""


def digest_of(trees: bytes) -> str:
    """Of a file of trees."""
    return blake2b(trees, digest_size=16).hexdigest()


def metadata_of(reading: Reading, trees: bytes) -> dict[str, str]:
    """What the file says of itself."""
    shared = " ".join(map(str, sorted(reading.shared)))
    return {READS: SENTENCES, TREES: digest_of(trees), SHARED: shared, SIGNS: f"{reading.begin} {reading.end}"}


def reading_of(metadata: Mapping[str, str]) -> Reading:
    """Raises SentencesError."""
    try:
        begin, end = map(int, metadata[SIGNS].split())
        return Reading(begin, end, frozenset(map(int, metadata[SHARED].split())))
    except (KeyError, ValueError) as error:
        raise SentencesError(f"what it leaves out of a text can't be read: {error!r}") from error


class Sentences:
    """Ready to be asked. Not for several threads at once."""

    def __init__(self, session: Any, tokenizer: Any, trees: Trees | None, data: bytes) -> None:
        """`trees` as they were read from `data`. Raises SentencesError."""
        metadata = session.get_modelmeta().custom_metadata_map
        self._reading = reading_of(metadata)
        if trees is None or metadata.get(TREES) != digest_of(data):
            raise SentencesError("it goes with the trees.onnx that it was trained beside, which is not there; train both anew")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._session, self._tokenizer, self._trees = session, tokenizer, trees

    def quantiles(self, view: PromptView) -> Triple:
        """Natural logs of tokens at 0.1, 0.5 and 0.9, in rising order."""
        import numpy as np

        spoken = spoken_of(view)
        seen, grams = cues(view), grams_of(spoken)
        ids = np.asarray(
            [self._reading.ids(self._tokenizer.encode(sentence_of(spoken), add_special_tokens=False).ids)], np.int64
        )
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "numbers": np.asarray([self._trees.looked_at(seen, grams)], np.float32),
        }
        q10, q50, q90 = sorted(map(float, self._session.run(["quantiles"], feed)[0][0]))
        return q10, q50, q90
