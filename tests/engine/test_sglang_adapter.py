"""SGLang's adapter against a stub made of the wheel's own request models: no SGLang engine runs here."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import openai
import pytest

from backends.base import Sizes
from gateway.app import App
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen, ModelSpec
from predictor.profile import EngineLimits
from tests.engine.engine_http import SURELY_S
from tests.engine.engine_run import PROBE_S, ROOT, free_port

STUB = Path(__file__).with_name("sglang_stub.py")


@pytest.fixture(scope="module")
def stubs() -> Iterator[tuple[str, str]]:
    """(a generating stub's URL, an embedding stub's URL)."""
    python = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
    ports = (free_port(), free_port())
    processes = [
        subprocess.Popen([python, STUB, str(port), kind], stderr=subprocess.PIPE, text=True)
        for port, kind in zip(ports, ("generate", "embed"), strict=True)
    ]
    try:
        for process in processes:
            assert process.stderr is not None
            said = next((line for line in process.stderr if "Uvicorn running" in line), "")
            assert said, "the stub ended before it listened"
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def through_gateway(stubs: tuple[str, str], work) -> None:  # type: ignore[no-untyped-def]
    """Run `work(app, client)` with a gateway in front of both stubs."""
    config = GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
        backends=(
            BackendSpec("gen", stubs[0], api_key="backend-key"),
            BackendSpec("emb", stubs[1]),
        ),
        models=(ModelSpec("sglang-stub", aliases=("alias",)),),
        admin=Admin(key="k"),
        health=Health(timeout_s=PROBE_S),
    )

    async def run() -> None:
        app = App(config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await app.start()
        base = f"http://127.0.0.1:{app.plane.port}/v1"
        async with asyncio.timeout(SURELY_S), openai.AsyncOpenAI(base_url=base, api_key="client-key", max_retries=0) as client:
            while not all(replica.state == "ready" for replica in app.plane.fleet):
                await asyncio.sleep(0)
            await work(app, client)
        await app.close()

    asyncio.run(run())


async def seen(url: str) -> list[dict[str, object]]:
    """What the stub has read."""
    async with httpx.AsyncClient(timeout=SURELY_S) as client:
        return list((await client.get(f"{url}/seen")).json())


def test_it_is_recognised_with_version_and_kind(stubs: tuple[str, str]) -> None:
    async def work(app: App, _: openai.AsyncOpenAI) -> None:
        found = {replica.name: replica.identity for replica in app.plane.fleet}
        assert {identity.engine for identity in found.values()} == {"sglang"}
        assert found["gen"].version == "0.5.23"
        assert (found["gen"].kind, found["emb"].kind) == ("generate", "pooling")
        assert found["gen"].max_model_len == 4096

    through_gateway(stubs, work)


def test_its_sizes_and_order_are_read(stubs: tuple[str, str]) -> None:
    async def work(app: App, client: openai.AsyncOpenAI) -> None:
        found = {replica.name: replica for replica in app.plane.fleet}
        assert found["gen"].identity.sizes == Sizes(4000, 16, 48, 1024)
        assert found["gen"].scheduling == "fcfs"
        await client.chat.completions.create(model="sglang-stub", messages=[{"role": "user", "content": "hi"}])
        assert app.plane.desks.engines.mirror(found["gen"]).limits == EngineLimits(4000, 16, 48, 1024, 4096)

    through_gateway(stubs, work)


def test_chat_plain_and_streamed(stubs: tuple[str, str]) -> None:
    async def work(_: App, client: openai.AsyncOpenAI) -> None:
        messages = [{"role": "user", "content": "hi"}]
        plain = await client.chat.completions.create(model="alias", messages=messages, extra_body={"priority": 3, "rid": "r1"})
        assert plain.choices[0].message.content == "Hello"
        stream = await client.chat.completions.create(model="sglang-stub", messages=messages, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
        assert all(chunk.choices for chunk in chunks), "the usage chunk was ours, not the client's"
        asked = await client.chat.completions.create(
            model="sglang-stub", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk.usage.total_tokens async for chunk in asked if chunk.usage] == [7]
        plain_seen, stream_seen, _asked_seen = (await seen(stubs[0]))[-3:]
        assert plain_seen["body"] == {"model": "sglang-stub", "messages": messages, "priority": 3, "rid": "r1"}
        assert stream_seen["body"]["stream_options"] == {"include_usage": True}  # type: ignore[index]
        assert plain_seen["headers"]["authorization"] == "Bearer backend-key"  # type: ignore[index]

    through_gateway(stubs, work)


def test_pooling_routes_go_to_the_pooling_server(stubs: tuple[str, str]) -> None:
    async def work(app: App, client: openai.AsyncOpenAI) -> None:
        for _ in range(4):
            made = await client.embeddings.create(model="sglang-stub", input="text", encoding_format="float")
            assert made.data[0].embedding == [0.5, 0.25]
        dispatched = {replica.name: replica.dispatched_total for replica in app.plane.fleet}
        assert dispatched == {"gen": 0, "emb": 4}

    through_gateway(stubs, work)


def test_errors_pass_unchanged(stubs: tuple[str, str]) -> None:
    async def work(app: App, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/chat/completions", body={"model": "sglang-stub", "messages": 3}, cast_to=object)
        assert caught.value.response.json() == {
            "object": "error",
            "message": "Input should be a valid array",
            "type": "Bad Request",
            "param": None,
            "code": 400,
        }
        assert all(replica.failed_total == 0 for replica in app.plane.fleet), "requests; a probe may be late"

    through_gateway(stubs, work)


def test_a_stored_response_is_found_where_it_was_made(stubs: tuple[str, str]) -> None:
    async def work(_: App, client: openai.AsyncOpenAI) -> None:
        made = await client.responses.create(model="sglang-stub", input="hi")
        assert (await client.responses.retrieve(made.id)).id == made.id

    through_gateway(stubs, work)
