"""Engine states from a seed, within what the what-if kernel covers, and both forms of the kernel to try on them."""

import importlib.machinery
import importlib.util
import random
import shutil
import sysconfig
from pathlib import Path
from types import ModuleType

from predictor import kernel
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Request
from predictor.snapshot import Resident, Snapshot, held_blocks

PREDICTOR = Path(__file__).parents[2] / "predictor"


def source_form(name: str) -> ModuleType:
    """A module of the predictor as it stands, whatever lies compiled beside it."""
    source = PREDICTOR / f"{name}.py"
    loader = importlib.machinery.SourceFileLoader(f"{name}_from_source", str(source))
    spec = importlib.util.spec_from_file_location(f"{name}_from_source", source, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert module.__file__ is not None
    assert module.__file__.endswith(".py")
    return module


def is_compiled(module: ModuleType) -> bool:
    return str(module.__file__).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def has_compiler() -> bool:
    return shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None


FORMS = {"source": source_form("kernel")}
if is_compiled(kernel):
    FORMS["compiled"] = kernel

PAPER = StepProfile(
    19.8e-3, 0.118e-3, 2.07e-6, 0.711e-6, pair_s=1.12e-8, knee_tokens=96, decode_base_s=0.52e-3, form="h"
)  # Llama-2-7B on an A30
PAPER_LIMITS = EngineLimits(1052, 16, 48, 512, 4096, watermark_blocks=10)


def random_profile(rng: random.Random) -> StepProfile:
    form = rng.choice(["h", "linear"])
    return StepProfile(
        base_s=0.01,
        prefill_token_s=1e-4,
        decode_seq_s=2e-4,
        kv_token_s=1e-6 * rng.random(),
        pair_s=rng.choice([0.0, 1e-7]),
        knee_tokens=rng.randint(0, 64) if form == "h" else 0,
        decode_base_s=rng.choice([0.0, 0.003]),
        form=form,
    )


def random_limits(rng: random.Random) -> EngineLimits:
    block_size, chunk, blocks = rng.choice([1, 4, 16]), rng.choice([4, 8, 16, 64, 512]), rng.randint(8, 200)
    seqs = rng.randint(1, min(chunk, 48))
    return EngineLimits(blocks, block_size, seqs, chunk, blocks * block_size, rng.randint(0, min(5, blocks - 1)))


def random_lengths(rng: random.Random, limits: EngineLimits) -> tuple[int, int]:
    most = rng.choice([10, 100, 400])
    prompt = rng.randint(1, max(1, min(limits.max_model_len // 2, most)))
    return prompt, rng.randint(1, max(1, min(limits.max_model_len - prompt, most)))


def random_state(seed: int) -> tuple[StepProfile, Snapshot, Request]:
    """Decoders, perhaps a half-done prompt behind them, a queue with preempted ones and cached prefixes, scarce blocks."""
    rng = random.Random(seed)
    limits = random_limits(rng)
    running: list[Resident] = []
    free = limits.kv_blocks
    for number in range(rng.randint(0, limits.max_num_seqs)):
        prompt, output = random_lengths(rng, limits)
        half_done = rng.random() < 0.15
        if half_done:
            generated = rng.choice([0, rng.randint(0, output - 1)])
            computed = rng.randint(0, prompt + generated - 1)
        elif output > 1:
            generated = rng.randint(1, output - 1)
            computed = prompt + generated - 1
        else:
            continue
        shared = rng.choice([0, 0, 0, rng.randint(0, prompt // limits.block_size)])
        who = Resident(f"r{number}", prompt, computed, generated, output, shared)
        blocks = held_blocks(who, limits) - shared
        if blocks > free:
            break
        free -= blocks
        running.append(who)
        if not who.decoding:
            break
    waiting = []
    for number in range(rng.randint(0, 40)):
        prompt, output = random_lengths(rng, limits)
        hit = rng.choice([0, 0, rng.randint(0, (prompt - 1) // limits.block_size) * limits.block_size])
        shared = rng.choice([0, 0, min(hit // limits.block_size, 2)])
        waiting.append(Resident(f"w{number}", prompt, hit, rng.choice([0, 0, rng.randint(0, output - 1)]), output, shared))
    snapshot = Snapshot(3.0, limits, tuple(running), tuple(waiting), free)
    return random_profile(rng), snapshot, Request("new", *random_lengths(rng, limits), arrival_s=3.0)


def chat_lengths(rng: random.Random) -> tuple[int, int]:
    """Prompt and output tokens as in ShareGPT: medians 35 and 286, means 246 and 326, P99 2,862 and 1,000."""
    prompt = min(1 + round(rng.lognormvariate(3.55, 1.97)), 2862)
    return prompt, min(2 + round(rng.weibullvariate(365, 1.5)), 1100)


def busy_state(seed: int, running: int = 48, waiting: int = 50) -> Snapshot:
    """The state of the bars: so many run and wait on an A30 with Llama-2-7B, chat lengths, memory nearly full."""
    rng = random.Random(seed)
    residents = [_chatting(rng, f"r{number}") for number in range(running)]
    while sum(held_blocks(who, PAPER_LIMITS) for who in residents) > PAPER_LIMITS.kv_blocks - 20:
        largest = max(range(running), key=lambda place: residents[place].computed_tokens)
        residents[largest] = _chatting(rng, residents[largest].id)
    queue = []
    for number in range(waiting):
        prompt, output = chat_lengths(rng)
        queue.append(Resident(f"w{number}", prompt, 0, 0, max(1, round(output * rng.gauss(1.0, 0.25)))))
    held = sum(held_blocks(who, PAPER_LIMITS) for who in residents)
    return Snapshot(0.0, PAPER_LIMITS, tuple(residents), tuple(queue), PAPER_LIMITS.kv_blocks - held)


def _chatting(rng: random.Random, name: str) -> Resident:
    prompt, output = chat_lengths(rng)
    generated = rng.randint(1, output - 1)
    told = round(output * rng.gauss(1.0, 0.25))
    return Resident(name, prompt, prompt + generated - 1, generated, told if told > generated else generated + 10)
