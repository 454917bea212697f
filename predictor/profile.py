"""What one engine is: how long its steps take and how much it holds.

Step time is linear in what the step does, which fits measured and tabulated steps to about 6 %:

    step_s = base + per_prefill_token * P + per_decode_seq * D + per_kv_token * K

with P prompt tokens computed in the step, D sequences that decode, K context tokens which those sequences read.
Presets are data; nothing here measures or fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Coefficients of the step time, all in seconds. Raises ValueError when one is negative."""

    base_s: float
    prefill_token_s: float
    decode_seq_s: float
    kv_token_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"{field.name} must not be negative")

    def step_s(self, prefill_tokens: int, decode_seqs: int, kv_tokens: int) -> float:
        """Seconds of a step with so many prompt tokens, decoding sequences and context tokens read by those."""
        return (
            self.base_s + self.prefill_token_s * prefill_tokens + self.decode_seq_s * decode_seqs + self.kv_token_s * kv_tokens
        )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much an engine holds; names as in vLLM.

    Raises ValueError when a limit is below 1, when a full batch could not decode in one step, or when the longest
    allowed sequence would not fit into an empty cache: such an engine would never finish some requests.
    """

    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        if self.kv_blocks * self.block_size < self.max_model_len:
            raise ValueError("kv_blocks * block_size must hold max_model_len tokens")

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
