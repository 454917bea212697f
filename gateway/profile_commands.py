"""`gateway calibrate` and `gateway profile`: measure an engine, look at profiles, make the table anew. Shell.

`gateway calibrate URL` is short for `gateway calibrate engine URL`.

Like the other commands, each imports what it needs when it runs.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.offload_command import offload


class _EngineUnlessNamed(TyperGroup):
    """A group whose first command needs not be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


calibrate_cli = typer.Typer(
    cls=_EngineUnlessNamed,
    help="Measure an engine (calibrate URL), or a model with a part of its layers (calibrate offload).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
profile_cli = typer.Typer(help="Step times of engines: list, show, fit.", no_args_is_help=True, rich_markup_mode=None)
Form = Annotated[str, typer.Option(help="Step form: h or linear.")]


def _fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise typer.Exit(1)


@calibrate_cli.command("engine")
def calibrate(
    url: Annotated[str, typer.Argument(help="Base URL of the engine's OpenAI API. It should be idle otherwise.")],
    output: Annotated[str, typer.Option(help="The file to write.")] = "profile.toml",
    name: Annotated[str, typer.Option(help="The profile's name; MODEL/tpN/GPU is checked against the hardware.")] = "",
    api_key: Annotated[str, typer.Option(envvar="LEEWAY_ENGINE_KEY", help="The engine's API key.")] = "",
    max_num_seqs: Annotated[int, typer.Option(min=0, help="As the engine was started with; 0: as it says, else 256.")] = 0,
    max_num_batched_tokens: Annotated[int, typer.Option(min=0, help="... likewise; 0: as it says, else 2048.")] = 0,
    kv_blocks: Annotated[int, typer.Option(min=0, help="0: as it says.")] = 0,
    block_size: Annotated[int, typer.Option(min=0, help="0: as it says.")] = 0,
    seconds: Annotated[float, typer.Option(min=1.0, help="About how long it may take.")] = 60.0,
) -> None:
    """Measure a live engine for about a minute and write a profile of it."""
    from backends.measure import MeasureError, Wanted, measure
    from predictor.catalog import EngineProfile, ProfileError, check, hardware_of, render

    wanted = Wanted(max_num_seqs, max_num_batched_tokens, kv_blocks, block_size, seconds)
    try:
        found = asyncio.run(measure(url, api_key, wanted, lambda line: print(line, flush=True)))
        name = name or found.model
        hardware = hardware_of(name)
        profile = EngineProfile(name, found.profile, found.limits, found.error, found.overhead_s, hardware, found.steps)
        check(profile)
        Path(output).write_text(render(profile, f"Measured by `gateway calibrate` on {found.model}."))
    except (MeasureError, ProfileError, ValueError, OSError) as error:
        _fail(str(error))
    else:
        if found.busy:
            print("other requests ran at the beginning: they are measured with it", file=sys.stderr)
        print(f"{output}: {found.profile}, mean error {found.error:.1%}, overhead {found.overhead_s * 1e3:.1f} ms")


calibrate_cli.command("offload")(offload)


@profile_cli.command("list")
def list_profiles(
    words: Annotated[list[str] | None, typer.Argument(help="Only names that contain all of these.")] = None,
    form: Form = "h",
) -> None:
    """Names of the profiles that come with it, with the time of some steps and the fit's error."""
    from predictor.catalog import engine_profile, names

    print(f"{'name':32}{'one decoder':>12}{'64 at 1k':>10}{'512 prompt':>12}{'KV tokens':>11}{'error':>7}")
    for name in names():
        if all(word.lower() in name for word in words or ()):
            profile = engine_profile(name, form)
            step, kv_tokens = profile.step, profile.limits.kv_blocks * profile.limits.block_size
            times = (step.step_s(0, 1, 512), step.step_s(0, 64, 65_536), step.step_s(512, 0, 0, 131_072))
            one, many, prompt = (f"{time * 1e3:.1f} ms" for time in times)
            print(f"{name:32}{one:>12}{many:>10}{prompt:>12}{kv_tokens:>11}{profile.error:>7.1%}")


@profile_cli.command()
def show(name: Annotated[str, typer.Argument(help="A name of the list, or a .toml file.")], form: Form = "h") -> None:
    """One profile, as a file that can be edited and named in the configuration."""
    from predictor.catalog import ProfileError, engine_profile, render

    try:
        print(render(engine_profile(name, form), name), end="")
    except ProfileError as error:
        _fail(str(error))


@profile_cli.command("fit")
def fit_profiles(
    model: Annotated[list[str] | None, typer.Option(help="Only this model (repeatable).")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Only this GPU (repeatable).")] = None,
    output: Annotated[str, typer.Option(help="The file to write; - for standard output.")] = "-",
) -> None:
    """Make the table anew from aiconfigurator-core's operator tables (extra `profiles`)."""
    from gateway.profile_fit import choices, fit_table
    from predictor.catalog import ProfileError

    try:
        text = fit_table(choices(model or (), gpu or ()), lambda line: print(line, file=sys.stderr, flush=True))
        if output == "-":
            print(text, end="")
        else:
            Path(output).write_text(text)
    except (ProfileError, OSError) as error:
        _fail(str(error))
