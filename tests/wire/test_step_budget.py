"""An engine's real step budget is found out while it serves, from its own /metrics."""

from dataclasses import replace

import looptime

from backends.mock import MockConfig
from gateway.config import ModelSpec
from predictor.profile import EngineLimits, StepProfile
from tests.wire.kit import CONFIG, Rig, chat, run, virtual_pause

ENGINE = MockConfig(
    models=("m",),
    profile=StepProfile(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=0.0, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=4096, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=32768),
    output_tokens=lambda _: 4,
)


def test_prompts_of_four_steps_show_the_budget() -> None:
    async def case(rig: Rig) -> None:
        fleet = rig.app.plane.fleet
        for number in range(32):
            text = " ".join(f"word{number}x{place}" for place in range(2000))  # about 6,000 tokens
            assert (await rig.ask(chat(text, stream=True))).status == 200
            await virtual_pause(1.0)
        mirrors = [replica.mirror for replica in fleet if replica.mirror is not None]
        assert [mirror.limits.max_num_batched_tokens for mirror in mirrors] == [512, 512]

    engines = tuple(replace(ENGINE, name=name) for name in ("e0", "e1"))
    config = replace(CONFIG, models=(ModelSpec("m", "plan"),))
    run(case, config, backends=0, engines=engines, on=looptime.new_event_loop, limit_s=300.0)
