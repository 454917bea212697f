"""Profiles by name, from the files that come with the package or one's own; each is checked before it is believed.

A profile is named MODEL/tpN/GPU and may hold both step forms. What no engine can do is refused: a step that gets shorter
with more work, reading the KV cache faster than the memory allows, a step shorter than reading the weights once.
Fitted figures err, so 15 % beyond the memory's bandwidth and 20 % below the weights' floor are let pass.
Reads files; predicts nothing.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from predictor.calibrate import Step
from predictor.profile import PRESETS, EngineLimits, StepProfile

FOLDER = Path(__file__).parent / "profiles"
KV_BANDWIDTH_MAX = 1.15
WEIGHT_FLOOR_MIN = 0.8
DROP_MAX = 0.3  # how much shorter a step with more work may have been measured
MEMORY_SHARE = 0.9  # vLLM's default
UNITS = {
    "base_ms": ("base_s", 1e-3),
    "prefill_us": ("prefill_token_s", 1e-6),
    "decode_us": ("decode_seq_s", 1e-6),
    "decode_base_ms": ("decode_base_s", 1e-3),
    "kv_ns": ("kv_token_s", 1e-9),
    "pair_ps": ("pair_s", 1e-12),
}


class ProfileError(ValueError):
    """A profile that is not there, not readable or not possible; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one step cannot beat: of all GPUs of an engine together."""

    hbm_bytes_per_s: float
    memory_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float
    max_model_len: int

    @property
    def holds_weights(self) -> bool:
        """Whether the memory has room for them, and for a block beside them."""
        return self.memory_bytes * MEMORY_SHARE - self.weight_bytes > 16 * self.kv_bytes_per_token

    def limits(self) -> EngineLimits:
        """What vLLM's defaults make of it: blocks of 16 tokens in the memory that the weights leave."""
        if not self.holds_weights:
            raise ProfileError("the weights do not fit into the memory")
        blocks = int((self.memory_bytes * MEMORY_SHARE - self.weight_bytes) / self.kv_bytes_per_token / 16)
        return EngineLimits(blocks, 16, 256, 8192, min(self.max_model_len, blocks * 16))


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One kind of engine. `error` is the mean relative error of the fit; `overhead_s` passes outside of the steps
    before a first token is seen; `hardware` is None where nothing is known of it."""

    name: str
    step: StepProfile
    limits: EngineLimits
    error: float
    overhead_s: float = 0.0
    hardware: Hardware | None = None
    steps: tuple[Step, ...] = field(default=(), repr=False)


def names() -> tuple[str, ...]:
    """Of all profiles that come with the package."""
    return tuple(sorted(_shipped()))


def engine_profile(name: str, form: str = "h") -> EngineProfile:
    """The profile of that name, in that step form or else in the one it has. A path that ends in .toml is read as a
    file with one profile; the simulated engine's presets count too. Raises ProfileError."""
    if name in PRESETS:
        return EngineProfile(name, PRESETS[name].profile, PRESETS[name].limits, 0.0)
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text()
        except OSError as error:
            raise ProfileError(f"profile {name}: {error.strerror}") from error
        found = parse(text, form)
        if len(found) != 1:
            raise ProfileError(f"profile {name}: holds {len(found)} profiles, not one")
        return next(iter(found.values()))
    table = _shipped().get(name)
    if table is None:
        near = [other for other in names() if name.partition("/")[0].lower() in other]
        raise ProfileError(f"no profile {name!r}; known: {', '.join(near or names()[:5])} (`gateway profile list`)")
    return _profile(name, table, form)


def parse(text: str, form: str = "h") -> dict[str, EngineProfile]:
    """All profiles of a file, checked. Raises ProfileError."""
    try:
        tables = tomllib.loads(text).get("profiles", {})
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"not a profile: {error}") from error
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ProfileError('not a profile: expected tables [profiles."NAME"]')
    return {name: _profile(name, table, form) for name, table in tables.items()}


def form_line(step: StepProfile, error: float) -> str:
    """One step form of a profile, as `parse` reads it."""
    figures = [f"{key} = {getattr(step, name) / unit:.5g}" for key, (name, unit) in UNITS.items() if getattr(step, name)]
    knee = [f"knee = {step.knee_tokens}"] if step.form == "h" else []
    return f"{step.form} = {{ {', '.join([*knee, *figures, f'error_pct = {error * 100:.1f}'])} }}"


def render(profile: EngineProfile, comment: str) -> str:
    """A file with this profile, as `parse` reads it."""
    limits = [f"{key} = {getattr(profile.limits, key)}" for key in _LIMITS if getattr(profile.limits, key)]
    lines = [*(f"# {line}" for line in comment.splitlines()), "", f'[profiles."{profile.name}"]']
    lines.append(form_line(profile.step, profile.error))
    lines.append(f"limits = {{ {', '.join(limits)} }}")
    lines.append(f"overhead_ms = {profile.overhead_s * 1e3:.6g}")
    if profile.steps:
        lines.append("# prompt tokens, decoding sequences, their context tokens, pairs, milliseconds")
        rows = (
            f"[{s.prefill_tokens}, {s.decode_seqs}, {s.kv_tokens:g}, {s.pairs:g}, {s.step_s * 1e3:.6g}]" for s in profile.steps
        )
        lines.append("steps = [\n" + "".join(f"    {row},\n" for row in rows) + "]")
    return "\n".join(lines) + "\n"


