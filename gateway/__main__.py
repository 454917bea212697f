"""The `gateway` command: reads arguments, loads configuration, and hands both to the part that does the work."""

import sys
from typing import Annotated

import typer

cli = typer.Typer(
    name="gateway",
    help="An LLM gateway for vLLM and SGLang servers. Settings: flags over environment over file over defaults.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
ConfigArgument = Annotated[str, typer.Argument(help="The configuration file (see gateway.toml).")]


def _fail(message: str, status: int = 1) -> None:
    print(message, file=sys.stderr)
    raise typer.Exit(status)


@cli.command()
def serve(config: ConfigArgument) -> None:
    """Run the gateway. SIGHUP reloads, SIGTERM drains, a second SIGTERM ends at once."""
    from gateway import app, config_file

    def load():  # type: ignore[no-untyped-def]
        return config_file.load(config)

    try:
        loaded = load()
    except config_file.ConfigError as error:
        _fail(str(error))
    try:
        app.serve(loaded, load)
    except OSError as error:
        _fail(f"{config}: cannot listen: {error.strerror or error}")


@cli.command()
def check(config: ConfigArgument) -> None:
    """Check a configuration file: all problems at once, or the effective settings with secrets masked."""
    import json

    from gateway import config_file

    try:
        loaded = config_file.load(config)
    except config_file.ConfigError as error:
        _fail(str(error))
    print(json.dumps(config_file.masked(loaded), indent=2))


@cli.command()
def schema() -> None:
    """Print the JSON schema of gateway.toml."""
    import json

    from gateway import config_file

    print(json.dumps(config_file.json_schema(), indent=2))


def main() -> None:
    """Entry point of the console script."""
    cli()


if __name__ == "__main__":
    main()
