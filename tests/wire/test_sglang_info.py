"""What an SGLang server tells of itself: sizes reach the gateway's picture of it, and its KV events are joined by session."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import looptime
import pytest

from gateway import beside
from gateway.config import BackendSpec, Health, ModelSpec
from predictor.profile import EngineLimits
from predictor.sidecar import SidecarConfig
from tests.core.test_sglang_load import BUSY, File
from tests.wire.kit import CONFIG, Rig, chat, run, until, virtual_pause
from tests.wire.scripted import Call, ScriptedBackend, well

SAID = {
    "version": "0.5.23",
    "enable_priority_scheduling": False,
    "dp_size": 1,
    "page_size": 16,
    "chunked_prefill_size": 512,
    "max_total_num_tokens": 65536,
    "internal_states": [{"effective_max_running_requests_per_dp": 32}],
}


class Server:
    """An SGLang server's own routes on a scripted backend; `silent`: its schedulers are too busy to be asked."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.said = SAID
        self.silent = False
        self.looks = 0
        backend.play = self.play

    def play(self, call: Call) -> None:
        if call.target == b"/model_info":
            call.answer(b'{"is_generation":true}')
        elif call.target == b"/server_info":
            self.looks += 1
            if not self.silent:
                call.answer(json.dumps(self.said).encode())
        elif call.target.startswith(b"/v1/responses"):
            call.answer(b'{"id":"resp_1","object":"response","status":"completed","output":[]}')
        elif call.target == b"/get_server_info":
            self.looks += 1
        else:
            well(call)


def limits(rig: Rig) -> EngineLimits | None:
    (replica,) = rig.app.plane.fleet
    return replica.mirror.limits if replica.mirror is not None else None


def sglang(made: BackendSpec) -> BackendSpec:
    return replace(made, engine="sglang")


def test_sizes_come_stay_and_change() -> None:
    backend = ScriptedBackend("b0")
    server = Server(backend)
    config = replace(CONFIG, models=(ModelSpec("m", "plan"),), health=Health(interval_s=0.1, timeout_s=0.5))

    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat("hi", stream=True))).status == 200
        assert limits(rig) == EngineLimits(4096, 16, 32, 512, 65536)
        server.silent = True
        looks = server.looks
        await until(lambda: server.looks >= looks + 4, limit_s=60.0)
        await virtual_pause(2.0)
        (replica,) = rig.app.plane.fleet
        assert replica.state == "ready", "that it is late with this is no failure"
        assert (replica.identity.version, replica.identity.scheduling) == ("0.5.23", "fcfs")
        assert (await rig.ask(chat("hi", stream=True))).status == 200
        assert limits(rig) == EngineLimits(4096, 16, 32, 512, 65536)
        server.said, server.silent = SAID | {"chunked_prefill_size": 2048}, False
        await until(lambda: replica.identity.sizes.max_num_batched_tokens == 2048, limit_s=60.0)
        assert (await rig.ask(chat("hi", stream=True))).status == 200
        assert limits(rig) == EngineLimits(4096, 16, 32, 2048, 65536)

    run(case, config, backends=(backend,), spec=sglang, on=looptime.new_event_loop, limit_s=300.0)


def test_settings_win() -> None:
    backend = ScriptedBackend("b0")
    Server(backend)
    config = replace(CONFIG, models=(ModelSpec("m", "plan"),))

    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat("hi", stream=True))).status == 200
        assert limits(rig) == EngineLimits(100, 16, 32, 256, 1600)

    run(case, config, backends=(backend,), spec=lambda made: replace(sglang(made), kv_blocks=100, max_num_batched_tokens=256))


@pytest.mark.parametrize(("keeps", "publishes"), [(False, True), (True, True), (False, False)])
def test_a_body_names_its_session_where_kv_events_repeat_it(keeps: bool, publishes: bool) -> None:
    backend = ScriptedBackend("b0")
    server = Server(backend)
    server.said = SAID | {"enable_session_radix_cache": keeps}

    async def case(rig: Rig) -> None:
        asked = chat("hi", stream=True)
        messages = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        for path, body in (
            ("/v1/chat/completions", asked),
            ("/v1/chat/completions", asked | {"session_id": "own"}),
            ("/v1/chat/completions", asked | {"session_params": {"id": "own"}}),
            ("/v1/completions", {"model": "m", "prompt": "hi"}),
            ("/v1/messages", messages),
        ):
            assert (await rig.ask(body, path)).status == 200
        calls = [call for call in backend.calls if call.method == b"POST"]
        ids = [call.headers[b"x-request-id"].decode() for call in calls]
        added = publishes and not keeps
        expected = [ids[0] if added else None, "own", None, ids[3] if added else None, None]
        assert [call.json.get("session_id") for call in calls] == expected
        rest = [{name: value for name, value in call.json.items() if name != "session_id"} for call in calls]
        assert [one["model"] for one in rest] == ["m"] * 5
        assert rest[2]["session_params"] == {"id": "own"}

    events = "tcp://127.0.0.1:9" if publishes else ""
    run(case, CONFIG, backends=(backend,), spec=lambda made: replace(sglang(made), kv_events=events))


@pytest.mark.parametrize("order", [{"enable_priority_scheduling": True}, {}], ids=["by priority", "as they come"])
def test_a_stored_response_is_asked_for_without_a_body(order: dict[str, object]) -> None:
    """Whatever is added to bodies."""
    backend = ScriptedBackend("b0")
    server = Server(backend)
    server.said = SAID | {"enable_session_radix_cache": False} | order

    async def case(rig: Rig) -> None:
        assert (await rig.ask({"model": "m", "input": "hi", "priority": 7}, "/v1/responses")).status == 200
        assert (await rig.ask(path="/v1/responses/resp_1", method="GET")).status == 200
        asked, stored = (call for call in backend.calls if call.target.startswith(b"/v1/responses"))
        number = asked.json["priority"]
        assert (number < -(10**9)) if order else (number == 7)
        assert asked.json["session_id"]
        assert stored.body == b""

    config = replace(CONFIG, models=(ModelSpec("m", "plan"),))
    run(case, config, backends=(backend,), spec=lambda made: replace(sglang(made), kv_events="tcp://127.0.0.1:9"))


def test_the_sidecar_command_asks_the_server_for_its_sizes(tmp_path: Path) -> None:
    backend = ScriptedBackend("b0")
    server = Server(backend)
    server.said = SAID | {"context_length": 2048}
    state = File(tmp_path / "loads.shm")
    now_s = time.time()  # as SGLang stamps
    state.write(0, BUSY | {"timestamp": now_s})

    async def main() -> None:
        await backend.start()
        told = await beside.told_sizes("sglang", backend.url + "/", "key")
        assert sorted(told) == ["chunk_tokens=512", "max_model_len=2048", "page_tokens=16"]
        sizes = [*told, "chunk_tokens=256"]  # what is given wins
        made = beside.make_sidecar("sglang", str(state.path), "demo-fast", sizes, SidecarConfig(port=0))
        async with made, aiohttp.ClientSession() as client, client.get(f"{made.url}/snapshot") as answer:
            limits = (await answer.json())["state"]["limits"]
        assert (limits["max_num_batched_tokens"], limits["block_size"], limits["max_model_len"]) == (256, 16, 2048)
        for engine, url in (("vllm", backend.url), ("sglang", "http://127.0.0.1:9")):
            with pytest.raises(ValueError, match=r"itself|127.0.0.1:9"):
                await beside.told_sizes(engine, url, "")
        await backend.close()

    asyncio.run(main())
