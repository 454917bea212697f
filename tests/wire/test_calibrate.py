"""`gateway calibrate` against the simulated engine: in virtual time the figures found are the engine's own."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import looptime
import pytest
from aiohttp import web
from typer.testing import CliRunner

from backends.measure import Measured, MeasureError, Meter, Wanted, cache_size, measure
from backends.mock import MockConfig, MockEngine
from gateway.cli import cli
from predictor.catalog import engine_profile
from predictor.profile import EngineLimits, StepProfile

TRUTH = StepProfile(6.6e-3, 18e-6, 6e-6, 41e-9, pair_s=900e-12, knee_tokens=160, form="h")
LIMITS = EngineLimits(kv_blocks=8000, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=8192)
CONFIG = MockConfig(profile=TRUTH, limits=LIMITS, models=("demo",))


def measured(config: MockConfig, wanted: Wanted) -> tuple[Measured, float]:
    """What a measurement found, and how long it took on the engine's clock."""

    async def run() -> tuple[Measured, float]:
        loop = asyncio.get_running_loop()
        async with MockEngine(config) as engine, aiohttp.ClientSession() as session:
            begin_s = loop.time()
            found = await Meter(session, engine.url, "").measure(wanted, lambda line: None)
            return found, loop.time() - begin_s

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(run())


def test_the_engines_own_figures_are_found_within_the_time() -> None:
    found, took_s = measured(CONFIG, Wanted(max_num_seqs=64))
    assert took_s < 60
    assert (found.model, found.limits.kv_blocks, found.limits.block_size) == ("demo", 8000, 16)
    assert (found.limits.max_model_len, found.busy) == (8192, False)
    assert found.error < 0.02
    assert found.overhead_s < 1e-3
    for shape in ((0, 1, 500, 0.0), (0, 32, 32_000, 0.0), (1000, 20, 20_000, 500_000.0)):
        assert found.profile.step_s(*shape) == pytest.approx(TRUTH.step_s(*shape), rel=0.05)


def test_a_slow_engine_is_measured_as_far_as_the_time_allows() -> None:
    slow = replace(CONFIG, profile=TRUTH.scaled(40))
    found, took_s = measured(slow, Wanted(max_num_seqs=64, budget_s=60.0))
    assert took_s < 130
    assert found.profile.step_s(0, 4, 500) == pytest.approx(40 * TRUTH.step_s(0, 4, 500), rel=0.1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1052"} 1.0\n', (1052, 16)),
        ('vllm:cache_config_info{block_size="None",engine="0",num_gpu_blocks="1052"} 1.0\n', (0, 0)),
        ('sglang:max_total_num_tokens{model="m"} 5000.0\n', (5000, 1)),
        ("python_info 1.0\n", (0, 0)),
    ],
)
def test_the_caches_size_is_read_from_metrics(text: str, size: tuple[int, int]) -> None:
    assert cache_size(text) == size


INFO = {
    "page_size": 16,
    "chunked_prefill_size": 1024,
    "max_total_num_tokens": 64_000,
    "internal_states": [{"effective_max_running_requests_per_dp": 48}],
}


@pytest.mark.parametrize(
    ("info", "metrics", "wanted", "limits"),
    [
        (INFO, "", Wanted(), EngineLimits(4000, 16, 48, 1024, 4096)),
        (INFO, "", Wanted(8, 512, 100), EngineLimits(100, 16, 8, 512, 1600)),
        (None, 'sglang:max_total_num_tokens{model="m"} 5000.0', Wanted(), EngineLimits(5000, 1, 256, 2048, 4096)),
        (
            {"vllm_config": {}},
            'sglang:max_total_num_tokens{model="m"} 5000.0',
            Wanted(),
            EngineLimits(5000, 1, 256, 2048, 4096),
        ),
        (None, "", Wanted(), None),
        ([1], "", Wanted(), None),
    ],
)
def test_what_a_server_says_of_its_limits_is_used(
    info: object, metrics: str, wanted: Wanted, limits: EngineLimits | None
) -> None:
    async def page(request: web.Request) -> web.Response:
        text = json.dumps(info) if request.path == "/server_info" and info is not None else metrics
        return web.Response(text=text, status=200 if text and (request.path != "/server_info" or info is not None) else 404)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{page}", page)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            meter = Meter(session, f"http://127.0.0.1:{runner.addresses[0][1]}", "")
            if limits is not None:
                assert await meter._limits(wanted, 4096) == (limits, False)
            else:
                with pytest.raises(MeasureError, match=r"/metrics answered 404"):
                    await meter._limits(wanted, 4096)
        await runner.cleanup()

    asyncio.run(run())


async def _say_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
    writer.close()


def test_what_cannot_be_measured_says_why() -> None:
    async def run() -> None:
        with pytest.raises(MeasureError, match="/v1/models"):
            await measure("http://127.0.0.1:9", "", Wanted(), lambda line: None)
        server = await asyncio.start_server(_say_little, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(MeasureError, match="lists no model"):
                await measure(f"http://127.0.0.1:{port}", "", Wanted(), lambda line: None)
        async with MockEngine(replace(CONFIG, api_key="secret")) as engine:
            with pytest.raises(MeasureError, match="401"):
                await measure(engine.url, "wrong", Wanted(), lambda line: None)

    asyncio.run(run())


def test_the_command_writes_a_profile_that_can_be_named(tmp_path: Path) -> None:
    """In real time, so that the figures found are as good as the machine is quiet."""
    path = tmp_path / "found.toml"

    async def run() -> None:
        async with MockEngine(CONFIG) as engine:
            arguments = ["calibrate", engine.url, "--output", str(path), "--seconds", "1", "--max-num-seqs", "4"]
            result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
        assert result.exit_code == 0, result.output

    asyncio.run(run())
    found = engine_profile(str(path))
    assert (found.name, found.limits.kv_blocks) == ("demo", 8000)
    assert 0.5 < found.step.step_s(0, 1, 100) / TRUTH.step_s(0, 1, 100) < 5
    assert len(found.steps) >= 6


def test_profiles_are_listed_and_shown() -> None:
    runner = CliRunner()
    listed = runner.invoke(cli, ["profile", "list", "llama-3.1-8b", "h100"])
    assert [line.split()[0] for line in listed.output.splitlines()] == ["name", "llama-3.1-8b/tp1/h100"]
    shown = runner.invoke(cli, ["profile", "show", "llama-2-7b/tp1/a30", "--form", "linear"])
    assert "base_ms = 19.37" in shown.output
    assert runner.invoke(cli, ["profile", "show", "none"]).exit_code == 1
    assert runner.invoke(cli, ["profile", "fit", "--model", "none"]).exit_code == 1
