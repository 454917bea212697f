"""Settings of the simulated engine."""

from collections.abc import Callable
from dataclasses import dataclass, field

from predictor.profile import PRESETS, EngineLimits, StepProfile
from predictor.sidecar import SidecarConfig


@dataclass(frozen=True, slots=True)
class MockConfig:
    """One simulated engine. Raises ValueError on settings that cannot work.

    `models` are names of one and the same model, the first being its own; port 0 takes a free one.
    An answer without other bounds has a lognormal length of mean `output_tokens_mean`, drawn from `seed` and prompt, or
    the length that `output_tokens` says of the prompt's text.
    Going to sleep takes `sleep_s` once nothing runs (or all is stopped), waking up `wake_s`.
    `sidecar`: serve one beside the engine, on a port of its own.
    `enable_prefix_caching` and `enable_prompt_tokens_details` (cached tokens in usage) are vLLM's, as are their defaults.
    More than `max_queued` waiting sequences are refused with 503; None never refuses, as vLLM does by default.
    """

    name: str = "mock"
    models: tuple[str, ...] = ("demo",)
    host: str = "127.0.0.1"
    port: int = 0
    profile: StepProfile = PRESETS["demo-fast"].profile
    limits: EngineLimits = PRESETS["demo-fast"].limits
    api_key: str | None = field(default=None, repr=False)
    seed: int = 0
    pooling: bool = False
    output_tokens_mean: float = 128.0
    output_tokens_sigma: float = 0.8
    output_tokens: Callable[[str], int] | None = None
    enable_prefix_caching: bool = True
    enable_prompt_tokens_details: bool = False
    max_queued: int | None = None
    engine_version: str = "0.32.0"
    dev_mode: bool = True
    sleep_s: float = 0.0
    wake_s: float = 0.0
    recent_requests_max: int = 256
    stored_responses_max: int = 1000
    request_bytes_max: int = 64 * 1024 * 1024
    sidecar: SidecarConfig | None = None

    def __post_init__(self) -> None:
        if not self.models or not all(self.models):
            raise ValueError("models needs at least one name")
        if self.output_tokens_mean < 1 or self.output_tokens_sigma < 0:
            raise ValueError("output_tokens_mean must be at least 1 and output_tokens_sigma not negative")
        if self.sleep_s < 0 or self.wake_s < 0:
            raise ValueError("sleep_s and wake_s must not be negative")
        if self.max_queued is not None and self.max_queued < 0:
            raise ValueError("max_queued must not be negative")
