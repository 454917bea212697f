"""The encoder as a torch module: a RoBERTa, BERT or ModernBERT body, the mean of its states, and the length head.

The head gives q50 of the log tokens and two distances that cannot be negative, so q10 <= q50 <= q90 always holds. The
mean state is an output too (`embedding`). Loss: pinball, where an answer that was cut off only punishes quantiles below it.
The paper's rule has one output, in tokens, and a squared error.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.tagger_text import TOKENS_MAX, Marks

SHARES = (0.1, 0.5, 0.9)
START_LOG, START_SPREAD = 5.3, 0.5  # 200 tokens; the spread is before softplus: about a factor of 2.6 each way
POINT_TOKENS = 200.0  # the unit of the one output
HEAD, MEANING = "head.pt", "meaning.pt"
POSITIONS = TOKENS_MAX + 4  # RoBERTa counts positions from the padding's id + 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A body made from scratch. `point`: one output, as the paper's rule has it."""

    architecture: str = "roberta"
    layers: int = 4
    width: int = 256
    heads: int = 4
    vocabulary: int = 12_000
    dropout: float = 0.1
    point: bool = False


def body_of(shape: Shape, marks: Marks) -> nn.Module:
    """The body, random. Raises ValueError for an architecture that is not known."""
    from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel, RobertaConfig, RobertaModel

    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.width,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": marks.pad,
        "bos_token_id": marks.bos,
        "eos_token_id": marks.eos,
        "attn_implementation": "eager",
    }
    if shape.architecture == "modernbert":
        signs = {"cls_token_id": marks.bos, "sep_token_id": marks.eos}
        sizes["intermediate_size"] = 2 * shape.width  # its feed-forward is gated, so it has three matrices
        body: nn.Module = ModernBertModel(ModernBertConfig(**sizes, **signs, embedding_dropout=shape.dropout))
        return body
    sizes.update(type_vocab_size=1, hidden_dropout_prob=shape.dropout, attention_probs_dropout_prob=0.0)
    if shape.architecture == "roberta":
        body = RobertaModel(RobertaConfig(**sizes), add_pooling_layer=False)
    elif shape.architecture == "bert":
        body = BertModel(BertConfig(**sizes), add_pooling_layer=False)
    else:
        raise ValueError(f"architecture {shape.architecture!r} is not known: roberta, bert or modernbert")
    return body


def body_from(folder: Path, entries: int) -> nn.Module:
    """A local checkpoint's body, its embeddings grown to `entries` of the vocabulary."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    more = {} if config.model_type == "modernbert" else {"add_pooling_layer": False}
    how: dict[str, Any] = {"local_files_only": True, "attn_implementation": "eager", **more}
    body: Any = AutoModel.from_pretrained(str(folder), config=config, **how)
    if body.config.vocab_size < entries:
        body.resize_token_embeddings(entries, mean_resizing=True)
    return body


class Encoder(nn.Module):
    """Body, pooling and head. `forward(ids, mask)` gives (log-token quantiles n x 3, embedding n x width).

    With `point` the first is n x 1, in units of POINT_TOKENS.
    """

    def __init__(self, body: nn.Module, point: bool = False, meaning: int = 0) -> None:
        super().__init__()
        self.body: Any = body
        width = int(self.body.config.hidden_size)
        self.point = point
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1 if point else len(SHARES)))
        with torch.no_grad():
            last: Any = self.head[2]
            last.weight.mul_(0.1)
            last.bias.copy_(torch.tensor([1.0] if point else [START_SPREAD, START_LOG, START_SPREAD]))
        self.meaning = nn.Linear(width, meaning) if meaning else None
        self._first_position = int(body.config.pad_token_id) + 1 if body.config.model_type == "roberta" else 0

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Quantiles in log tokens, sorted, and the mean state."""
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0) + self._first_position
        states = self.body(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        kept = mask.unsqueeze(-1).to(states.dtype)
        embedding = (states * kept).sum(1) / kept.sum(1)
        out = self.head(embedding)
        if self.point:
            return out, embedding
        below, middle, above = out.unbind(-1)
        spread = functional.softplus(torch.stack([below, above], -1))
        return torch.stack([middle - spread[..., 0], middle, middle + spread[..., 1]], -1), embedding


def pinball(quantiles: Tensor, logs: Tensor, cut: Tensor, weight: Tensor) -> Tensor:
    """Mean loss. `quantiles` n x 3; `logs`, `cut`, `weight` n x answers (a weight of 0 fills up short rows)."""
    shares = torch.tensor(SHARES)
    error = logs.unsqueeze(-1) - quantiles.unsqueeze(1)
    error = torch.where(cut.unsqueeze(-1), error.clamp(min=0.0), error)
    loss = torch.maximum(shares * error, (shares - 1.0) * error).mean(-1)
    return (loss * weight).sum() / weight.sum()


def log_quantiles(out: Tensor) -> Tensor:
    """n x 3 log tokens of whichever head: a point is taken for all three."""
    return out if out.shape[-1] == len(SHARES) else torch.log((out * POINT_TOKENS).clamp(min=1.0)).expand(-1, len(SHARES))


def squared(point: Tensor, logs: Tensor, weight: Tensor) -> Tensor:
    """The paper's loss: squared error of the tokens, in units of POINT_TOKENS."""
    error = point - torch.exp(logs) / POINT_TOKENS
    return (error.square() * weight).sum() / weight.sum()


def save(folder: Path, encoder: Encoder, about: dict[str, object]) -> None:
    """The body as transformers writes it, head and description beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder.body.save_pretrained(str(folder))
    torch.save(encoder.head.state_dict(), folder / HEAD)
    if encoder.meaning is not None:
        torch.save(encoder.meaning.state_dict(), folder / MEANING)
    (folder / "about.json").write_text(json.dumps({**about, "point": encoder.point}, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Encoder:
    """What `save` wrote."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    encoder = Encoder(body_from(folder, 0), bool(about["point"]))
    carry_on(encoder, folder)
    return encoder.eval()


def carry_on(encoder: Encoder, folder: Path) -> None:
    """Take over what `save` wrote beside the body, where it is there and of the same kind."""
    for name, part in ((HEAD, encoder.head), (MEANING, encoder.meaning)):
        if part is not None and (folder / name).exists():
            kept = torch.load(folder / name, weights_only=True)
            if {key: weight.shape for key, weight in kept.items()} == {k: w.shape for k, w in part.state_dict().items()}:
                part.load_state_dict(kept)


def parameters(encoder: Encoder) -> int:
    """How many there are."""
    return sum(weight.numel() for weight in encoder.parameters())


def described(shape: Shape) -> dict[str, object]:
    """For the description beside the weights."""
    return asdict(shape)
