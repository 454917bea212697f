"""Everything of a fault run, wired: a gateway (its own process, or inside this one), proxies, backends, ledgers. Shell.

The gateway's settings are the shipped defaults except for what `settings` of the rig names, each with its reason. At
rest it must hold nothing: no request in flight, none waiting, no body bytes, no client connection.
"""

import asyncio
import hashlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import orjson

from gateway import config_file
from gateway.app import App
from gateway.config import GatewayConfig
from tests.faults.backend import FaultBackend
from tests.faults.client import KEY, connect
from tests.faults.ledger import ClientRecord, Ledgers, Request
from tests.faults.proxy import FaultProxy

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.02
STALL_S = 0.2
START_S = 60.0  # a start takes half a second, and a minute where others have the processor
LEAKY = str(Path(__file__).with_name("leaky.py"))
Metrics = dict[str, float]
# glibc gives large blocks back at once: else the memory at rest tells of holes that large bodies have left in its heap
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
Result = TypeVar("Result")


def run(work: Coroutine[object, object, Result]) -> Result:
    """Run to the end on the loop that the gateway serves with: uvloop where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def until(check: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait for a condition, up to `limit_s`. Raises TimeoutError that says `what`."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not check():
        if loop.time() > end_s:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        turn = asyncio.Event()
        loop.call_later(POLL_S, turn.set)
        await turn.wait()


@dataclass(frozen=True, slots=True)
class Group:
    """A model, and the backends and proxies that serve it."""

    model: str
    backends: tuple[FaultBackend, ...]
    proxies: tuple[FaultProxy, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(backend.name for backend in self.backends)


class LogReader:
    """The gateway's log from a file into the ledger. A file, since a pipe that is read late would fill the gateway's own
    queue of lines and pass for its growth."""

    def __init__(self, ledgers: Ledgers, path: Path) -> None:
        self._ledgers = ledgers
        self._path = path
        self._tail = b""
        self.others: list[dict[str, object]] = []
        self.write_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._read_fd = os.open(path, os.O_RDONLY)

    def read(self) -> None:
        """Take in what has been written since."""
        while data := os.read(self._read_fd, 1 << 20):
            *lines, self._tail = (self._tail + data).split(b"\n")
            for line in lines:
                self._take(orjson.loads(line))

    def _take(self, line: dict[str, object]) -> None:
        if line.get("event") == "request":
            self._ledgers.line(line)
        elif len(self.others) < 10_000:
            self.others.append(line)

    def empty(self) -> None:
        """Give the file's space back, at rest."""
        self.read()
        os.truncate(self._path, 0)
        os.lseek(self._read_fd, 0, os.SEEK_SET)

    def close(self) -> None:
        """Read no more."""
        os.close(self._read_fd)


