"""Runs a vLLM server on this machine's CPU: for `gateway demo --real` and for the engine tests.

A child with processes of its own (backends.child); this process never imports vLLM. Nothing here decides where requests
go. The settings keep one server small (about 2 GB, one busy core): no warm-up, no compilation, 96 KV blocks of 128 tokens.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.child import Child

_HOST = "127.0.0.1"
_PROBE_GAP_S = 0.2
_PROBE_TIMEOUT_S = 2.0
# 96 blocks of 128 tokens at 23,040 bytes a token (SmolLM2-135M: 30 layers, 3 KV heads of 64, bf16), rounded up.
_KV_BYTES = 300_000_000
_SETUP = "tests/engine/setup.sh"


class LocalVllmError(RuntimeError):
    """The engine is not installed, died, or did not get ready in time. The text says what to do or what it said."""


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """How one server is started: interpreter of the engine's environment, checkpoint folder, name and port.

    `extra_args` and `extra_env` come last, so they override the defaults (vLLM takes the last value of an option).
    """

    python: Path
    model_dir: Path
    served_name: str
    port: int
    extra_args: tuple[str, ...] = ()
    extra_env: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        return f"http://{_HOST}:{self.port}"

    def command(self) -> tuple[str, ...]:
        """The program and its arguments. A module, since the CPU package's console command `vllm` does not work."""
        model = ("--model", str(self.model_dir), "--served-model-name", self.served_name)
        sizes = ("--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", "512")
        # By default vLLM claims 92 % of a NUMA node's memory at its start, and a second server then refuses to run.
        memory = ("--num-gpu-blocks-override", "96", "--kv-cache-memory-bytes", str(_KV_BYTES))
        listen = ("--host", _HOST, "--port", str(self.port))
        module = (str(self.python), "-m", "vllm.entrypoints.openai.api_server")
        return (*module, *listen, *model, *sizes, *memory, "--enforce-eager", *self.extra_args)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The child's environment: what is inherited, and settings without which several servers share cores badly."""
        return {
            **inherited,
            "VLLM_CPU_CI_ENV": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # The directory that we are started from must not shadow the engine's packages.
            "PYTHONSAFEPATH": "1",
            **dict(self.extra_env),
        }


def find_engine(environment_dir: Path, models_dir: Path, model: str = "smollm2") -> tuple[Path, Path]:
    """(interpreter, checkpoint folder) as tests/engine/setup.sh leaves them. Raises LocalVllmError with the remedy."""
    python = environment_dir / "bin" / "python"
    checkpoint = models_dir / model
    missing = [str(p) for p in (environment_dir / ".leeway-stamp", python, checkpoint / "config.json") if not p.exists()]
    if missing:
        raise LocalVllmError(
            f"The real engine is not installed (missing: {', '.join(missing)}).\n"
            f"From a checkout of the project run `make engine`, or {_SETUP} {environment_dir} {models_dir}\n"
            "It needs about 2.7 GB of disk and a few minutes, once."
        )
    return python.absolute(), checkpoint.absolute()


class LocalVllm:
    """One server process: start it, wait for it, stop it. Can be started again after it has ended."""

    def __init__(self, launch: VllmLaunch, log_path: Path, inherited: Mapping[str, str]) -> None:
        self.launch = launch
        self.log_path = log_path
        self._inherited = dict(inherited)
        self._child = Child(log_path)

    def __repr__(self) -> str:
        return f"LocalVllm({self.launch.served_name} at {self.launch.url}, {self._child!r})"

    @property
    def running(self) -> bool:
        """Whether its processes are there (it may not be ready yet)."""
        return self._child.running

    @property
    def pid(self) -> int:
        """Of the process that lives as long as the server. It must have been started."""
        return self._child.pid

    async def start(self) -> None:
        """Start it; its output goes to the end of the log file."""
        await self._child.start(self.launch.command(), self.launch.environment(self._inherited))

    async def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Return once /health answers 200. Raises LocalVllmError if the process ends first or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._healthy():
                    if await self._child.ends_within(_PROBE_GAP_S):
                        raise LocalVllmError(f"vLLM ended with {self._child.code} before it was ready.{self._log_end()}")
        except TimeoutError:
            raise LocalVllmError(f"vLLM was not ready after {timeout_s:.0f} s.{self._log_end()}") from None

    async def stop(self, grace_s: float = 10.0) -> None:
        """End it and what it spawned: SIGTERM, after `grace_s` SIGKILL. Does nothing if it is not running."""
        await self._child.stop(grace_s)

    async def kill(self) -> None:
        """SIGKILL all its processes at once, as a crash of the machine would."""
        await self._child.kill()

    async def _healthy(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(_HOST, self.launch.port)
                try:
                    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    status = await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False
        return status.split(b" ")[1:2] == [b"200"]

    def _log_end(self) -> str:
        return f" The end of {self.log_path}:\n{self._child.tail()}"
