"""examples/quickstart runs as its README says: every command line of it, on other ports.

The two `vllm serve` lines are the exception: they need GPUs. The README's simulated servers stand in for them.
"""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tools.programs import ROOT, Program, ask, comes_up, find, free_port, listening, output_of, running, until_async

SOURCE = ROOT / "examples" / "quickstart"
PORTS = ("8000", "8001", "8080", "8081")
KINDS = ("CUDA_VISIBLE_DEVICES=", "gateway mock", "gateway check", "gateway serve", "python ", "sh ", "curl ", "export ")
ADMIN_KINDS = ("gateway backends", "curl -H")
CHAT = "/v1/chat/completions"
TOKENS = re.compile(r"\(qwen3-8b: \d+ \+ \d+ tokens\)")


def commands() -> list[str]:
    """The README's command lines; each must be of a kind that this file knows."""
    blocks = re.findall(r"```sh\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    assert [line for line in lines if not line.startswith(KINDS + ADMIN_KINDS)] == []
    return lines


@dataclass(frozen=True, slots=True)
class Copy:
    """The example in a folder of its own, on free ports."""

    folder: Path
    ports: dict[str, int]

    def text(self, shown: str) -> str:
        """A text of the example, with the ports of this copy. 8002 is where a third server would be: the second is."""
        ports = {**self.ports, "8002": self.ports["8001"]}
        return re.sub(r"\b80[08][0-2]\b", lambda found: str(ports[found[0]]), shown)

    def environment(self) -> dict[str, str]:
        """Finds this environment's `python` and `gateway`, and the gateway's own pages directly."""
        return {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    async def run(self, line: str, env: dict[str, str] | None = None) -> str:
        """A command line of the README, in a shell; it must end well. What it printed."""
        command = ("sh", "-c", self.text(line))
        code, out, err = await output_of(*command, env={**self.environment(), **(env or {})}, cwd=self.folder)
        assert code == 0, f"{line}: {err}"
        return out

    def starts(self, line: str) -> tuple[str, ...]:
        """A command line that stays, as a program."""
        program, *rest = shlex.split(self.text(line))
        assert program == "gateway"
        return (
            sys.executable,
            "-m",
            "gateway",
            *(str(self.folder / word) if word.endswith(".toml") else word for word in rest),
        )


def copied(folder: Path) -> Copy:
    """The example's files with other ports in them."""
    copy = Copy(folder, {port: free_port() for port in PORTS})
    for source in SOURCE.iterdir():
        if source.is_file():
            (folder / source.name).write_text(copy.text(source.read_text()))
    return copy


@asynccontextmanager
async def started(copy: Copy) -> AsyncIterator[tuple[list[Program], str]]:
    """The simulated servers and the gateway: (the servers, the admin key that the gateway printed)."""
    async with AsyncExitStack() as stack:
        servers = []
        for line in [line for line in commands() if line.startswith("gateway mock")]:
            server = await stack.enter_async_context(running(copy.starts(line), copy.folder / f"mock-{len(servers)}.log"))
            port = int(shlex.split(copy.text(line))[3])
            await comes_up(server, lambda port=port: listening(port))
            servers.append(server)
        (line,) = [line for line in commands() if line.startswith("gateway serve")]
        gateway = await stack.enter_async_context(running(copy.starts(line), copy.folder / "gateway.log"))
        await comes_up(gateway, lambda: listening(copy.ports["8080"]) and "admin key" in gateway.output())

        async def ready() -> bool:
            answer = await ask(copy.ports["8080"], "/v1/models")
            return b"qwen3-8b" in answer.body

        await until_async(ready, gateway.output)
        found = re.search(r"admin key .*: (\S+)", gateway.output())
        assert found is not None
        yield servers, found[1]


def test_every_command_of_the_readme(tmp_path: Path) -> None:
    find("curl")

    async def main() -> None:
        copy, lines = copied(tmp_path), commands()
        async with started(copy) as (servers, admin_key):
            printed = {}
            for line in lines:
                if line.startswith(("python ", "sh ", "curl http", "gateway check")):
                    printed[line] = await copy.run(line)
            _check(printed)
            env = {"LEEWAY_ADMIN_KEY": admin_key}
            (added,) = [await copy.run(line, env) for line in lines if line.startswith("curl -H")]
            assert '"gpu2"' in added
            table = await copy.run(f"gateway backends --control http://127.0.0.1:{copy.ports['8081']}", env)
            assert {"gpu0", "gpu1", "gpu2"} <= set(re.findall(r"gpu\d", table))
            await servers[0].end()
            names = {(await _asked(copy)) for _ in range(8)}
            assert names <= {b"gpu1", b"gpu2"}

    asyncio.run(main())


def _check(printed: dict[str, str]) -> None:
    clients = [out for line, out in printed.items() if line.startswith("python ")]
    assert len(clients) == 2
    assert all(TOKENS.search(out) for out in clients), clients
    (script,) = [out for line, out in printed.items() if line.startswith("sh ")]
    assert script.count('"finish_reason":"length"') == 2
    assert script.rstrip().endswith("data: [DONE]")
    (metrics,) = [out for line, out in printed.items() if line.endswith("/metrics")]
    assert "leeway_requests_total" in metrics


async def _asked(copy: Copy) -> bytes:
    body = {"model": "qwen3-8b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    answer = await ask(copy.ports["8080"], CHAT, body)
    assert answer.status == 200
    return answer.headers[b"x-leeway-backend"]


def test_the_file_as_shipped_is_in_order() -> None:
    """`gateway check` on the unchanged file, and its addresses are the ones that README and clients name."""

    async def main() -> None:
        file = str(SOURCE / "gateway.toml")
        code, out, err = await output_of(sys.executable, "-m", "gateway", "check", file)
        assert code == 0, err
        assert all(f"127.0.0.1:{port}" in out for port in PORTS)

    asyncio.run(main())
