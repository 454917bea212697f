"""What the length encoder reads of a prompt: the end of the last user message, its beginning, and task hints. Pure.

At most `TOKENS_MAX` tokens whatever the prompt's size: `<s> end </s> begin </s> hints model`. The end comes first because
agents and templates put the user's words last. Hints are single tokens of the vocabulary for what the words cannot show:
sizes (doubling steps), turns, earlier replies, tools; so is the model that answers, where the vocabulary has a sign
for it; one that it does not know is read as none. The tokenizer is handed in; this module loads nothing. Never raises on
odd text: lone surrogates become "?".
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from predictor.model_names import model_key
from predictor.prompts import ROLES, PromptView

TOKENS_MAX = 64
END_CHARS = 320  # more than `END_TOKENS` tokens of nearly any text
BEGIN_CHARS = 160
BEGIN_TOKENS = 16  # kept for the beginning where the whole does not fit
SIZE_STEPS = 18  # of doubling: up to 2^17 characters
TURNS_SHOWN = 6
SPECIAL: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # in RoBERTa's order
_SIZED = ("text", "prompt", "reply", "replies", "system")
_FLAGS = ("tools", "images", "json", "code", "asks")
HINTS: tuple[str, ...] = (
    *(f"<{name}:{step}>" for name in _SIZED for step in range(SIZE_STEPS)),
    *(f"<turns:{turns}>" for turns in range(TURNS_SHOWN + 1)),
    *(f"<role:{role}>" for role in ROLES),
    *(f"<{flag}>" for flag in _FLAGS),
)
_MODEL, _END = "<model:", ">"
_HINT = {hint: index for index, hint in enumerate(HINTS)}


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of a vocabulary's own signs: begin, end, padding, and the first hint (the others follow it); those of `models` by
    their keys (none: this vocabulary, and so its encoder, knows no models)."""

    bos: int = 0
    eos: int = 2
    pad: int = 1
    first_hint: int = len(SPECIAL)
    models: Mapping[int, int] = field(default_factory=dict)

    def known(self, model: str) -> str:
        """The model, or "" if this vocabulary has no sign for it."""
        return model if model_key(model) in self.models else ""


MARKS = Marks()


@dataclass(frozen=True, slots=True)
class EncoderText:
    """The texts that are tokenized, and hints as places in HINTS. `begin` is empty where `end` holds the whole text."""

    end: str
    begin: str
    hints: tuple[int, ...]


def encoder_text(view: PromptView) -> EncoderText:
    """The encoder's share of a prompt."""
    end = (view.tail or view.head)[-END_CHARS:]
    begin = view.head[:BEGIN_CHARS] if view.text_chars > len(end) else ""
    return EncoderText(_clean(end), _clean(begin), _hints(view))


def model_signs(names: Iterable[str]) -> tuple[str, ...]:
    """The vocabulary's entries for models of these names."""
    return tuple([f"{_MODEL}{name}{_END}" for name in names])


def models_of(vocabulary: Iterable[str]) -> tuple[str, ...]:
    """The names of the models that have a sign in a vocabulary."""
    signs = [entry for entry in vocabulary if entry.startswith(_MODEL) and entry.endswith(_END)]
    return tuple(sorted([sign[len(_MODEL) : -len(_END)] for sign in signs]))


def marks_of(vocabulary: Mapping[str, int]) -> Marks:
    """Those of a tokenizer of the RoBERTa or the BERT kind to which HINTS were added. Raises ValueError if one is missing."""
    found = []
    for names in (("<s>", "[CLS]"), ("</s>", "[SEP]"), ("<pad>", "[PAD]"), HINTS[:1]):
        ids = [vocabulary[name] for name in names if name in vocabulary]
        if not ids:
            raise ValueError(f"the tokenizer knows none of {', '.join(names)}")
        found.append(ids[0])
    bos, eos, pad, first_hint = found
    models = models_of(vocabulary)
    signs = zip(models, model_signs(models), strict=True)
    return Marks(bos, eos, pad, first_hint, {model_key(name): vocabulary[sign] for name, sign in signs})


def token_ids(text: EncoderText, encode: Callable[[str], list[int]], marks: Marks = MARKS, model: int = 0) -> list[int]:
    """Ids of the encoder's input, `TOKENS_MAX` at most. `encode` tokenizes a piece without adding special tokens; `model`: its
    `model_key`."""
    hints = [marks.first_hint + hint for hint in text.hints]
    if model in marks.models:
        hints.append(marks.models[model])
    room = TOKENS_MAX - 3 - len(hints)  # the begin sign and two end signs
    end = encode(text.end) if text.end else []
    begin = encode(text.begin) if text.begin else []
    if len(end) > room or begin:
        begin = (begin or end)[:BEGIN_TOKENS]
        end = end[-(room - len(begin)) :]
    return [marks.bos, *end, marks.eos, *begin, marks.eos, *hints]


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _hints(view: PromptView) -> tuple[int, ...]:
    last, longest = (view.replies[-1], max(view.replies)) if view.replies else (0, 0)
    names = [
        f"<text:{_step(view.text_chars)}>",
        f"<prompt:{_step(view.all_chars)}>",
        f"<turns:{max(0, min(view.turns, TURNS_SHOWN))}>",
        f"<role:{view.last_role if view.last_role in ROLES else ROLES[0]}>",
    ]
    if view.replies:
        names += [f"<reply:{_step(last)}>", f"<replies:{_step(longest)}>"]
    if view.system_chars:
        names.append(f"<system:{_step(view.system_chars)}>")
    asks = (view.tail or view.head)[-8:].rstrip().endswith(("?", "\uff1f"))
    flags = (view.tools > 0, view.images > 0, view.json_asked, _is_code(view), asks)
    names += [f"<{name}>" for name, on in zip(_FLAGS, flags, strict=True) if on]
    return tuple([_HINT[name] for name in names])


def _step(size: int) -> int:
    """The doubling step of a size: 0, 1, 2-3, 4-7, ..."""
    return min(SIZE_STEPS - 1, max(0, size).bit_length())


def _is_code(view: PromptView) -> bool:
    return any(sign in part for part in (view.head, view.tail) for sign in ("```", "def ", "class ", "#include", "</"))
