"""What /metrics tells of the picture that the gateway has of each engine: how old, how far off, how it is corrected."""

import asyncio
import re
from dataclasses import replace

import looptime
import pytest

from backends.mock import MockConfig
from gateway.config import ModelSpec
from predictor.profile import EngineLimits, StepProfile
from tests.wire.kit import CONFIG, Rig, chat, run

# Twenty times slower than what is guessed of an engine that says nothing of itself.
SLOW = MockConfig(
    models=("m",),
    profile=StepProfile(base_s=0.05, prefill_token_s=1e-4, decode_seq_s=1e-4, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=4096, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=32768),
)
NAMES = ("e0", "e1")


async def told(rig: Rig, name: str) -> dict[str, float]:
    """A gauge's value for each backend."""
    found = re.findall(rf'^leeway_backend_{name}{{backend="(\w+)"}} (\S+)$', await rig.metrics(), re.MULTILINE)
    return {backend: float(value) for backend, value in found}


def test_error_pace_and_age_are_told_of_each_backend() -> None:
    async def case(rig: Rig) -> None:
        for i in range(12):
            await asyncio.gather(*(rig.ask(chat(f"{i} {n} " * 300, stream=True, max_tokens=40)) for n in range(4)))
        mirrors = {replica.name: replica.mirror for replica in rig.app.plane.fleet if replica.mirror is not None}
        assert await told(rig, "prediction_error") == pytest.approx({name: mirrors[name].error for name in NAMES})
        assert all(error > 0.01 for error in (await told(rig, "prediction_error")).values()), "they were guessed too fast"
        assert await told(rig, "pace") == pytest.approx({name: mirrors[name].pace for name in NAMES})
        assert all(pace > 4.0 for pace in (await told(rig, "pace")).values())
        assert await told(rig, "staleness_seconds") == dict.fromkeys(NAMES, 0.0), "nobody is there to be heard of"
        assert await told(rig, "pending_tokens") == dict.fromkeys(NAMES, 0.0)

    config = replace(CONFIG, models=(ModelSpec("m", "plan"),))
    run(case, config, backends=0, engines=tuple(replace(SLOW, name=name) for name in NAMES), on=looptime.new_event_loop)
