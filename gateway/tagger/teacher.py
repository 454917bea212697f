"""A sentence encoder as teacher: its word vectors start the own vocabulary, its sentence vectors are learnt beside the lengths.

Both carry the meaning of words that the length data are too few to teach. The teacher is a local checkpoint folder of the
BERT kind with mean pooling (all-MiniLM-L6-v2 was used).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from predictor.tagger_text import EncoderText

TOKENS_MAX = 96
BATCH = 64
START_STD = 0.05  # of started word vectors: a little above the positions' 0.02, so that words speak first


def _read(folder: Path) -> tuple[Any, Tokenizer]:
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.enable_padding(pad_id=0)
    return AutoModel.from_pretrained(str(folder), local_files_only=True).eval(), tokenizer


def sentence_vectors(folder: Path, texts: Sequence[EncoderText], tell: Callable[[int], None]) -> Tensor:
    """n x width, of length 1 each. `tell` is called with how many more are done."""
    model, tokenizer = _read(folder)
    whole = [f"{text.begin}\n{text.end}" if text.begin else text.end for text in texts]
    order = sorted(range(len(whole)), key=lambda index: len(whole[index]))
    found = torch.zeros(len(whole), int(model.config.hidden_size))
    for start in range(0, len(order), BATCH):
        picked = order[start : start + BATCH]
        encoded = tokenizer.encode_batch([whole[index] for index in picked])
        ids = torch.tensor([one.ids for one in encoded])
        mask = torch.tensor([one.attention_mask for one in encoded])
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        kept = mask.unsqueeze(-1).float()
        found[picked] = functional.normalize((states * kept).sum(1) / kept.sum(1), dim=-1)
        tell(len(picked))
    return found


def start_words(folder: Path, vocabulary: Tokenizer, words: Tensor) -> int:
    """Set the rows of `words` (entries x width) from the teacher's, by principal components; how many were set."""
    model, tokenizer = _read(folder)
    tokenizer.no_padding()
    theirs: Tensor = model.get_input_embeddings().weight.detach()
    rows, places = [], []
    for place in range(words.shape[0]):
        ids = tokenizer.encode(vocabulary.decode([place]).strip(), add_special_tokens=False).ids
        if ids and tokenizer.token_to_id("[UNK]") not in ids:
            rows.append(theirs[ids].mean(0))
            places.append(place)
    given = torch.stack(rows)
    given = given - given.mean(0)
    width = min(words.shape[1], given.shape[1])
    axes = torch.linalg.eigh(given.T @ given).eigenvectors.flip(1)[:, :width]
    reduced = given @ axes
    with torch.no_grad():
        words[places, :width] = reduced * (START_STD / reduced.std())
    return len(places)
