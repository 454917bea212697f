"""What the control plane shows of lengths foretold: each model's layers, which are on and why, and what q90 covers. Pure.

Errors and losses are in natural logs of tokens, older answers fading; null where nothing has been seen yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from predictor.layers import LayerReport
from predictor.length import Report


@dataclass(frozen=True, slots=True)
class LengthLayerView:
    """One layer: whether it counts for the model, and why, in words; `share`: of a trained one, in the regression."""

    name: str
    on: bool
    weight: float
    error: float | None
    answers: int
    share: float
    why: str


@dataclass(frozen=True, slots=True)
class LengthModelView:
    """How lengths of one model's answers are foretold. `coverage_q90`: share of recent answers within q90; `pinball`: the
    mean loss over q10, q50 and q90 of what was told, `pinball_running` that of running quantiles."""

    model: str
    answers: int
    layers: tuple[LengthLayerView, ...]
    coverage_q90: float | None
    pinball: float | None
    pinball_running: float | None


@dataclass(frozen=True, slots=True)
class LengthList:
    """By model, those whose policy predicts. `rejected`: guesses that were none, by source, of all models."""

    models: tuple[LengthModelView, ...]
    rejected: dict[str, int]


def length_list(reports: Iterable[Report], rejected: dict[str, int]) -> LengthList:
    """Of the tagger's reports."""
    return LengthList(tuple([_model(report) for report in reports]), rejected)


def lines(shown: dict[str, object]) -> list[str]:
    """The list as the terminal shows it, from what the control plane answered."""
    found = []
    models = shown["models"]
    assert isinstance(models, list)
    for model in models:
        covered, told, running = (_said(model[name]) for name in ("coverage_q90", "pinball", "pinball_running"))
        found.append(f"{model['model']}: {model['answers']} answers, q90 covers {covered}, pinball {told} (running {running})")
        found += [f"  {layer['name']:8} {layer['why']}" for layer in model["layers"]]
    return found or ["no model whose policy foretells lengths"]


def _model(report: Report) -> LengthModelView:
    losses = [_known(value) for value in (report.coverage_q90, report.pinball, report.pinball_running)]
    return LengthModelView(report.model, report.answers, tuple([_layer(layer) for layer in report.layers]), *losses)


def _layer(layer: LayerReport) -> LengthLayerView:
    error = _known(layer.error)
    return LengthLayerView(layer.name, layer.on, layer.weight, error, layer.answers, layer.share, layer.why)


def _known(value: float) -> float | None:
    return value if isfinite(value) else None


def _said(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "unknown"
