"""What one engine is: how long its steps take and how much it holds.

The time of a step that computes P prompt tokens, decodes for D sequences and reads K context tokens for those, by form:

    linear   base + prefill * P                  + decode * D + kv * K + pair * A
    h        base + prefill * max(0, P + D - n0) + decode * D + kv * K + pair * A      (+ decode_base where D > 0)

A counts pairs of a prompt token and a token before it, the sum over prompts of p * (context + p / 2). The knee n0 is
the batch up to which reading the weights takes longer than computing with them; `h` fits tabulated steps to 4.6 %,
`linear` without A to 5.9 %. Every form is affine in K, which the what-if kernel needs. Nothing here measures or fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

FORMS = ("linear", "h")
ORDERS = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Coefficients of the step time, in seconds. Raises ValueError when one is negative or the form is not known."""

    base_s: float
    prefill_token_s: float
    decode_seq_s: float
    kv_token_s: float
    pair_s: float = 0.0
    knee_tokens: int = 0
    decode_base_s: float = 0.0
    form: str = "linear"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"no step form {self.form!r}; known: {', '.join(FORMS)}")
        for field in fields(self):
            if field.name != "form" and not 0 <= getattr(self, field.name) < float("inf"):
                raise ValueError(f"{field.name} must be finite and not negative")
        if self.form == "linear" and self.knee_tokens:
            raise ValueError("knee_tokens: the linear form has no knee")

    def step_s(self, prefill_tokens: int, decode_seqs: int, kv_tokens: float, pairs: float = 0.0) -> float:
        """Seconds of a step with so many prompt tokens, decoding sequences, context tokens read by those, and pairs."""
        work = prefill_tokens
        if self.form != "linear":
            work = max(0, prefill_tokens + decode_seqs - self.knee_tokens)
        step_s = self.base_s + self.prefill_token_s * work + self.decode_seq_s * decode_seqs + self.kv_token_s * kv_tokens
        if decode_seqs:
            step_s += self.decode_base_s
        return step_s + self.pair_s * pairs

    @property
    def coefficients(self) -> tuple[float, float, float, float, float, float, float, float]:
        """Both forms as one, for the kernel: base, per prompt token, per token over the knee, knee, decode base,
        per decoding sequence, per context token, per pair."""
        linear, over_knee = (self.prefill_token_s, 0.0) if self.form == "linear" else (0.0, self.prefill_token_s)
        rest = (self.decode_base_s, self.decode_seq_s, self.kv_token_s, self.pair_s)
        return (self.base_s, linear, over_knee, float(self.knee_tokens), *rest)

    def scaled(self, factor: float) -> "StepProfile":
        """The same engine with all steps so many times as long."""
        times = {field.name: getattr(self, field.name) * factor for field in fields(self) if field.name.endswith("_s")}
        return replace(self, **times)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much an engine holds, and in which order it serves; names as in vLLM.

    `watermark_blocks` stay free when a request enters a batch that is not empty. `order` names the engine whose
    scheduler this is. Raises ValueError when a limit is below 1, when a full batch could not decode in one step, or when
    the longest allowed sequence would not fit into an empty cache: such an engine would never finish some requests.
    """

    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    watermark_blocks: int = 0
    order: str = "vllm"

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        if self.kv_blocks * self.block_size < self.max_model_len:
            raise ValueError("kv_blocks * block_size must hold max_model_len tokens")
        if not 0 <= self.watermark_blocks < self.kv_blocks:
            raise ValueError("watermark_blocks must be at least 0 and below kv_blocks")
        if self.order not in ORDERS:
            raise ValueError(f"no order {self.order!r}; known: {', '.join(ORDERS)}")

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that so many tokens occupy."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Preset:
    """A named kind of engine."""

    profile: StepProfile
    limits: EngineLimits


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # About Llama-2-7B on one H100; the long context lets coding agents' prompts in.
        "demo-fast": Preset(
            StepProfile(base_s=5.95e-3, prefill_token_s=16.7e-6, decode_seq_s=27.9e-6, kv_token_s=169e-9),
            EngineLimits(kv_blocks=8192, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=131072),
        ),
        # About Llama-2-7B on one A30, with the smaller chunk and batch that suit it.
        "demo-slow": Preset(
            StepProfile(base_s=19.37e-3, prefill_token_s=73.4e-6, decode_seq_s=73.7e-6, kv_token_s=715e-9),
            EngineLimits(kv_blocks=8192, block_size=16, max_num_seqs=48, max_num_batched_tokens=512, max_model_len=131072),
        ),
        # No time at all: for tests of shapes, and to measure what stands in front of an engine.
        "instant": Preset(
            StepProfile(base_s=0.0, prefill_token_s=0.0, decode_seq_s=0.0, kv_token_s=0.0),
            EngineLimits(kv_blocks=65536, block_size=16, max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=131072),
        ),
    }
)


def preset(name: str) -> Preset:
    """The preset of that name; ValueError naming the known ones if there is none."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]
