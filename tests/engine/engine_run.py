"""Processes of the engine tests: vLLM servers (driven from one event loop in a thread) and the gateway itself.

Every process has its own group and its output in a file; stopping ends the whole group.
"""

import asyncio
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from backends.vllm_local import LocalVllm, VllmLaunch, find_engine
from tests.engine.engine_http import SURELY_S, Target, ask, counter, wait_until

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
START_S = 600.0
SCHEDULER = "backends.vllm_scheduler.SnapshotScheduler"
# Measured for these tests on top of the launcher's own: tools need a parser to be named, stored responses a store.
GENERATE_ARGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
GENERATE_ENV = (("VLLM_ENABLE_RESPONSES_API_STORE", "1"),)
POOLING_ARGS = ("--runner", "pooling", "--convert", "embed")
# An engine that shares a core with others may answer a probe later than by default, and is well: no test is about that.
PROBE_S = 20.0
SLEEPING_ENV = (("VLLM_SERVER_DEV_MODE", "1"),)  # /sleep and /wake_up exist with it alone


# Below those that the system gives to whoever connects, and to servers that take any.
_PORTS = iter(random.Random(os.getpid()).sample(range(12_000, 21_000), 9_000))


def free_port() -> int:
    """A port that nobody listens on now, and that is nobody else's until its server binds it, an engine some ten seconds later:
    none is given twice, and no client's connection may get it meanwhile."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Portal:
    """An event loop in a thread: lets blocking tests run the asyncio launcher."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and hand back the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Server:
    """One vLLM server under a backend's name."""

    def __init__(self, portal: Portal, name: str, launch: VllmLaunch, log_path: Path) -> None:
        self.name = name
        self.url = launch.url
        self.log_path = log_path
        self._portal = portal
        self._vllm = LocalVllm(launch, log_path, os.environ)

    @property
    def target(self) -> Target:
        """The engine itself, past the gateway."""
        return Target(self.url)

    def kill(self) -> None:
        """SIGKILL, and the process is gone."""
        self._portal.run(self._vllm.kill())

    def running_requests(self) -> int:
        """How many requests the engine is working on or keeps waiting."""
        return round(counter(self.url, "vllm:num_requests_running", "vllm:num_requests_waiting"))

    async def up(self) -> None:
        await self._vllm.start()
        await self._vllm.wait_ready(START_S)

    async def down(self) -> None:
        await self._vllm.stop()


@dataclass(frozen=True, slots=True)
class Servers:
    """The engines behind the gateway: two that generate, with one model, and one that embeds."""

    smol_a: Server
    smol_b: Server
    embed: Server

    @property
    def generating(self) -> tuple[Server, Server]:
        return self.smol_a, self.smol_b


@dataclass(frozen=True, slots=True)
class Engines:
    """Makes servers from what setup.sh installed."""

    portal: Portal
    folder: Path

    def state_path(self, name: str) -> Path:
        """Where a server of that name publishes its scheduler's state, if it does."""
        return self.folder / f"{name}.state"

    def publishing(self, name: str, args: tuple[str, ...] = (), env: tuple[tuple[str, str], ...] = ()) -> Server:
        """A server of the instruct model whose scheduler publishes its state each step."""
        own = (("PYTHONPATH", str(ROOT)), ("LEEWAY_SNAPSHOT", str(self.state_path(name))))
        return self.server(name, "smollm2", "smollm2", (*args, "--scheduler-cls", SCHEDULER), (*env, *own))

    def server(
        self,
        name: str,
        model: str,
        served: str,
        args: tuple[str, ...],
        env: tuple[tuple[str, str], ...] = (),
    ) -> Server:
        """A server of one of the models."""
        return Server(self.portal, name, self.launch(model, served, args, env), self.folder / f"{name}.log")

    @staticmethod
    def launch(model: str, served: str, args: tuple[str, ...] = (), env: tuple[tuple[str, str], ...] = ()) -> VllmLaunch:
        """How it is started, by whomever."""
        environment = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine"))
        models = Path(os.environ.get("LEEWAY_ENGINE_MODELS", ROOT / ".models"))
        python, checkpoint = find_engine(environment, models, model)
        return VllmLaunch(python, checkpoint, served, free_port(), args, env)


