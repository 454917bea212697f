"""The commands of `gateway`. Each imports what it needs when it runs, so that `--help` is quick."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gateway.profile_commands import calibrate_cli, profile_cli
from gateway.tagger.commands import tagger_cli

cli = typer.Typer(
    name="gateway",
    help="An LLM gateway for vLLM and SGLang servers. Settings: environment over file over defaults.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Config = Annotated[str, typer.Argument(help="The configuration file; gateway.toml in the repository shows every option.")]


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(1)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except OSError as error:
        _fail(f"cannot listen: {error.strerror or error}")


@cli.command()
def serve(config: Config) -> None:
    """Run the gateway. SIGHUP reloads, SIGTERM drains, a second SIGTERM ends at once."""
    from gateway import serving

    problem = serving.run(config)
    if problem:
        _fail(problem)


@cli.command()
def check(config: Config) -> None:
    """Check a configuration file: all problems at once, or the effective settings with secrets masked."""
    from gateway import config_file
    from gateway.config import masked

    try:
        loaded = config_file.load(config)
    except config_file.ConfigError as error:
        _fail(str(error))
    else:
        print(json.dumps(masked(loaded), indent=2))


@cli.command()
def schema() -> None:
    """Print the JSON schema of gateway.toml."""
    from gateway import config_file

    print(json.dumps(config_file.json_schema(), indent=2))


@cli.command()
def demo(
    data: Annotated[str, typer.Option(help="Address of the data listener.")] = "127.0.0.1:8080",
    control: Annotated[str, typer.Option(help="Address of the control listener.")] = "127.0.0.1:8081",
    real: Annotated[
        bool, typer.Option("--real", help="vLLM on the CPU with a small real model (make engine installs it).")
    ] = False,
    swaps: Annotated[bool, typer.Option("--swaps", help="Three models that share one simulated device.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Show the access log.")] = False,
    engine: Annotated[str, typer.Option(help="With --real: the engine's environment.")] = ".engine",
    models: Annotated[str, typer.Option(help="With --real: the folder of checkpoints.")] = ".models",
) -> None:
    """Run a gateway with three simulated engines, and print what to try. No GPU, no model, no configuration."""
    from gateway import demo as demos

    if swaps:
        from gateway.demo_swaps import sharing

        _run(sharing(data, control, log))
        return
    if not real:
        _run(demos.simulated(data, control, log))
        return
    try:
        _run(demos.real(data, control, log, engine, models))
    except demos.LocalVllmError as error:
        _fail(str(error))


@cli.command()
def mock(
    port: Annotated[int, typer.Option(help="Port; 0 = any free one.")] = 8100,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[list[str] | None, typer.Option(help="Served model name (repeatable).")] = None,
    speed: Annotated[str, typer.Option(help="demo-fast, demo-slow, instant or a profile's name.")] = "demo-fast",
    name: Annotated[str, typer.Option(help="The engine's name in its answers.")] = "mock",
    pooling: Annotated[bool, typer.Option("--pooling", help="Serve embeddings and scores instead of text.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the answer lengths.")] = 0,
    api_key: Annotated[str, typer.Option(help="Key that requests must carry.")] = "",
    enable_prefix_caching: Annotated[bool, typer.Option(help="Compute what prompts begin with alike only once.")] = True,
    sidecar_port: Annotated[int, typer.Option(help="Port of a sidecar beside it; 0 = any free one.")] = -1,
) -> None:
    """Run one simulated vLLM server: OpenAI and Anthropic faces, /metrics, continuous batching in real time."""
    from backends.mock import MockConfig, serve_mock
    from predictor.catalog import ProfileError, engine_profile
    from predictor.sidecar import SidecarConfig

    try:
        chosen = engine_profile(speed)
    except ProfileError as error:
        _fail(f"--speed: {error}")
    config = MockConfig(
        name=name,
        models=tuple(model or ("mock",)),
        host=host,
        port=port,
        profile=chosen.step,
        limits=chosen.limits,
        api_key=api_key or None,
        seed=seed,
        enable_prefix_caching=enable_prefix_caching,
        pooling=pooling,
        sidecar=None if sidecar_port < 0 else SidecarConfig(port=sidecar_port),
    )

    def tell(what: str) -> Callable[[str], None]:
        return lambda url: print(f"{what} at {url}", flush=True)

    _run(serve_mock(config, on_ready=tell("simulated engine"), on_sidecar=tell("sidecar")))


@cli.command()
def sidecar(
    engine: Annotated[str, typer.Option(help="vllm (with --scheduler-cls backends.vllm_scheduler...) or sglang.")] = "vllm",
    state: Annotated[str, typer.Option(help="Where the engine publishes its state; empty: its usual place.")] = "",
    profile: Annotated[str, typer.Option(help="The engine's step times: a shipped name or a TOML file.")] = "demo-fast",
    size: Annotated[
        list[str] | None,
        typer.Option(help="SGLang: chunk_tokens, page_tokens, max_model_len or expected_tokens, as NAME=N (repeatable)."),
    ] = None,
    engine_url: Annotated[str, typer.Option(help="SGLang: its server, asked at the start for sizes that are not given.")] = "",
    engine_key: Annotated[str, typer.Option(envvar="LEEWAY_ENGINE_KEY", help="... and its API key.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on; beyond loopback only with a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 = any free one.")] = 8200,
    token: Annotated[str, typer.Option(envvar="LEEWAY_SIDECAR_TOKEN", help="Token that requests must carry.")] = "",
    token_file: Annotated[str, typer.Option(envvar="LEEWAY_SIDECAR_TOKEN_FILE", help="... or the file that holds it.")] = "",
    kv_events: Annotated[str, typer.Option(help="Where the engine publishes its KV events: tcp://HOST:PORT.")] = "",
    kv_replay: Annotated[str, typer.Option(help="... and where it repeats those that were missed.")] = "",
) -> None:
    """Run a sidecar: predicts, from the state that the engine beside it publishes, what would become of a request."""
    from gateway import beside
    from predictor.sidecar import SidecarConfig

    try:
        config = SidecarConfig(host, port, beside.read_token(token, token_file))
        told = asyncio.run(beside.told_sizes(engine, engine_url, engine_key)) if engine_url else []
        made = beside.make_sidecar(engine, state, profile, [*told, *(size or [])], config, kv_events, kv_replay)
    except (ValueError, OSError) as error:
        _fail(str(error))
    else:
        _run(beside.serve(made))


@cli.command()
def backends(
    control: Annotated[str, typer.Option(help="Base URL of the control listener.")] = "http://127.0.0.1:8081",
    admin_key: Annotated[str, typer.Option(envvar="LEEWAY_ADMIN_KEY", help="The admin key.")] = "",
) -> None:
    """List the backends of a running gateway: state, why, in flight, what it serves."""
    from gateway import backend_table

    try:
        backend_table.show(control, admin_key)
    except backend_table.NotReachableError as error:
        _fail(str(error))


@cli.command()
def plan(
    control: Annotated[str, typer.Option(help="Base URL of the control listener.")] = "http://127.0.0.1:8081",
    admin_key: Annotated[str, typer.Option(envvar="LEEWAY_ADMIN_KEY", help="The admin key.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As the admin API tells it.")] = False,
    svg: Annotated[str, typer.Option(help="Also draw who lay where, and what is planned, into this SVG file.")] = "",
    model: Annotated[str, typer.Option(help="Of this model alone: its speed, does it fit, what taking it off costs.")] = "",
    fraction: Annotated[float, typer.Option(min=0, max=1, help="... with this part of its layers on the device.")] = 1.0,
    prompt_tokens: Annotated[int, typer.Option(min=0, help="... and a prompt of so many tokens.")] = 0,
) -> None:
    """Models that share devices: who lies where, who waits, what is to be moved and why, what became of the last swaps."""
    from gateway import backend_table, plan_table

    try:
        if model:
            print(plan_table.answer(control, admin_key, model, fraction, prompt_tokens, as_json), end="")
        elif as_json:
            print(plan_table.as_json(control, admin_key))
        else:
            plan_table.show(control, admin_key)
        if svg:
            from gateway.plan_picture import picture

            Path(svg).write_text(picture(backend_table.fetch(control, admin_key, "/admin/plan")), encoding="utf-8")
    except (backend_table.NotReachableError, OSError) as error:
        _fail(str(error))


@cli.command()
def simulate(
    scenario: Annotated[str, typer.Argument(help="A scenario (TOML); examples/papers shows many.")],
    seeds: Annotated[int | None, typer.Option(help="Use seeds 0 to N-1 instead of the file's.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests a run, instead of the file's.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    html_file: Annotated[str, typer.Option("--html", help="Write a self-contained page with plots to this file.")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Simulate dispatch policies over modelled engines: latencies, goodput, preemptions, capacity at an SLO."""
    from gateway.sim import command

    problem = command.simulate(scenario, seeds, jobs, requests, json_file, html_file, quiet)
    if problem:
        _fail(problem)


cli.add_typer(calibrate_cli, name="calibrate")
cli.add_typer(profile_cli, name="profile")
cli.add_typer(tagger_cli, name="tagger")
