"""`gateway calibrate offload` against simulated engines whose rates are known: each fraction of the layers is one of them."""

import asyncio
import shlex
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import looptime
import pytest
from typer.testing import CliRunner

from backends.command_template import check, names_layers
from backends.measure import MeasureError
from backends.mock import MockConfig, MockEngine
from backends.moves import MoveError
from backends.offload_measure import OffloadAsk, OffloadMeasured, measure_offload
from gateway.cli import cli
from gateway.config_file import load
from gateway.offload_command import footprint_toml
from gateway.swap_sections import FootprintSection
from predictor.catalog import EngineProfile, render
from predictor.cost import Place
from predictor.profile import EngineLimits, StepProfile
from tests.tools.programs import free_port

LAYERS = 30
LIMITS = EngineLimits(kv_blocks=4000, block_size=16, max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096)
FAST = StepProfile(base_s=8e-3, prefill_token_s=20e-6, decode_seq_s=0.0, kv_token_s=1e-6, form="linear")
TIMES = 6.0  # so many times as long takes all of it without a GPU


def truth(fraction: float) -> StepProfile:
    """Of an engine with that part of its layers on the device: the seconds of the others add up."""
    return FAST.scaled(fraction + (1 - fraction) * TIMES)


class SplitEngine:
    """A mover of a simulated engine, which listens at one port whatever the fraction."""

    home: Place = "disk"
    keeps = False
    parts = True

    def __init__(self, profile: Callable[[float], StepProfile]) -> None:
        self._profile = profile
        self._engine: MockEngine | None = None
        self.port = free_port()
        self.moves: list[float | str] = []

    async def where(self) -> Place | None:
        return "disk" if self._engine is None else "gpu"

    async def out(self, keep: bool) -> None:
        self.moves.append("out")
        if self._engine is not None:
            await self._engine.__aexit__(None, None, None)
        self._engine = None

    async def into(self, fraction: float) -> None:
        if self._engine is not None:
            await self._engine.__aexit__(None, None, None)
        self.moves.append(fraction)
        config = MockConfig(models=("m",), port=self.port, profile=self._profile(fraction), limits=LIMITS)
        self._engine = await MockEngine(config).__aenter__()

    async def prefetch(self) -> None: ...
    async def close(self) -> None:
        self.moves.append("close")

    def died(self) -> str:
        return ""