def start_all(portal: Portal, servers: list[Server]) -> None:
    """Start them at once and wait for all; the first failure is raised."""

    async def each() -> None:
        await asyncio.gather(*(server.up() for server in servers))

    portal.run(each())


def stop_all(portal: Portal, servers: list[Server]) -> None:
    """Stop them at once."""

    async def each() -> None:
        await asyncio.gather(*(server.down() for server in servers))

    portal.run(each())


# About what SmolLM2 takes on one core; the sidecar corrects it by the steps that it sees.
PROFILE = """
[profiles."smollm2/cpu"]
linear = { base_ms = 30, prefill_us = 1200, decode_us = 300, kv_ns = 2000 }
limits = { kv_blocks = 95, block_size = 128, max_num_seqs = 16, max_num_batched_tokens = 512, max_model_len = 2048 }
"""


class SidecarProcess:
    """`gateway sidecar` beside a server that publishes its state."""

    def __init__(self, folder: Path, name: str, state_path: Path, *more: str) -> None:
        self.target = Target(f"http://127.0.0.1:{free_port()}")
        profile = folder / "smollm2-cpu.toml"
        profile.write_text(PROFILE)
        files = ("--state", str(state_path), "--profile", str(profile))
        self._command = (sys.executable, "-m", "gateway", "sidecar", *files, *more)
        self._log_path = folder / f"{name}-sidecar.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it sees the engine."""
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                (*self._command, "--port", self.target.url.rsplit(":", 1)[1]), cwd=ROOT, stdout=log, stderr=log
            )
        wait_until(lambda: self.health() == 200, SURELY_S, "the sidecar sees its engine")

    def health(self) -> int:
        """The status of /healthz; 0 when nobody listens."""
        try:
            return ask(self.target, "GET", "/healthz").status
        except OSError:
            return 0

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Gateway:
    """`gateway serve` in front of backends (name -> URL), from the project's own environment, as a user starts it. `more`
    are further lines of each backend's table."""

    def __init__(
        self,
        folder: Path,
        name: str,
        backends: dict[str, str],
        sidecars: dict[str, str] | None = None,
        rule: str = "",
        more: str = "",
    ) -> None:
        self.key, self.admin_key = "client-key-of-the-tests", "admin-key-of-the-tests"
        data, control = free_port(), free_port()
        self.target = Target(f"http://127.0.0.1:{data}", self.key)
        self.admin = Target(f"http://127.0.0.1:{control}", self.admin_key)
        self.log_path = folder / f"{name}.log"
        self._file = folder / f"{name}.toml"
        self._file.write_text(self._toml(data, control, backends, sidecars or {}, more) + rule)
        self._process: subprocess.Popen[bytes] | None = None

    def _toml(self, data: int, control: int, backends: dict[str, str], sidecars: dict[str, str], more: str) -> str:
        lines = ["[listen]", f'data = "127.0.0.1:{data}"', f'control = "127.0.0.1:{control}"']
        for name, url in backends.items():
            lines += ["[[backends]]", f'name = "{name}"', f'url = "{url}"', 'engine = "vllm"']
            lines.append(more)
            if name in sidecars:
                lines.append(f'sidecar = "{sidecars[name]}"')
        lines += ["[[keys]]", f'sha256 = "{hashlib.sha256(self.key.encode()).hexdigest()}"']
        lines += ["[health]", f"timeout_s = {PROBE_S}"]
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        """Start it and wait until it is ready to take requests."""
        python = os.environ.get("LEEWAY_PYTHON", sys.executable)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEEWAY_")}
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "gateway", "serve", str(self._file)],
                cwd=ROOT,
                env={**inherited, "LEEWAY_ADMIN_KEY": self.admin_key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._is_ready, SURELY_S, "the gateway's /readyz answers 200")
        wait_until(self._has_all, SURELY_S, "all backends are routable")

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the gateway ended with {code}:\n{self.log_path.read_text()[-4000:]}"
        try:
            return ask(self.target, "GET", "/readyz").status == 200
        except OSError:
            return False

    def _has_all(self) -> bool:
        try:
            backends = ask(self.admin, "GET", "/admin/backends").json()["backends"]
        except OSError:
            return False  # the control plane comes after the data plane
        assert isinstance(backends, list)
        return all(backend["routable"] or backend["state"] == "asleep" for backend in backends)

    def stop(self) -> int:
        """End it as a service manager does; its exit code (0 if it was never started)."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(SURELY_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()
