"""An exported model as `eval` and `inspect` use it: what it is, what it says of a prompt, how good it is. Shell."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.tag_sentences import READS, SENTENCES
from gateway.tagger import vocabulary
from gateway.tagger.records import Row
from predictor.prompts import view_of
from predictor.tagger_text import TOKENS_MAX, EncoderText, encoder_text, models_of

HOME = Path(__file__).resolve().parents[2] / "predictor" / "tagger_models"
MODEL, TOKENIZER = "lengths.onnx", "tokenizer.json"
TIMED = 200


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one exported model. Times of one input of `TOKENS_MAX` tokens on one thread."""

    model_bytes: int
    tokenizer_bytes: int
    vocabulary: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    p50_ms: float
    p99_ms: float
    models: tuple[str, ...]  # whose names it reads; none: it reads none


class Shipped:
    """`folder` holds lengths.onnx and tokenizer.json."""

    def __init__(self, folder: Path = HOME) -> None:
        for name in (MODEL, TOKENIZER):
            if not (folder / name).exists():
                raise FileNotFoundError(f"{folder} holds no {name}")
        self._folder = folder
        self._session = session(folder / MODEL)
        if self._session.get_modelmeta().custom_metadata_map.get(READS) == SENTENCES:
            raise ValueError(f"{folder / MODEL} is a sentence encoder beside trees; only the serving process asks it")
        self._tokenizer = vocabulary.load(folder / TOKENIZER)
        self._read, self._marks = vocabulary.reader(self._tokenizer)
        self._models = models_of(self._tokenizer.get_vocab())

    def of_text(self, text: EncoderText, model: str = "") -> tuple[float, float, float]:
        """Log-token quantiles."""
        return answer(self._session, self._read(text, model))

    def of_prompt(self, prompt: str, model: str = "") -> tuple[int, tuple[float, float, float]]:
        """Tokens read, and log-token quantiles."""
        ids = self._read(encoder_text(view_of({"prompt": prompt})), model)
        return len(ids), answer(self._session, ids)

    def of_rows(self, rows: Sequence[Row]) -> Callable[[Row], tuple[float, float, float]]:
        """Each row's, reckoned once for rows that are read alike."""
        known: dict[tuple[str, str], tuple[float, float, float]] = {}

        def asked(row: Row) -> tuple[str, str]:
            return row.pid, self._marks.known(row.model)

        for row in rows:
            pid, model = asked(row)
            if (pid, model) not in known:
                known[pid, model] = self.of_text(row.text, model)
        return lambda row: known[asked(row)]

    def facts(self) -> Facts:
        """Sizes, names and time."""
        ids = [10 + index for index in range(TOKENS_MAX)]
        times = []
        for _ in range(TIMED):
            began = time.perf_counter()
            answer(self._session, ids)
            times.append((time.perf_counter() - began) * 1e3)
        times.sort()
        model_bytes, tokenizer_bytes = ((self._folder / name).stat().st_size for name in (MODEL, TOKENIZER))
        inputs = tuple([one.name for one in self._session.get_inputs()])
        outputs = tuple([one.name for one in self._session.get_outputs()])
        entries = self._tokenizer.get_vocab_size()
        return Facts(
            model_bytes, tokenizer_bytes, entries, inputs, outputs, times[TIMED // 2], times[TIMED * 99 // 100], self._models
        )


def session(path: Path | bytes) -> Any:
    """A model to ask (its file, or what is in it), on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path if isinstance(path, bytes) else str(path), options)


def answer(model: Any, ids: Sequence[int]) -> tuple[float, float, float]:
    """Log-token quantiles of one input."""
    import numpy as np

    taken = np.array([ids], dtype=np.int64)
    q10, q50, q90 = model.run(["quantiles"], {"input_ids": taken, "attention_mask": np.ones_like(taken)})[0][0].tolist()
    return q10, q50, q90