def measured(mover: SplitEngine, how: OffloadAsk) -> OffloadMeasured:
    """In virtual time."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(measure_offload(mover, f"http://127.0.0.1:{mover.port}", "", "m", how, lambda line: None))


def test_the_engines_own_rates_are_found_at_both_ends_and_between() -> None:
    mover = SplitEngine(truth)
    found = measured(mover, OffloadAsk())
    for fraction in (1.0, 0.5, 0.0):
        assert found.rate_per_s(fraction) == pytest.approx(1 / truth(fraction).step_s(0, 1, found.prompts[0] + 16), rel=0.02)
    for fraction in (0.9, 0.7, 0.2):
        for context in (100, 1500):
            assert found.curve.token_s(fraction, context) == pytest.approx(truth(fraction).step_s(0, 1, context), rel=0.03)
        assert found.curve.ttft_s(fraction, 1000) == pytest.approx(truth(fraction).step_s(1000, 0, 0), rel=0.05)
    assert abs(found.half_error) < 0.02
    assert mover.moves == [1.0, 0.5, 0.0, "out", "close"]


def test_the_keys_that_are_written_are_those_of_a_configuration_with_the_rates_of_prompts() -> None:
    written = tomllib.loads(footprint_toml("m/x", LAYERS, measured(SplitEngine(truth), OffloadAsk())))
    footprint = FootprintSection(**written["models"]["m/x"]["footprint"]).record()
    for rate, end in ((footprint.gpu_prompt_tokens_per_s, 1.0), (footprint.cpu_prompt_tokens_per_s, 0.0)):
        assert rate * truth(end).prefill_token_s == pytest.approx(1.0, rel=0.1)
    flat = measured(SplitEngine(lambda f: replace(truth(f), prefill_token_s=0.0)), OffloadAsk())
    assert "prompt" not in footprint_toml("m", LAYERS, flat), "a rate that was not seen is not written"


def test_an_engine_that_follows_another_law_is_told_by_the_half() -> None:
    found = measured(SplitEngine(lambda fraction: FAST.scaled({1.0: 1, 0.5: 8}.get(fraction, TIMES))), OffloadAsk())
    assert found.half_error == pytest.approx(3.5 / 8 - 1, abs=0.02)


def test_of_several_rounds_the_quickest_counts() -> None:
    mover = SplitEngine(lambda fraction: truth(fraction).scaled(3.0 if len(mover.moves) <= 3 else 1.0))  # a busy first round
    found = measured(mover, OffloadAsk(rounds=2))
    assert found.rate_per_s(1.0) == pytest.approx(1 / truth(1.0).step_s(0, 1, found.prompts[0] + 16), rel=0.02)
    assert abs(found.half_error) < 0.02
    assert mover.moves == [1.0, 0.5, 0.0] * 2 + ["out", "close"]


def test_answers_that_are_too_short_tell_no_rate() -> None:
    with pytest.raises(MeasureError, match="ended after 5 tokens"):
        measured(SplitEngine(truth), OffloadAsk(answer_tokens=5))


def test_a_load_that_fails_ends_it_and_lets_go() -> None:
    class Failing(SplitEngine):
        async def into(self, fraction: float) -> None:
            raise MoveError("no room")

    mover = Failing(truth)
    with pytest.raises(MoveError, match="no room"):
        measured(mover, OffloadAsk())
    assert mover.moves == ["out", "close"]


def profiles(folder: Path) -> None:
    """One file for each number of layers that will be asked for."""
    for layers in (LAYERS, LAYERS // 2, 0):
        profile = EngineProfile("split", truth(layers / LAYERS), LIMITS, 0.0, 0.0)
        (folder / f"{layers}.toml").write_text(render(profile, "for a test"))


def engine(folder: Path) -> list[str]:
    """The command of a managed process."""
    mock = [sys.executable, "-m", "gateway", "mock", "--port", "${PORT}", "--model", "${MODEL}"]
    return [*mock, "--speed", f"{folder}/${{LAYERS}}.toml"]


def test_the_command_measures_a_managed_process_and_writes_the_footprint(tmp_path: Path) -> None:
    """In real time, so that the figures are as good as the machine is quiet."""
    profiles(tmp_path)
    output, svg = tmp_path / "footprint.toml", tmp_path / "curve.svg"
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ["calibrate", "offload", "m/x", "--way", "process", "--url", url, "--layers", str(LAYERS), "--tokens", "12"]
    arguments += [
        "--repeats",
        "1",
        "--words",
        "64",
        "--output",
        str(output),
        "--svg",
        str(svg),
        "--command",
        shlex.join(engine(tmp_path)),
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    written = tomllib.loads(output.read_text())["models"]["m/x"]["footprint"]
    assert written["layers"] == LAYERS
    assert 1.5 < written["gpu_tokens_per_s"] / written["cpu_tokens_per_s"] < 20, "how exact it is: the tests in virtual time"
    assert 0.2 < written["gpu_tokens_per_s"] * truth(1.0).step_s(0, 1, 70) < 3
    table = [line.split() for line in result.output.splitlines() if line.strip().startswith(("100%", "50%", "0%"))]
    assert [len(row) for row in table if row[1] != "of"] == [5, 5, 5]
    assert output.read_text() in result.output
    lines = [one for one in ET.fromstring(svg.read_text()) if one.tag.endswith("polyline")]
    assert [len(one.get("points", "").split()) for one in lines] == [3, 41, 2], "measured, the curve, the straight line"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--layers", "30"], "give --url"),
        (["--url", "http://127.0.0.1:9"], "give --layers above 1"),
        (["--url", "http://127.0.0.1:9", "--layers", "30"], "Connect call failed"),
        (["--url", "http://127.0.0.1:9", "--layers", "30", "--way", "process", "--command", "x ${PORT}"], "in its command"),
        (["--url", "http://127.0.0.1:9", "--way", "process"], "needs a command"),
        (["--url", "http://127.0.0.1:9", "--way", "elsewhere"], "no way 'elsewhere'"),
        (["--config", "/nowhere/gateway.toml"], "nowhere"),
    ],
)
def test_what_cannot_be_measured_says_why(options: list[str], told: str) -> None:
    result = CliRunner().invoke(cli, ["calibrate", "offload", "m", *options])
    assert (result.exit_code, told in result.output) == (1, True), result.output


def test_the_examples_configuration_is_one() -> None:
    loaded = load(str(Path(__file__).parents[2] / "examples" / "offload" / "gateway.toml"))
    (backend,), (model,) = loaded.backends, loaded.models
    assert (backend.swap.way, model.name, model.footprint.layers) == ("process", "smollm2", 31)
    check(backend.swap.command)
    assert names_layers(backend.swap.command)


def test_a_configuration_tells_how(tmp_path: Path) -> None:
    profiles(tmp_path)
    config = tmp_path / "gateway.toml"
    url = f"http://127.0.0.1:{free_port()}"
    config.write_text(
        f'[[devices]]\nname = "gpu0"\nmemory_gb = 8\n[models.m.footprint]\nlayers = {LAYERS}\nweight_gb = 1\n'
        f'[[backends]]\nname = "a"\nurl = "{url}"\nmodels = ["m"]\n[backends.swap]\ndevice = "gpu0"\nway = "process"\n'
        f"command = {engine(tmp_path)}\n"
    )
    options = ["--config", str(config), "--tokens", "8", "--repeats", "1", "--words", "32"]
    result = CliRunner().invoke(cli, ["calibrate", "offload", "m", *options])
    assert result.exit_code == 0, result.output
    assert f"layers = {LAYERS}\n" in result.output
    other = CliRunner().invoke(cli, ["calibrate", "offload", "other", *options])
    assert (other.exit_code, "no backend of other" in other.output) == (1, True)
