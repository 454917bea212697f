"""From a folder of weights to what the gateway runs: ONNX, its large matrices in int8, and the check that they agree.

Inputs `input_ids` and `attention_mask` (int64, 1 x n); outputs `quantiles` (1 x 3, sorted log tokens) and `vector` (1 x width).
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gateway.tagger import network, vocabulary
from gateway.tagger.shipped import MODEL, TOKENIZER, answer, session
from predictor.tagger_text import TOKENS_MAX

OPSET = 18
UNLIKE = 1e-3  # log tokens by which the graph may differ from the network that it was made from


class ExportError(RuntimeError):
    """The result is not what it should be; the text says how."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: sizes in bytes, and by how much int8 differs from fp32 in log tokens (mean, most)."""

    model_bytes: int
    tokenizer_bytes: int
    mean_difference: float
    most_difference: float


class _Quantiles(torch.nn.Module):
    """The encoder with the one head's output as log tokens."""

    def __init__(self, encoder: network.Encoder) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, embedding = self._encoder(input_ids, attention_mask)
        return network.log_quantiles(out), embedding


def export(folder: Path, target: Path, probes: Sequence[Sequence[int]], int8: bool = True) -> Exported:
    """Write the model and its tokenizer to `target`. `probes`: inputs on which network, graph and int8 are compared. Raises
    ExportError when the graph says something else than the network."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    encoder = network.load(folder)
    target.mkdir(parents=True, exist_ok=True)
    plain = target / "lengths.fp32.onnx"
    module = _Quantiles(encoder).eval()
    _write_plain(module, plain)
    before = session(plain)
    _check(module, before, probes)
    if int8:
        prepared = target / "lengths.prepared.onnx"
        _simplify(plain, prepared, encoder)
        quantize_dynamic(str(prepared), str(target / MODEL), weight_type=QuantType.QInt8, per_channel=True, reduce_range=False)
        prepared.unlink()
    else:
        shutil.copyfile(plain, target / MODEL)
    shutil.copyfile(folder / TOKENIZER, target / TOKENIZER)
    after = session(target / MODEL)
    differences = [abs(a - b) for ids in probes for a, b in zip(answer(before, ids), answer(after, ids), strict=True)]
    plain.unlink()
    sizes = (target / MODEL).stat().st_size, (target / TOKENIZER).stat().st_size
    return Exported(*sizes, sum(differences) / max(1, len(differences)), max(differences, default=0.0))


def _write_plain(module: torch.nn.Module, path: Path) -> None:
    ids = torch.randint(5, 50, (1, 24))
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(
        module,
        (ids, torch.ones_like(ids)),
        str(path),
        input_names=names,
        output_names=["quantiles", "vector"],
        dynamic_shapes={name: {1: torch.export.Dim("tokens", min=2, max=TOKENS_MAX)} for name in names},
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _check(module: _Quantiles, made: object, probes: Sequence[Sequence[int]]) -> None:
    for ids in probes:
        asked = torch.tensor([list(ids)])
        with torch.no_grad():
            quantiles, _ = module(asked, torch.ones_like(asked))
        most = max(abs(a - b) for a, b in zip(answer(made, ids), quantiles[0].tolist(), strict=True))
        if not most <= UNLIKE:
            raise ExportError(
                f"the ONNX graph differs from the network by {most:.4f} log tokens, on {len(ids)} tokens of input"
            )


def _simplify(plain: Path, prepared: Path, encoder: network.Encoder) -> None:
    """Fuse attention, norms and activations where the optimizer knows the body; else leave it as it is."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    config = encoder.body.config
    if config.model_type not in ("roberta", "bert"):
        shutil.copyfile(plain, prepared)
        return
    options = FusionOptions("bert")
    made = optimizer.optimize_model(
        str(plain), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, optimization_options=options
    )
    made.save_model_to_file(str(prepared))


def probes_of(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """Inputs from texts."""
    from predictor.prompts import view_of
    from predictor.tagger_text import encoder_text

    read_text, _ = vocabulary.reader(vocabulary.load(folder / TOKENIZER))
    return [read_text(encoder_text(view_of({"prompt": text})), "") for text in texts]
