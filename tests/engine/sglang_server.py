"""SGLang servers on this machine's CPU for the engine tests, and a gateway before them in the tests' own process.

The servers are SGLang's own but for what tests/engine/sglang_cpu stands in for. Each has its own process group, output in a
file, and a load snapshot in shared memory that it leaves behind when it ends: stopping removes that as well.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from backends.vllm_local import find_engine
from gateway.app import App
from gateway.config import GatewayConfig
from gateway.replica import Replica
from tests.engine.engine_http import SURELY_S, Json, Target, ask, wait_until
from tests.engine.engine_run import PROBE_S, ROOT, Portal, free_port

T = TypeVar("T")
PROGRAM = Path(__file__).with_name("sglang_cpu") / "serve.py"
START_S = 600.0
LOADS = "/dev/shm/sglang_loads_"
# What this machine's CPU can do without any kernels, no warm-up, small KV, counts published each step.
ALWAYS = (
    *("--device", "cpu", "--attention-backend", "torch_native"),
    *("--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup", "--sleep-on-idle"),
    *("--max-total-tokens", "12288", "--context-length", "2048", "--chunked-prefill-size", "512"),
    *("--load-snapshot-publish-interval", "1", "--enable-metrics", "--enable-memory-saver"),
)


class SglangServer:
    """One server, of one of the models that setup.sh makes."""

    def __init__(self, folder: Path, model: str, *args: str) -> None:
        environment = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine"))
        models = Path(os.environ.get("LEEWAY_ENGINE_MODELS", ROOT / ".models"))
        python, checkpoint = find_engine(environment, models, model)
        port, events = free_port(), free_port()
        self.model = model
        self.url = f"http://127.0.0.1:{port}"
        self.events = f"tcp://127.0.0.1:{events}"
        self.log_path = folder / f"sglang-{model}.log"
        feed = f'{{"publisher": "zmq", "endpoint": "tcp://*:{events}", "topic": ""}}'
        self._command = [
            *(str(python), str(PROGRAM), "--model-path", str(checkpoint), "--served-model-name", model),
            *("--host", "127.0.0.1", "--port", str(port), "--kv-events-config", feed, *ALWAYS, *args),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> Target:
        """The engine itself, past the gateway."""
        return Target(self.url)

    def start(self) -> None:
        """Start it; its output goes to the end of its file."""
        own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Return once it takes requests."""
        wait_until(self._is_ready, START_S, f"SGLang serves {self.model}")

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"SGLang ended with {code}:\n{self.log_path.read_text(errors='replace')[-4000:]}"
        try:
            return ask(self.target, "GET", "/ready").status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL to all of its processes; they are gone afterwards, and what they left in shared memory as well."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)  # it does no more while its files are looked for
        left = self.load_files()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        for path in left:
            Path(path).unlink(missing_ok=True)

    def load_files(self) -> set[str]:
        """The load snapshots that its processes have open."""
        assert self._process is not None
        group = self._process.pid
        found = set()
        for fd in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if os.getpgid(int(fd.parts[2])) == group and (name := os.readlink(fd)).startswith(LOADS):
                    found.add(name)
            except OSError:
                continue  # it has ended, or closed that one
        return found

    def memory_bytes(self) -> int:
        """What all of its processes hold in RAM."""
        assert self._process is not None
        group, pages = self._process.pid, 0
        for path in Path("/proc").glob("[0-9]*/statm"):
            try:
                if os.getpgid(int(path.parts[2])) == group:
                    pages += int(path.read_text().split()[1])
            except OSError:
                continue
        return pages * os.sysconf("SC_PAGE_SIZE")

    def load(self) -> Json:
        """What its scheduler last said of its load."""
        (load,) = ask(self.target, "GET", "/v1/loads").json()["loads"]
        assert isinstance(load, dict)
        return load

    def requests(self) -> tuple[int, int]:
        """(running, waiting)."""
        load = self.load()
        return load["num_running_reqs"], load["num_waiting_reqs"]


@dataclass(frozen=True, slots=True)
class Sglangs:
    """The servers: `smol` runs two requests at a time, the small number of a priority first, and keeps its weights when it
    gives its memory up; `tiny` one at a time, the large number first, and loses them."""

    smol: SglangServer
    tiny: SglangServer


def two_servers(folder: Path) -> Sglangs:
    """Not started."""
    order = "--enable-priority-scheduling"
    low_first = ("--schedule-low-priority-values-first", "--page-size", "16", "--max-running-requests", "2")
    return Sglangs(
        SglangServer(folder, "smollm2", order, *low_first, "--enable-weights-cpu-backup", "--enable-response-store"),
        SglangServer(folder, "tiny", order, "--max-running-requests", "1"),
    )


class Front:
    """A gateway in the loop of a thread, on ports of its own."""

    def __init__(self, portal: Portal, config: GatewayConfig) -> None:
        self._portal = portal
        self._config = replace(config, health=replace(config.health, timeout_s=PROBE_S))

    def __enter__(self) -> Self:
        self._portal.run(self._start())
        wait_until(lambda: all(one.state in ("ready", "asleep") for one in self.replicas), SURELY_S, "all backends are ready")
        return self

    async def _start(self) -> None:
        self.app = App(self._config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await self.app.start()

    def __exit__(self, *_: object) -> None:
        self._portal.run(self.app.close())

    @property
    def target(self) -> Target:
        """Requests through it."""
        return Target(f"http://127.0.0.1:{self.app.plane.port}")

    @property
    def replicas(self) -> list[Replica]:
        """What it knows of its backends."""
        return list(self.app.plane.fleet)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run that in its loop."""
        return self._portal.run(work)

    def call(self, work: Callable[[], T]) -> T:
        """Call that in its loop."""

        async def called() -> T:
            return work()

        return self._portal.run(called())


def wall_s() -> float:
    """The clock of SGLang's stamps."""
    return time.time()
