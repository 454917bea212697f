"""Predictors that `make eval-length` trains on one part of the rows and asks on another: baselines, and ours.

Boosted baselines are LightGBM with Huber's loss, 15 leaves, 300 rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import lightgbm
import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestNeighbors

from gateway.tag_worker import Models
from gateway.tagger import sentences
from gateway.tagger.sentences import Known
from gateway.tagger.tree_rows import TreeRow, with_spoken
from gateway.tagger.trees import TreeOptions, grow, train
from predictor.features import FEATURES
from predictor.grams import Grams, grams_of, spoken_of
from predictor.trees import NO_GRAMS, Trees
from tests.bench.lengths_data import Prompt, Table

HISTORY = frozenset(name for name in FEATURES if name.startswith("reply")) | {"replies", "turns", "role", "log_last"}
LEXICAL = [number for number, name in enumerate(FEATURES) if name not in HISTORY]


@dataclass(slots=True)
class Part:
    """Rows of one split with all that predictors look at. `embedded` is None where there are no embeddings."""

    table: Table
    numbers: np.ndarray
    texts: np.ndarray
    groups: np.ndarray
    sources: np.ndarray
    truth: np.ndarray
    embedded: np.ndarray | None = None

    def rows(self, chosen: np.ndarray) -> "Part":
        """Some of them."""
        embedded = None if self.embedded is None else self.embedded[chosen]
        numbers, texts, groups = self.numbers[chosen], self.texts[chosen], self.groups[chosen]
        return Part(self.table.rows(chosen), numbers, texts, groups, self.sources[chosen], self.truth[chosen], embedded)


def part_of(table: Table, embeddings: dict[str, np.ndarray]) -> Part:
    """`embeddings` by pid; used if there is one for each prompt."""
    prompts = [table.prompts[number] for number in table.prompt]
    have = bool(embeddings) and all(prompt.pid in embeddings for prompt in prompts)
    return Part(
        table,
        np.array([prompt.cues.numbers for prompt in prompts]),
        np.array([prompt.text for prompt in prompts], dtype=object),
        np.array([prompt.group for prompt in prompts]),
        np.array([prompt.source for prompt in prompts]),
        table.logs,
        np.array([embeddings[prompt.pid] for prompt in prompts]) if have else None,
    )


Predictor = Callable[[Part, Part], np.ndarray]


def boosted(numbers: np.ndarray, truth: np.ndarray, asked: np.ndarray, seeds: int = 1) -> np.ndarray:
    """Middles by boosted trees, the mean over seeds."""
    wanted = {"objective": "huber", "alpha": 0.5, "num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 20}
    wanted |= {"feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "num_threads": 1}
    found = []
    for seed in range(seeds):
        data = lightgbm.Dataset(numbers, truth)
        found.append(lightgbm.train({**wanted, "verbose": -1, "seed": seed}, data, 300).predict(asked))
    return np.mean(found, axis=0)


def constant(part: Part, asked: Part) -> np.ndarray:
    """The median."""
    return np.full(len(asked.truth), np.median(part.truth))


def workload(part: Part, asked: Part) -> np.ndarray:
    """The median of the workload, as if its label were known."""
    medians = {name: np.median(part.truth[part.sources == name]) for name in np.unique(part.sources)}
    return np.array([medians.get(name, np.median(part.truth)) for name in asked.sources])


def prompt_tokens(part: Part, asked: Part) -> np.ndarray:
    """Boosted trees on the number of prompt tokens."""
    return boosted(_tokens(part), part.truth, _tokens(asked))


def _tokens(part: Part) -> np.ndarray:
    return np.log1p(part.table.of("in_tokens").astype(float))[:, None]


def lexical(part: Part, asked: Part) -> np.ndarray:
    """Boosted trees on the lexical features."""
    return boosted(part.numbers[:, LEXICAL], part.truth, asked.numbers[:, LEXICAL])


def lexical_history(part: Part, asked: Part) -> np.ndarray:
    """... and on those of the conversation."""
    return boosted(part.numbers, part.truth, asked.numbers)


def tfidf(part: Part, asked: Part) -> np.ndarray:
    """Ridge on TF-IDF of the last user's text."""
    left, right = _tfidf(part, asked)
    return Ridge(alpha=1.0).fit(left, part.truth).predict(right)


def _tfidf(part: Part, asked: Part) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    made = TfidfVectorizer(min_df=2, ngram_range=(1, 2), sublinear_tf=True, max_features=60_000).fit(part.texts)
    return made.transform(part.texts), made.transform(asked.texts)


def tfidf_lexical(part: Part, asked: Part) -> np.ndarray:
    """Ridge on TF-IDF and the lexical features."""
    left, right = _tfidf(part, asked)
    scale = part.numbers[:, LEXICAL].std(axis=0) + 1e-9
    pair = [sparse.csr_matrix(one.numbers[:, LEXICAL] / scale * 0.1) for one in (part, asked)]
    model = Ridge(alpha=1.0).fit(sparse.hstack([left, pair[0]]), part.truth)
    return model.predict(sparse.hstack([right, pair[1]]))


