"""Tokenizers of the encoder: an own byte-level BPE trained on the texts, or a checkpoint's, with the hints added."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.model_names import model_key
from predictor.tagger_text import HINTS, SPECIAL, EncoderText, Marks, marks_of, model_signs, token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def train(texts: Iterable[str], size: int, models: Sequence[str] = ()) -> "Tokenizer":
    """A byte-level BPE of `size` entries: RoBERTa's signs, the hints, signs for models of these names, bytes and merges."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE(unk_token="<unk>"))
    digits = pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=3,
        special_tokens=[*SPECIAL, *HINTS, *model_signs(models)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(path: Path, models: Sequence[str] = ()) -> "Tokenizer":
    """A tokenizer.json; hints and signs for models of these names are added where they are missing, padding and truncation
    are off."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if tokenizer.token_to_id(HINTS[0]) is None:
        tokenizer.add_special_tokens([AddedToken(hint, special=True) for hint in HINTS])
    missing = [sign for sign in model_signs(models) if tokenizer.token_to_id(sign) is None]
    tokenizer.add_special_tokens([AddedToken(sign, special=True) for sign in missing])
    return tokenizer


def reader(tokenizer: "Tokenizer") -> tuple[Callable[[EncoderText, str], list[int]], Marks]:
    """Ids of the encoder's input, for a prompt's text and the model that answers ("": none), and the vocabulary's signs."""
    marks = marks_of(tokenizer.get_vocab())

    def encode(piece: str) -> list[int]:
        ids: list[int] = tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    return lambda text, model: token_ids(text, encode, marks, model_key(model)), marks
