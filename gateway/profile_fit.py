"""Makes the table of shipped profiles anew from the operator tables of aiconfigurator-core (extra `profiles`). Shell.

For each model, tensor parallel size and GPU some three hundred steps are asked for (decoding only, prompts with and without
cached tokens before them, both together) and both step forms are fitted to them.
"""

import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from predictor.calibrate import Step, fit
from predictor.catalog import ProfileError, form_line, hardware_of

GPUS = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "gb200": "gb200", "l40s": "l40s"}
KNOWN = {
    "llama-3.1-8b": ("meta-llama/Meta-Llama-3.1-8B", 1),
    "llama-3.1-70b": ("meta-llama/Meta-Llama-3.1-70B", 4),
    "llama-3.1-405b": ("meta-llama/Meta-Llama-3.1-405B", 8),
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B", 1),
    "qwen3-8b": ("Qwen/Qwen3-8B", 1),
    "qwen3-32b": ("Qwen/Qwen3-32B", 1),
}
# Of models that the package does not carry: hidden size, inner size, layers, heads, KV heads, vocabulary, GPUs.
SHAPES = {
    "llama-2-7b": (4096, 11008, 32, 32, 32, 32000, 1),
    "qwen2.5-0.5b": (896, 4864, 24, 14, 2, 151936, 1),
    "qwen2.5-3b": (2048, 11008, 36, 16, 2, 151936, 1),
    "qwen2.5-7b": (3584, 18944, 28, 28, 4, 152064, 1),
    "qwen2.5-14b": (5120, 13824, 48, 40, 8, 152064, 1),
    "qwen2.5-32b": (5120, 27648, 64, 40, 8, 152064, 1),
    "qwen2.5-72b": (8192, 29568, 80, 64, 8, 152064, 4),
}
NO_LINK = {("l40s", 4), ("l40s", 8)}  # without NVLink the tables' all-reduce is useless
PROMPTS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
DECODERS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)


class Tables(Protocol):
    """What is asked of the package's EngineHandle; all in ms."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float: ...
    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float: ...
    def mixed_step_latency(self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of the table to come."""

    model: str
    gpu: str

    @property
    def gpus(self) -> int:
        """How many work together."""
        return KNOWN[self.model][1] if self.model in KNOWN else SHAPES[self.model][-1]

    @property
    def name(self) -> str:
        """As in the catalog."""
        return f"{self.model}/tp{self.gpus}/{self.gpu}"


def choices(models: Sequence[str], gpus: Sequence[str]) -> list[Choice]:
    """All asked for; all there are where nothing is. Raises ProfileError for a name that is not known."""
    for name, known in [(name, (*SHAPES, *KNOWN)) for name in models] + [(name, tuple(GPUS)) for name in gpus]:
        if name not in known:
            raise ProfileError(f"{name!r} is not among {', '.join(known)}")
    every = [Choice(model, gpu) for model in models or (*SHAPES, *KNOWN) for gpu in gpus or GPUS]
    return [choice for choice in every if (choice.gpu, choice.gpus) not in NO_LINK]


def steps_of(tables: Tables) -> list[Step]:
    """The steps that a profile is fitted to."""
    steps = [
        Step(0, count, count * context, 0.0, tables.decode_step_latency(count, context, 2) * 1e-3)
        for count in DECODERS
        for context in CONTEXTS
    ]
    for tokens in PROMPTS:
        for before in (0, 1024, 4096):
            pairs = tokens * (before + tokens / 2)
            steps.append(Step(tokens, 0, 0.0, pairs, tables.predict_prefill_latency(1, before + tokens, before) * 1e-3))
    for tokens in PROMPTS[3:12:2]:
        for count in DECODERS[2::2]:
            for context in CONTEXTS[1::2]:
                took_ms = tables.mixed_step_latency(tokens, count, context, 2)
                # The tables' prompts in a mixed step are of `context` tokens, computed in pieces of so many together.
                steps.append(Step(tokens, count, count * context, tokens * context / 2, took_ms * 1e-3))
    return [step for step in steps if step.step_s > 0]


def table_lines(name: str, steps: Sequence[Step]) -> str:
    """The profile in both forms, as the catalog reads it."""
    lines = [f'[profiles."{name}"]', *(form_line(*fit(steps, form)) for form in ("linear", "h"))]
    hardware = hardware_of(name)
    if hardware is not None and not hardware.holds_weights:
        limits = replace(hardware, weight_bytes=hardware.weight_bytes / 2).limits()
        sizes = ", ".join(f"{key} = {value}" for key, value in asdict(limits).items() if isinstance(value, int) and value)
        lines += ["# 16-bit weights do not fit; room as with 8-bit ones.", f"limits = {{ {sizes} }}"]
    return "\n".join(lines) + "\n"


def fit_table(wanted: Sequence[Choice], tell: Callable[[str], None]) -> str:
    """The file. Combinations that the package has no data for are left out, and told. Raises ProfileError without it."""
    try:
        engine: Any = importlib.import_module("aiconfigurator_core.sdk.engine")
    except ImportError as error:
        raise ProfileError("aiconfigurator-core is not installed: pip install 'leeway-gateway[profiles]'") from error
    version = importlib.import_module("importlib.metadata").version("aiconfigurator-core")
    parts = [
        f"# Step times of vLLM by `gateway profile fit`, from the tables of aiconfigurator-core {version} (Apache-2.0).\n"
        "# Errors are against those tables, not silicon: measured 70B models are within 9 %, others up to 25 %; measure your\n"
        "# own with `gateway calibrate`. Llama-3.1-405B has 8-bit weights but on A100.\n"
    ]
    for choice in wanted:
        with _model_path(choice.model) as path, tempfile.TemporaryFile("w") as noise, redirect_stderr(noise):
            try:
                tables = engine.EngineHandle.compile(path, GPUS[choice.gpu], "vllm", tp_size=choice.gpus)
                steps = steps_of(tables)
            except (ValueError, KeyError, RuntimeError, FileNotFoundError) as error:
                tell(f"{choice.name}: left out ({type(error).__name__}: {str(error)[:120]})")
                continue
        parts.append(table_lines(choice.name, steps))
        tell(f"{choice.name}: {len(steps)} steps")
    return "\n".join(parts)


@contextmanager
def _model_path(model: str) -> Iterator[str]:
    """What the package takes for a model: a name that it knows, or a folder with a config.json."""
    if model in KNOWN:
        yield KNOWN[model][0]
        return
    hidden, inner, layers, heads, kv_heads, vocabulary, _ = SHAPES[model]
    config = {
        "architectures": ["LlamaForCausalLM" if model.startswith("llama") else "Qwen2ForCausalLM"],
        "model_type": "llama" if model.startswith("llama") else "qwen2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        yield folder