def minilm_ridge(part: Part, asked: Part) -> np.ndarray:
    """Ridge on the embedding."""
    return Ridge(alpha=1.0).fit(part.embedded, part.truth).predict(asked.embedded)


def minilm_lexical(part: Part, asked: Part) -> np.ndarray:
    """Boosted trees on the embedding and the lexical features."""
    return _with_embedding(part, asked, LEXICAL)


def minilm_lexical_history(part: Part, asked: Part) -> np.ndarray:
    """... and those of the conversation."""
    return _with_embedding(part, asked, list(range(len(FEATURES))))


def _with_embedding(part: Part, asked: Part, columns: list[int]) -> np.ndarray:
    return boosted(_joined(part, columns), part.truth, _joined(asked, columns))


def _joined(part: Part, columns: list[int]) -> np.ndarray:
    assert part.embedded is not None
    return np.column_stack([part.numbers[:, columns], part.embedded])


def minilm_neighbours(part: Part, asked: Part) -> np.ndarray:
    """Mean of the ten nearest prompts."""
    near = NearestNeighbors(n_neighbors=10, algorithm="brute").fit(part.embedded)
    return part.truth[near.kneighbors(asked.embedded, return_distance=False)].mean(axis=1)


def paper(part: Part, asked: Part) -> np.ndarray:
    """The paper's rule: one output, least squares in tokens, from the first turn of the user; a ridge in place of the
    fine-tuned RoBERTa (`gateway tagger train --baseline paper` trains that one)."""
    first = [np.array([one.table.prompts[number].first for number in one.table.prompt], dtype=object) for one in (part, asked)]
    made = TfidfVectorizer(min_df=2, sublinear_tf=True, max_features=60_000).fit(first[0])
    model = Ridge(alpha=1.0).fit(made.transform(first[0]), np.exp(part.truth))
    return np.log(np.maximum(1.0, model.predict(made.transform(first[1]))))


def gateway_trees_with_text(part: Part, asked: Part) -> np.ndarray:
    """Ours, as it makes them from a length log with text."""
    return quantiles_of_gateway(part, asked, text=True)[:, 1]


def quantiles_of_gateway(part: Part, asked: Part, *, text: bool, seed: int = 0) -> np.ndarray:
    """All three quantiles, by trees from the file that was written."""
    table = part.table
    rows = [
        TreeRow(prompt.cues, max(1, round(tokens)), group=prompt.group, grams=_grams(prompt) if text else None)
        for prompt, tokens in zip([table.prompts[number] for number in table.prompt], table.tokens, strict=True)
    ]
    trees = Trees.from_onnx(train(rows, TreeOptions(seed=seed)))
    prompts = [asked.table.prompts[number] for number in asked.table.prompt]
    return np.array([trees.quantiles(prompt.cues, _grams(prompt) if text else NO_GRAMS) for prompt in prompts])


def quantiles_with_sentences(part: Part, asked: Part, checkpoint: Path, known: Known) -> np.ndarray:
    """The same with text and a sentence encoder, by the tagger's process from the files that were written."""
    table = part.table
    rows = [
        with_spoken(TreeRow(prompt.cues, max(1, round(tokens)), group=prompt.group), spoken_of(prompt.view))
        for prompt, tokens in zip([table.prompts[number] for number in table.prompt], table.tokens, strict=True)
    ]
    with TemporaryDirectory() as place:
        folder = Path(place)
        grown = grow(rows, TreeOptions())
        (folder / "trees.onnx").write_bytes(grown.data)
        sentences.write(sentences.train(rows, grown, TreeOptions(), checkpoint, known, lambda words: None), checkpoint, folder)
        served = Models(folder)
    assert not served.problems, served.problems
    prompts = [asked.table.prompts[number] for number in asked.table.prompt]
    return np.array([served.encoder(prompt.view)["encoder"] for prompt in prompts])


def _grams(prompt: Prompt) -> Grams:
    return grams_of(spoken_of(prompt.view))


BASELINES: dict[str, Predictor] = {
    "constant median": constant,
    "workload-label median": workload,
    "prompt tokens only": prompt_tokens,
    "the paper's rule (ridge in RoBERTa's place)": paper,
    "lexical, boosted": lexical,
    "TF-IDF ridge": tfidf,
    "TF-IDF + lexical ridge": tfidf_lexical,
}
WITH_HISTORY: dict[str, Predictor] = {"lexical + history, boosted": lexical_history}
WITH_EMBEDDING: dict[str, Predictor] = {
    "MiniLM ridge": minilm_ridge,
    "MiniLM + lexical, boosted": minilm_lexical,
    "MiniLM nearest 10": minilm_neighbours,
}
WITH_BOTH: dict[str, Predictor] = {"MiniLM + lexical + history, boosted": minilm_lexical_history}
# As `gateway tagger train-trees` makes them from a length log without text, and from one with it.
OURS: dict[str, bool] = {"ours, from a log without text": False, "ours, from a log with text": True}
WITH_SENTENCES = "ours, with text and a sentence encoder"