def check(profile: EngineProfile) -> None:
    """Raises ProfileError for a profile that no engine can have."""
    step, hardware = profile.step, profile.hardware
    _check_monotone(profile.name, profile.steps)
    if hardware is None:
        return
    if step.kv_token_s > 0:
        speed = hardware.kv_bytes_per_token / step.kv_token_s / hardware.hbm_bytes_per_s
        if speed > KV_BANDWIDTH_MAX:
            raise ProfileError(f"profile {profile.name}: reads the KV cache at {speed:.1f} times the memory's bandwidth")
    floor_s = hardware.weight_bytes / hardware.hbm_bytes_per_s
    if step.step_s(1, 0, 0) < WEIGHT_FLOOR_MIN * floor_s:
        short = step.step_s(1, 0, 0) / floor_s
        raise ProfileError(f"profile {profile.name}: a step takes {short:.2f} of the time that reading the weights takes")


def _check_monotone(name: str, steps: Sequence[Step]) -> None:
    """No measured step may be much shorter than one with less of everything."""
    work = [(step.prefill_tokens, step.decode_seqs, step.kv_tokens, step.pairs) for step in steps]
    for more, more_work in zip(steps, work, strict=True):
        for less, less_work in zip(steps, work, strict=True):
            grown = all(high >= low for high, low in zip(more_work, less_work, strict=True))
            if grown and more.step_s < (1.0 - DROP_MAX) * less.step_s:
                raise ProfileError(f"profile {name}: more work took less time: {less} and {more}")


_LIMITS = ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "watermark_blocks")


def _profile(name: str, table: Mapping[str, Any], form: str) -> EngineProfile:
    try:
        chosen = form if form in table else next(known for known in ("h", "linear") if known in table)
        figures = dict(table[chosen])
        error = float(figures.pop("error_pct", 0.0)) / 100
        knee = int(figures.pop("knee", 0))
        values = {UNITS[key][0]: float(value) * UNITS[key][1] for key, value in figures.items()}
        for needed in ("base_s", "prefill_token_s", "decode_seq_s", "kv_token_s"):
            values.setdefault(needed, 0.0)
        step = StepProfile(**values, knee_tokens=knee, form=chosen)
        hardware = hardware_of(name)
        limits = EngineLimits(**table["limits"]) if "limits" in table else hardware.limits() if hardware else None
        steps = tuple(Step(p, d, k, a, ms * 1e-3) for p, d, k, a, ms in table.get("steps", ()))
        overhead_s = float(table.get("overhead_ms", 0.0)) * 1e-3
    except StopIteration:
        raise ProfileError(f"profile {name}: has no step form; known: h, linear") from None
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ProfileError(f"profile {name}: {type(problem).__name__}: {problem}") from problem
    if limits is None:
        raise ProfileError(f"profile {name}: limits are missing")
    profile = EngineProfile(name, step, limits, error, overhead_s, hardware, steps)
    check(profile)
    return profile


def hardware_of(name: str) -> Hardware | None:
    """The hardware that a name MODEL/tpN/GPU speaks of; None if one of them is not known."""
    model, _, rest = name.partition("/")
    parallel, _, gpu = rest.partition("/")
    facts = _hardware()
    gpu_facts, model_facts = facts["gpus"].get(gpu), facts["models"].get(model)
    if gpu_facts is None or model_facts is None or not parallel.removeprefix("tp").isdecimal():
        return None
    gpus = int(parallel.removeprefix("tp"))
    weight_bytes = model_facts["parameters_b"] * 1e9 * _weight_bits(model_facts, gpu) / 8
    return Hardware(
        hbm_bytes_per_s=gpu_facts["hbm_gb_per_s"] * 1e9 * gpus,
        memory_bytes=gpu_facts["memory_gb"] * 1e9 * gpus,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=model_facts["kv_bytes_per_token"],
        max_model_len=model_facts["max_model_len"],
    )


def _weight_bits(model_facts: Mapping[str, Any], gpu: str) -> int:
    """8-bit weights need a GPU that computes with them."""
    bits: int = model_facts.get("weight_bits", 16)
    return 16 if gpu in {"a30", "a40", "a100"} else bits


@cache
def _hardware() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((FOLDER / "hardware.toml").read_text())


@cache
def _shipped() -> Mapping[str, Mapping[str, Any]]:
    tables: dict[str, Mapping[str, Any]] = {}
    for file in ("vidur.toml", "vllm.toml"):
        tables.update(tomllib.loads((FOLDER / file).read_text())["profiles"])
    return tables
