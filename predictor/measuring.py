"""What to ask a live engine so that a profile can be fitted, and how its answers become steps. Pure.

Prompts alone give TTFT = overhead + a step of P tokens; D streams at once give the time between tokens of a step with
D decoders. The overhead (server and network before a first token) is what the smallest prompt takes beyond a step of
one decoder, since below the knee both take the same. Everything is asked smallest first, as far as the time allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from predictor.calibrate import Step, fit
from predictor.profile import StepProfile

PROMPTS = (8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
STREAMS = ((1, 32), (4, 32), (1, 1024), (16, 32), (4, 1024), (8, 1024), (32, 32), (16, 1024), (64, 32), (32, 1024))
STREAM_TOKENS = 48
REPEATS = 3
CALM = 1.1  # how much longer less work may take


@dataclass(frozen=True, slots=True)
class PromptAsk:
    """Send one prompt of random tokens, ask for one token, and time it."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class StreamsAsk:
    """Send so many prompts at once and read `STREAM_TOKENS` tokens of each."""

    streams: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prompted:
    """A prompt's time to first token."""

    prompt_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream: when it had how many tokens."""

    prompt_tokens: int
    tokens: tuple[tuple[float, int], ...]


def plan(max_model_len: int, max_num_seqs: int, max_num_batched_tokens: int) -> list[PromptAsk | StreamsAsk]:
    """All asks that such an engine can answer in one step each, cheap ones first, both kinds in turn."""
    longest = min(max_num_batched_tokens, max_model_len - 1)
    prompts = [PromptAsk(tokens) for tokens in PROMPTS if tokens <= longest]
    room = max_model_len - STREAM_TOKENS
    streams = [StreamsAsk(count, tokens) for count, tokens in STREAMS if tokens <= room and count <= max_num_seqs]
    asks: list[PromptAsk | StreamsAsk] = []
    while prompts or streams:
        asks.extend(prompts[:1])
        asks.extend(streams[:1])
        prompts, streams = prompts[1:], streams[1:]
    return asks


def stream_step(streams: Sequence[Streamed]) -> Step | None:
    """The mean step while all of these streams were decoding; None if they never were, for two tokens at least."""
    begin_s = max(stream.tokens[0][0] for stream in streams)
    end_s = min(stream.tokens[-1][0] for stream in streams)
    gaps, contexts = [], []
    for stream in streams:
        inside = [(at_s, count) for at_s, count in stream.tokens if begin_s <= at_s <= end_s]
        if len(inside) < 2 or inside[-1][1] <= inside[0][1]:
            return None
        (first_s, before), (last_s, after) = inside[0], inside[-1]
        gaps.append((last_s - first_s) / (after - before))
        contexts.append(stream.prompt_tokens + (before + after) / 2)
    step_s = median(gaps)
    return Step(0, len(streams), sum(contexts), 0.0, step_s) if step_s > 0 else None


def suspects(prompts: Sequence[Prompted], streams: Mapping[StreamsAsk, Step]) -> list[PromptAsk | StreamsAsk]:
    """What to ask again: whatever took longer than something with more work, since it was disturbed."""
    fastest = _fastest(prompts)
    found: list[PromptAsk | StreamsAsk] = [
        PromptAsk(tokens)
        for tokens, ttft_s in fastest.items()
        if any(more > tokens and other_s * CALM < ttft_s for more, other_s in fastest.items())
    ]
    for ask, step in streams.items():
        for other, other_step in streams.items():
            more = other.streams >= ask.streams and other.prompt_tokens >= ask.prompt_tokens
            if more and other_step.step_s * CALM < step.step_s:
                found.append(ask)
                break
    return found


def _fastest(prompts: Sequence[Prompted]) -> dict[int, float]:
    """Of repeated prompts the fastest counts: whatever disturbs, delays."""
    fastest: dict[int, float] = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.prompt_tokens):
        fastest[prompt.prompt_tokens] = min(prompt.ttft_s, fastest.get(prompt.prompt_tokens, prompt.ttft_s))
    return fastest


def overhead_s(prompts: Sequence[Prompted], decode_steps: Sequence[Step]) -> float:
    """What passes before a first token besides the step itself."""
    fastest = _fastest(prompts)
    ttft_s = fastest[min(fastest)]
    alone = min(decode_steps, key=lambda step: (step.decode_seqs, step.kv_tokens))
    return max(0.0, ttft_s - alone.step_s)


def reduce(prompts: Sequence[Prompted], decode_steps: Sequence[Step]) -> tuple[StepProfile, float, float, tuple[Step, ...]]:
    """The fitted profile, its mean relative error, the overhead, and the steps it was fitted to.

    Raises ValueError if either kind is missing.
    """
    if not prompts or not decode_steps:
        raise ValueError("prompts and streams must both have been measured")
    before_s = overhead_s(prompts, decode_steps)
    prompt_steps = [
        Step(tokens, 0, 0.0, tokens * tokens / 2, ttft_s - before_s)
        for tokens, ttft_s in _fastest(prompts).items()
        if ttft_s > before_s
    ]
    steps = (*prompt_steps, *decode_steps)
    profile, error = fit(steps)
    return profile, error, before_s, steps
