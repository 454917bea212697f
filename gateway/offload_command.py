"""`gateway calibrate offload`: what a model does with all of its layers on the GPU and with none. Shell.

Like the other commands, it imports what it needs when it runs.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

if TYPE_CHECKING:
    from backends.moves import MoverSpec, Way
    from backends.offload_measure import OffloadAsk, OffloadMeasured
    from predictor.offload import OffloadCurve

SHOWN = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0)
FINE = 40  # steps of the drawn curve
EQUAL = 1.05  # a GPU that is not even so many times as fast is none


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(1)


def offload(
    model: Annotated[str, typer.Argument(help="The model's name in the engine.")],
    config: Annotated[str, typer.Option(help="Take what follows from this configuration's [backends.swap].")] = "",
    url: Annotated[str, typer.Option(help="The engine's base URL; of a process: where it will listen.")] = "",
    way: Annotated[str, typer.Option(help="What moves it: ollama, or process with --command.")] = "ollama",
    command: Annotated[str, typer.Option(help="Command with ${PORT}, ${LAYERS} and ${MODEL}, quoted as for a shell.")] = "",
    layers: Annotated[int, typer.Option(min=0, help="Layers of the model; 0: as the configuration says.")] = 0,
    api_key: Annotated[str, typer.Option(envvar="LEEWAY_ENGINE_KEY", help="The engine's API key.")] = "",
    start_s: Annotated[float, typer.Option(min=1.0, help="Seconds that a load may take.")] = 600.0,
    words: Annotated[int, typer.Option(min=32, help="Words of the long prompt; it must fit the engine's context.")] = 256,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is asked.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Times through all fractions: more on a machine that is not quiet.")] = 1,
    log: Annotated[str, typer.Option(help="Log file of the process.")] = "",
    output: Annotated[str, typer.Option(help="Also write the [models.NAME.footprint] keys to this file.")] = "",
    svg: Annotated[
        str, typer.Option(help="Also draw the curve, what was measured and the straight line, into this file.")
    ] = "",
) -> None:
    """Measure a model with all its layers on the GPU, half and none, on an engine that can; print what lies between."""
    from backends.measure import MeasureError
    from backends.moves import MoveError, MoverSpec, SwapSpec
    from backends.offload_measure import OffloadAsk
    from gateway.config_file import ConfigError

    try:
        if config:
            spec, api_key = _configured(config, model, layers)
        else:
            swap = SwapSpec(way=cast("Way", way), command=tuple(shlex.split(command)), log=log, start_s=start_s)
            spec = MoverSpec(swap, url, model, layers)
        ask = OffloadAsk(long_words=words, answer_tokens=tokens, repeats=repeats, rounds=rounds)
        found = asyncio.run(_measure(spec, api_key, ask, lambda line: print(line, flush=True)))
        text = footprint_toml(model, spec.layers, found)
        if output:
            Path(output).write_text(text)
        if svg:
            Path(svg).write_text(curve_svg(model, found), encoding="utf-8")
    except (MeasureError, MoveError, ConfigError, ValueError, OSError) as error:
        _fail(str(error))
    _show(found)
    print(f"\n{text}", end="")


def _configured(path: str, model: str, layers: int) -> tuple["MoverSpec", str]:
    """What a configuration says of the first backend that can split this model, and its key. Raises ConfigError, ValueError."""
    from backends.moves import MoverSpec
    from gateway import config_file

    loaded = config_file.load(path)
    layers = layers or max((one.footprint.layers for one in loaded.models if one.name == model), default=1)
    for backend in loaded.backends:
        swap = backend.swap
        if model in backend.models and (swap.way == "ollama" or swap.way == "process"):
            return MoverSpec(swap, backend.url, model, layers), backend.api_key
    raise ValueError(f"{path}: no backend of {model} has swap way ollama or process")


async def _measure(spec: "MoverSpec", key: str, ask: "OffloadAsk", tell: Callable[[str], None]) -> "OffloadMeasured":
    from backends.control_http import BackendControl, ControlSession
    from backends.movers import mover_for
    from backends.offload_measure import measure_offload

    if not spec.url:
        raise ValueError("give --url, or --config")
    session = ControlSession(lambda address: True)
    try:
        mover = mover_for(spec, BackendControl(session, spec.url, key, max(spec.swap.start_s, spec.swap.stop_s)))
        if not mover.parts:
            raise ValueError("it cannot be split: give --layers above 1 and, for a process, ${LAYERS} in its command")
        return await measure_offload(mover, spec.url, key, spec.model, ask, tell)
    finally:
        await session.close()


def _show(found: "OffloadMeasured") -> None:
    measured = dict(found.ends)
    short, long = found.prompts
    print(
        f"\n{'layers':>7}{'tokens/s':>10}{'measured':>10}{f'TTFT {short}':>12}{f'TTFT {long}':>12}   (prompt tokens; seconds)"
    )
    for fraction in SHOWN:
        end = measured.get(fraction)
        seen = f"{1 / end.token_s[0][1]:.3g}" if end else ""
        rate = found.curve.rate_per_s(fraction, measured[1.0].token_s[0][0])
        ttfts = "".join(f"{found.curve.ttft_s(fraction, tokens):>12.3g}" for tokens in (short, long))
        print(f"{fraction:>7.0%}{rate:>10.3g}{seen:>10}{ttfts}")
    print(f"at half of the layers the curve is off by {found.half_error:+.1%}")
    if found.curve.ratio() < EQUAL:
        print("both ends are about equally fast: is there a GPU, and does the engine use it?", file=sys.stderr)


def curve_svg(model: str, found: "OffloadMeasured") -> str:
    """The curve after the short prompt, and the straight line that it is not."""
    from gateway.sim.html import Plot, exact, svg

    context = dict(found.ends)[1.0].token_s[0][0]
    at = [i / FINE for i in range(FINE + 1)]
    curve = [(x, found.curve.rate_per_s(x, context)) for x in at]
    (_, slow), (_, fast) = curve[0], curve[-1]
    lines = {
        "measured": sorted((fraction, 1 / end.token_s[0][1]) for fraction, end in found.ends),
        "T1 / (f + (1 - f) r)": curve,
        "straight line": [(x, slow + (fast - slow) * x) for x in (0.0, 1.0)],
    }
    drawn = tuple(exact(name, points) for name, points in lines.items())
    return svg(Plot(f"{model}: tokens per second", "part of the layers on the GPU", drawn)) + "\n"


def footprint_toml(model: str, layers: int, found: "OffloadMeasured") -> str:
    """The keys of what was measured."""
    return (
        "# Measured by `gateway calibrate offload`: tokens per second of one sequence, all layers on the GPU and none.\n"
        f"[models.{json.dumps(model)}.footprint]\n"
        f"layers = {layers}\n"
        f"gpu_tokens_per_s = {found.rate_per_s(1.0):.4g}\n"
        f"cpu_tokens_per_s = {found.rate_per_s(0.0):.4g}\n" + _prompts(found.curve)
    )


def _prompts(curve: "OffloadCurve") -> str:
    """The rates of prompts, where the longer one took longer on both sides."""
    if min(curve.gpu_prompt_s, curve.cpu_prompt_s) <= 0:
        return ""
    return f"gpu_prompt_tokens_per_s = {1 / curve.gpu_prompt_s:.4g}\ncpu_prompt_tokens_per_s = {1 / curve.cpu_prompt_s:.4g}\n"