class GatewayProcess:
    """`python -m gateway serve FILE` as its own process, or one that loses `leak_bytes` with each request."""

    def __init__(self, file: Path, log: LogReader, leak_bytes: int) -> None:
        self._file = file
        self._program = (LEAKY, str(leak_bytes)) if leak_bytes else ("-m", "gateway")
        self._log = log
        self.port = self._control = 0

    async def start(self) -> None:
        """Start it and learn its ports from its log."""
        command = (sys.executable, *self._program, "serve", str(self._file))
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, **GIVE_BACK}, stdout=self._log.write_fd
        )
        os.close(self._log.write_fd)
        await until(lambda: self._process.returncode is not None or self._listening() is not None, START_S, "listening")
        found = self._listening()
        assert found is not None, f"the gateway ended with {self._process.returncode}"
        self.port, self._control = (int(str(found[name]).split()[1]) for name in ("data", "control"))

    def _listening(self) -> dict[str, object] | None:
        self._log.read()
        return next((line for line in self._log.others if line["event"] == "listening"), None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def reload(self) -> None:
        """Have it read its file again (SIGHUP)."""
        self._process.send_signal(signal.SIGHUP)

    def memory_mib(self) -> float:
        """Its anonymous memory, swapped pages included."""
        lines = Path(f"/proc/{self.pid}/status").read_text().split("\n")
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "VmSwap:"))) / 1024

    def descriptors(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def metrics(self) -> Metrics:
        """Samples of its /metrics by name with labels."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._control)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: control\r\nconnection: close\r\n\r\n")
        text = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
        writer.close()
        pairs = (line.rsplit(" ", 1) for line in text.split("\n") if line.startswith("leeway_"))
        return {name: float(value) for name, value in pairs}

    async def stop(self) -> int:
        """SIGTERM; its exit status."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(START_S):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()


class GatewayInside:
    """The same gateway inside this process and loop: quicker, and its tables can be looked at."""

    def __init__(self, file: Path, log: LogReader) -> None:
        self._log = log
        self.config: GatewayConfig = config_file.load(str(file))

    async def start(self) -> None:
        """Open its listeners."""
        self.app = App(self.config, log_fd=self._log.write_fd)
        await self.app.start()
        self.port = self.app.plane.port

    async def metrics(self) -> Metrics:
        """What /metrics would say of the tables that must be empty at rest."""
        plane = self.app.plane
        out: Metrics = {
            "leeway_queue_depth": plane.held,
            "leeway_client_connections": plane.connections,
            "leeway_held_body_bytes": plane.held_bytes,
        }
        for replica in plane.fleet:
            out[f'leeway_backend_in_flight{{backend="{replica.name}"}}'] = replica.in_flight
            out[f'leeway_backend_state{{backend="{replica.name}",state="ready"}}'] = replica.state == "ready"
        return out

    async def stop(self) -> int:
        """Close it."""
        await self.app.close()
        os.close(self._log.write_fd)
        return 0


class Rig:
    """See the module's words. `groups` maps each model to its number of backends."""

    def __init__(self, groups: dict[str, int], settings: str, seed: int, inside: bool, leak_bytes: int = 0) -> None:
        self._sizes = groups
        self._settings = settings
        self._rng = Random(seed)
        self._inside = inside
        self._leak_bytes = leak_bytes
        self._directory = tempfile.TemporaryDirectory()
        self._polled: asyncio.Future[Metrics] | None = None
        self._polled_s = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self.ledgers = Ledgers()
        self.groups: dict[str, Group] = {}

    async def start(self) -> None:
        """Start everything and wait until every backend is ready."""
        self._beat_on(asyncio.get_running_loop().time())
        declared = []
        for model, size in self._sizes.items():
            backends = tuple(FaultBackend(f"{model}-{i}", (model,), self.ledgers) for i in range(size))
            for backend in backends:
                await backend.start()
            proxies = tuple(FaultProxy(b.name, b.port, self.ledgers, self._rng) for b in backends)
            for proxy in proxies:
                proxy.start()
                declared.append((proxy.name, proxy.port, model))
            self.groups[model] = Group(model, backends, proxies)
        file = Path(self._directory.name) / "gateway.toml"
        file.write_text(toml(declared, self._settings))
        self.log = LogReader(self.ledgers, Path(self._directory.name) / "gateway.log")
        self.gateway = GatewayInside(file, self.log) if self._inside else GatewayProcess(file, self.log, self._leak_bytes)
        await self.gateway.start()
        await self.ready(self.groups.values(), START_S)

    @property
    def port(self) -> int:
        return self.gateway.port

    async def stop(self) -> int:
        """Stop everything; the gateway's exit status."""
        if self._beat is not None:
            self._beat.cancel()
        status = await self.gateway.stop()
        for group in self.groups.values():
            for proxy in group.proxies:
                await proxy.stop()
            for backend in group.backends:
                await backend.stop()
        self.log.close()
        self._directory.cleanup()
        return status

    async def ask(self, one: Request, limit_s: float = 15.0) -> ClientRecord:
        """One request on a connection of its own."""
        connection = await connect(self.port, self.ledgers)
        (record,) = await connection.ask([one], limit_s)
        connection.close()
        return record

    # -- standstills of the machine

    def _beat_on(self, due_s: float) -> None:
        """A heart-beat of this process: when it comes late, the machine gave us no time."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - due_s > STALL_S:
            self.ledgers.stalls.append((due_s, now_s))
        self._beat = loop.call_later(POLL_S, self._beat_on, now_s + POLL_S)

    async def _scrape(self) -> Metrics:
        """The gateway's samples; it tells of its own standstills as well."""
        metrics = await self.gateway.metrics()
        now_s = asyncio.get_running_loop().time()
        if metrics.get("leeway_loop_lag_seconds", 0.0) > STALL_S:
            self.ledgers.stalls.append((self._polled_s, now_s))
        self._polled_s = now_s
        return metrics

    # -- looking at the gateway

    async def metrics(self) -> Metrics:
        """The gateway's samples; those who ask at the same time share one scrape."""
        if self._polled is None:
            self._polled = asyncio.ensure_future(self._scrape())
            self._polled.add_done_callback(lambda _: setattr(self, "_polled", None))
        return await asyncio.shield(self._polled)

    async def _hold(self, check: Callable[[Metrics], list[str]], limit_s: float, what: str) -> None:
        end_s = time.monotonic() + limit_s
        while wrong := check(await self.metrics()):
            if time.monotonic() > end_s:
                raise TimeoutError(f"not {what} within {limit_s:g} s: {', '.join(wrong)}")
            turn = asyncio.Event()
            asyncio.get_running_loop().call_later(POLL_S, turn.set)
            await turn.wait()

    async def ready(self, groups: Iterable[Group], limit_s: float) -> None:
        """Wait until every backend of the groups is ready again. Raises TimeoutError."""
        names = [name for group in groups for name in group.names]

        def down(metrics: Metrics) -> list[str]:
            return [name for name in names if metrics[f'leeway_backend_state{{backend="{name}",state="ready"}}'] != 1]

        await self._hold(down, limit_s, "ready")

    async def released(self, group: Group, limit_s: float) -> None:
        """Wait until nothing is in flight at a group's backends. Raises TimeoutError."""

        def flying(metrics: Metrics) -> list[str]:
            return [n for n in group.names if metrics[f'leeway_backend_in_flight{{backend="{n}"}}']]

        await self._hold(flying, limit_s, "released")

    async def at_rest(self, limit_s: float) -> None:
        """Wait until the gateway holds nothing at all. Raises TimeoutError with what it still holds."""

        def held(metrics: Metrics) -> list[str]:
            watched = ("leeway_queue_depth", "leeway_client_connections", "leeway_held_body_bytes", "leeway_backend_in_flight")
            return [f"{name} {value:g}" for name, value in metrics.items() if name.startswith(watched) and value]

        await self._hold(held, limit_s, "at rest")

    async def settled_for(self, ids: Iterable[str], limit_s: float) -> None:
        """Wait until every run of `ids` has its end and their log lines are in. What is missing then, the checker names."""
        ledgers = self.ledgers
        wanted = list(ids)

        def whole() -> bool:
            self.log.read()
            if any(run.end == "open" for request_id in wanted for run in ledgers.runs.get(request_id, ())):
                return False
            served = [i for i in wanted if ledgers.clients[i].sent_whole and ledgers.clients[i].seen in ("whole", "cut")]
            return not ledgers.missing({*served, *(i for i in wanted if i in ledgers.runs)})

        with suppress(TimeoutError):
            await until(whole, limit_s, "settled")

    def forget(self) -> None:
        """Clear the ledgers of what is judged, and the log."""
        self.log.empty()
        self.ledgers.clear()


def toml(declared: list[tuple[str, int, str]], settings: str) -> str:
    """The gateway's file: free ports, the backends behind their proxies, one key, and the settings given."""
    backends = "".join(
        f'[[backends]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\nengine = "openai"\nmodels = ["{model}"]\n'
        for name, port, model in declared
    )
    key = hashlib.sha256(KEY.encode()).hexdigest()
    return (
        f'[listen]\ndata = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n{settings}\n'
        f'{backends}[[keys]]\nsha256 = "{key}"\nname = "faults"\n'
    )
