"""Two engines of one model that take different lengths: what only one of them can serve goes there, by every policy."""

from collections import Counter
from dataclasses import replace

import pytest

from gateway.config import ModelSpec, PolicyName
from tests.wire.kit import CONFIG, INSTANT, Rig, run

SMALL = replace(INSTANT, name="small", limits=replace(INSTANT.limits, max_model_len=512))
LARGE = replace(INSTANT, name="large")


@pytest.mark.parametrize("policy", ["auto", "round_robin", "consistent_hash", "po2"])
def test_a_long_request_goes_where_it_fits(policy: PolicyName) -> None:
    async def served(rig: Rig, words: int, max_tokens: int) -> Counter[tuple[int, bytes]]:
        found: Counter[tuple[int, bytes]] = Counter()
        for i in range(12):
            said = [{"role": "user", "content": f"{i} " + "word " * words}]
            answer = await rig.ask({"model": "demo", "user": str(i), "max_tokens": max_tokens, "messages": said})
            found[answer.status, answer.headers[b"x-leeway-backend"]] += 1
        return found

    async def case(rig: Rig) -> None:
        assert set(await served(rig, 1500, 4)) == {(200, b"large")}
        assert set(await served(rig, 5, 600)) == {(200, b"large")}
        assert {status for status, _ in await served(rig, 5, 4)} == {200}
        listed = (await rig.ask(path="/v1/models", method="GET")).json
        assert listed["data"][0]["max_model_len"] == LARGE.limits.max_model_len

    run(case, replace(CONFIG, models=(ModelSpec("*", policy),)), backends=0, engines=(SMALL, LARGE))
