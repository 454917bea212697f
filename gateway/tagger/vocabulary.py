"""Tokenizers of the encoder: an own byte-level BPE trained on the texts, or a checkpoint's, with the hints added."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.tagger_text import HINTS, SPECIAL, EncoderText, Marks, marks_of, token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def train(texts: Iterable[str], size: int) -> "Tokenizer":
    """A byte-level BPE of `size` entries: RoBERTa's signs, the hints, then bytes and merges."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    digits = pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=3,
        special_tokens=[*SPECIAL, *HINTS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(path: Path) -> "Tokenizer":
    """A tokenizer.json; the hints are added where they are missing, padding and truncation are off."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if tokenizer.token_to_id(HINTS[0]) is None:
        tokenizer.add_special_tokens([AddedToken(hint, special=True) for hint in HINTS])
    return tokenizer


def reader(tokenizer: "Tokenizer") -> tuple[Callable[[EncoderText], list[int]], Marks]:
    """Ids of the encoder's input, and the vocabulary's signs."""
    marks = marks_of(tokenizer.token_to_id)

    def encode(piece: str) -> list[int]:
        ids: list[int] = tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    return lambda text: token_ids(text, encode, marks), marks
