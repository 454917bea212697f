"""What may be asked of one model: its speed with a part of the layers, whether that fits, what taking it off costs. Pure.

Rates by what is believed of its offload curve (docs/swaps.md), room by who lies there now, times by the costs of its moves;
T(f) = T1 / (f + (1 - f) r). It must never move anything or change the lodging.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.lodging import Lodger, Lodging, Waiter
from gateway.residency import NEVER
from gateway.swap_config import DeviceSpec, FootprintSpec
from predictor.cost import GB
from predictor.offload import OffloadCurve


@dataclass(frozen=True, slots=True)
class Preemption:
    """What it costs to take a model off now and bring it back later: seconds of both moves with their 80 % interval, and how
    many of the moves less often seen stand behind it. `running` requests are there; `keeps` says that they may stay inside
    meanwhile, else `drain_s` is expected to go by until they are over (null: not known)."""

    mean_s: float
    low_s: float
    high_s: float
    seen: int
    running: int
    keeps: bool
    drain_s: float | None


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """A device that the model may lie on. `needs_gb` is what that part of it takes, `free_gb` what is free for it now (its own
    memory there counts as free), `largest_fraction` the most of it that fits beside those who lie there; `could_fit`: it
    does where all who may leave have left. `preempt` is null where it does not lie or never leaves."""

    device: str
    needs_gb: float
    free_gb: float
    fits: bool
    largest_fraction: float
    could_fit: bool
    preempt: Preemption | None


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model with `fraction` of its layers on a device, asked with a prompt of so many tokens. `decode_tokens_per_s` is that
    of one sequence after this prompt and `ttft_s` its first token's time from an idle engine; null where the rates that they
    follow from are not configured ([models.NAME.footprint])."""

    model: str
    fraction: float
    prompt_tokens: int
    decode_tokens_per_s: float | None
    ttft_s: float | None
    devices: tuple[PlaceAnswer, ...]


def answer_of(
    lodging: Lodging, waiters: Sequence[Waiter], model: str, fraction: float, prompt_tokens: int, now_s: float
) -> ModelAnswer:
    """What is known now of a model that has a lodger. In whole layers: the fraction is rounded to them."""
    spec = lodging.footprint(model)
    fraction = round(fraction * spec.layers) / spec.layers
    known = lodging.offload.of(model)
    curve = known.fit.at(prompt_tokens) if known is not None else None
    lodgers = sorted((one for one in lodging.lodgers.values() if one.model == model), key=lambda one: one.name)
    drains = {(one.model, one.device): one.drain_s for one in lodging.view(waiters, now_s).residents}
    places = [
        _place(lodging, lodger, device, fraction, drains.get((model, lodger.device)))
        for lodger in lodgers
        if (device := lodging.device(lodger.device)) is not None
    ]
    rate_per_s = curve.rate_per_s(fraction) if curve is not None else None
    ttft_s = _ttft_s(spec, curve, fraction, prompt_tokens)
    return ModelAnswer(model, round(fraction, 4), prompt_tokens, _rounded(rate_per_s), _rounded(ttft_s), tuple(places))


def _ttft_s(spec: FootprintSpec, curve: OffloadCurve | None, fraction: float, prompt_tokens: int) -> float | None:
    rates = (spec.gpu_prompt_tokens_per_s, spec.cpu_prompt_tokens_per_s)
    if curve is None or min(rates) <= 0:
        return None
    whole = OffloadCurve(curve.gpu_s, curve.cpu_s, gpu_prompt_s=1 / rates[0], cpu_prompt_s=1 / rates[1])
    return whole.ttft_s(fraction, prompt_tokens)


def _place(lodging: Lodging, lodger: Lodger, device: DeviceSpec, fraction: float, drain_s: float | None) -> PlaceAnswer:
    spec = lodging.footprint(lodger.model)
    size = spec.size()
    others = [one for one in lodging.lodgers.values() if one.device == device.name and one.takes and one is not lodger]
    staying = [one for one in others if not one.moves or lodging.pinned(one.model)]
    free_gb = max(device.memory_gb - sum(lodging.taken_bytes(one) / GB for one in others), 0.0)
    most_gb = max(device.memory_gb - sum(lodging.taken_bytes(one) / GB for one in staying), 0.0)
    return PlaceAnswer(
        device=device.name,
        needs_gb=round(size.resident_bytes(fraction, spec.kv_tokens) / GB, 3),
        free_gb=round(free_gb, 3),
        fits=size.fits(free_gb * GB, fraction, spec.kv_tokens),
        largest_fraction=round(size.largest_fraction(free_gb * GB, spec.kv_tokens), 4),
        could_fit=size.fits(most_gb * GB, fraction, spec.kv_tokens),
        preempt=_preemption(lodging, lodger, device, drain_s),
    )


def _preemption(lodging: Lodging, lodger: Lodger, device: DeviceSpec, drain_s: float | None) -> Preemption | None:
    if lodger.phase != "in" or not lodger.moves or lodging.pinned(lodger.model):
        return None
    found = lodging.costs.preempt(lodger.model, lodging.bytes(lodger.model), device.host, lodger.rest)
    known_s = None if drain_s is None or drain_s == NEVER else round(drain_s, 3)
    return Preemption(
        round(found.mean_s, 3),
        round(found.low_s, 3),
        round(found.high_s, 3),
        found.seen,
        lodger.running,
        lodger.keeps,
        known_s,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
