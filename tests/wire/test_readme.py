"""What the README tells people to type works: its configuration loads, its clients get an answer."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from gateway import config_file
from tests.tools.programs import free_port
from tests.wire.test_commands import running

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    return [text for name, text in BLOCKS if name == language]


def test_the_configurations_load() -> None:
    texts = [text.replace("…", "0" * 64) for text in blocks("toml")]
    whole, budgets, swaps = [config_file.GatewaySettings(**tomllib.loads(text)) for text in texts]
    assert [backend.name for backend in whole.backends] == ["a", "b"]
    assert {backend.swap.device for backend in swaps.backends} == {device.name for device in swaps.devices}
    assert [key.class_ for key in budgets.keys] == list(budgets.classes) == ["interactive"]


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_the_client_gets_an_answer(library: str) -> None:
    (code,) = [text for text in blocks("python") if text.startswith(f"import {library}")]
    data = f"127.0.0.1:{free_port()}"
    code = code.replace("127.0.0.1:8080", data).replace("…", "any").replace('model="m"', 'model="demo"')
    said = io.StringIO()
    with (
        running("demo", "--data", data, "--control", f"127.0.0.1:{free_port()}", until="Ctrl-C"),
        contextlib.redirect_stdout(said),
    ):
        exec(compile(code, "README.md", "exec"), {})
    if library == "openai":
        assert len(said.getvalue()) > 10


def test_every_python_block_is_python() -> None:
    for code in blocks("python"):
        compile(code, "README.md", "exec")


def test_every_make_target_named_exists() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
