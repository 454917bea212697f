"""The `gateway` command. `gateway serve FILE` goes to the serving process without the command-line toolkit, which it
would carry for its whole life."""

import sys


def main() -> None:
    """Entry point of the console script and of `python -m gateway`."""
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "serve" and not arguments[1].startswith("-"):
        from gateway import serving

        problem = serving.run(arguments[1])
        if problem:
            print(problem, file=sys.stderr)
        sys.exit(bool(problem))
    from gateway.cli import cli

    cli()


if __name__ == "__main__":
    main()
