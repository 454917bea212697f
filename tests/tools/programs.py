"""Other programs as these tests run them: found or named as missing, in a group of their own, ended for sure. Shell.

A missing program fails the test that needs it, with the package that brings it; nothing here is skipped.
"""

import asyncio
import glob
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

from tests.wire.kit import until
from tests.wire.peer import Answer, Sent, connect

ROOT = Path(__file__).resolve().parents[2]
ADMIN_KEY = "admin-key-of-the-tools"
START_S = 60.0
GRACE_S = 15.0
PORTS = 15_000, 20_000
SYSTEM_FOLDERS = ":/usr/sbin:/sbin"
PACKAGES = {"nginx": "nginx-light"}


def missing(what: str, package: str) -> str:
    """What to say when a program is not there."""
    return f"{what} is not installed; on Debian: apt-get install {package} (.ci/apt.txt lists all that these tests need)"


def find(name: str) -> str:
    """The path of a program. AssertionError with the remedy."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + SYSTEM_FOLDERS)
    assert path is not None, missing(name, PACKAGES.get(name, name))
    return path


def find_library(pattern: str, package: str) -> str:
    """The path of a shared library under the system's library folders. AssertionError with the remedy."""
    found = sorted(glob.glob(f"/usr/lib/{pattern}") + glob.glob(f"/usr/lib/*/{pattern}"))
    assert found, missing(pattern, package)
    return found[0]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now. Not one of those that the system gives to clients: beside other tests
    such a port may be somebody's before it is listened on."""
    draw = SystemRandom()
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", draw.randrange(*PORTS)))
            return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Program:
    """A running process, its output in a file."""

    process: asyncio.subprocess.Process
    log_path: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def output(self) -> str:
        """What it has said so far."""
        return self.log_path.read_text(errors="replace")

    async def end(self) -> int:
        """Ask the group to end, and kill what has not after a while; the exit code."""
        if self.process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), GRACE_S)
            except TimeoutError:
                self._signal(signal.SIGKILL)
        return await self.process.wait()

    def kill(self) -> None:
        """End whatever is left of the group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@asynccontextmanager
async def running(command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> AsyncIterator[Program]:
    """A command for as long as the block runs."""
    with log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env={**clean_environment(), **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    program = Program(process, log_path)
    try:
        yield program
        await program.end()
    finally:
        program.kill()
        await process.wait()


def clean_environment() -> dict[str, str]:
    """This process's environment without settings that would reach a gateway or a client."""
    ours = ("LEEWAY_", "OPENAI_", "ANTHROPIC_")
    proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours) and k.lower() not in proxies}


async def output_of(*command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> tuple[int, str, str]:
    """Run a command to its end: (exit code, standard output, standard error)."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**clean_environment(), **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 2 * START_S)
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    return await process.wait(), out.decode(), err.decode()


def listening(port: int) -> bool:
    """Whether somebody accepts connections on a port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def comes_up(program: Program, true: Callable[[], bool]) -> None:
    """Wait until `true()`. AssertionError with the program's output when it ended instead, or took too long."""

    def up_or_ended() -> bool:
        return true() or program.process.returncode is not None

    await until(up_or_ended, START_S, program.output)
    assert program.process.returncode is None, program.output()


async def ask(port: int, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own: POST with a body, else GET."""
    peer = await connect(port, Sent())
    peer.ask(body, path, "GET" if body is None else "POST", headers)
    answer = await peer.answer()
    peer.close()
    return answer


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway in a process of its own."""

    program: Program
    port: int
    control_port: int

    async def control(self, path: str) -> Answer:
        """GET on the control listener."""
        return await ask(self.control_port, path, headers={"authorization": f"Bearer {ADMIN_KEY}"})

    async def metrics(self) -> str:
        """The text of /metrics."""
        return (await self.control("/metrics")).body.decode()

    async def backends(self) -> list[dict[str, Any]]:
        """The admin API's list."""
        answer = await self.control("/admin/backends")
        return list(answer.json["backends"])

    def access(self) -> list[dict[str, Any]]:
        """The access lines so far; they come up to 0.1 s late. Probes of these tests (/readyz) are left out."""
        lines = [json.loads(line) for line in self.program.output().splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line["event"] == "request" and line["route"] != "readyz"]

    def memory_bytes(self, field: str) -> int:
        """VmRSS or VmHWM (the most that VmRSS ever was)."""
        status = Path(f"/proc/{self.program.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) * 1024

    def open_files(self) -> int:
        """How many file descriptors it has."""
        return len(os.listdir(f"/proc/{self.program.pid}/fd"))


def toml(port: int, control_port: int, backends: Mapping[str, str], listen: str = "", more: str = "") -> str:
    """A gateway's file: shipped defaults but for the addresses and what `listen` and `more` say."""
    lines = ["[listen]", f'data = "127.0.0.1:{port}"', f'control = "127.0.0.1:{control_port}"', listen]
    for name, url in backends.items():
        lines += ["[[backends]]", f'name = "{name}"', f'url = "{url}"']
    return "\n".join((*lines, more, ""))


@asynccontextmanager
async def serving(
    folder: Path,
    backends: Mapping[str, str],
    *,
    port: int = 0,
    listen: str = "",
    more: str = "",
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Gateway]:
    """`gateway serve` in front of these backends, ready to take requests."""
    port, control_port = port or free_port(), free_port()
    text = toml(port, control_port, backends, listen, more)
    file = folder / f"gateway-{hashlib.sha256(text.encode()).hexdigest()[:8]}.toml"
    file.write_text(text)
    async with serving_file(file, port, control_port, env) as gateway:
        yield gateway


@asynccontextmanager
async def serving_file(
    file: Path, port: int, control_port: int, env: Mapping[str, str] | None = None
) -> AsyncIterator[Gateway]:
    """`gateway serve FILE`, ready to take requests; it must end in order."""
    command = (sys.executable, "-m", "gateway", "serve", str(file))
    async with running(command, file.with_suffix(".log"), {"LEEWAY_ADMIN_KEY": ADMIN_KEY, **(env or {})}) as program:
        await comes_up(program, lambda: listening(control_port))
        gateway = Gateway(program, port, control_port)
        states: list[str] = []

        async def ready() -> bool:
            states[:] = [backend["state"] for backend in await gateway.backends()]
            return set(states) == {"ready"}

        await until_async(ready, lambda: (states, program.output()))
        yield gateway
        assert await program.end() == 0, program.output()


async def until_async(true: Callable[[], Any], say: Callable[[], object] = lambda: "", limit_s: float = START_S) -> None:
    """Wait until `await true()`; AssertionError with `say()` after `limit_s`."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not await true():
        assert loop.time() < end_s, f"not within {limit_s} s: {say()}"
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.02)
