"""The composition root of a serving process: the only place that constructs and wires. Shell.

Order of birth: log, data plane, backends, data listener, then the control listener, which is not needed for the first
answer. SIGTERM drains, a second one ends; SIGHUP reloads.
"""

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from gateway.config import GatewayConfig
from gateway.descriptors import raise_limit
from gateway.learnt import Learnt, file_of
from gateway.logs import LineWriter, Logs
from gateway.memory import GiveBack
from gateway.operations import Operations
from gateway.operator_errors import OperationError
from gateway.private_file import open_private
from gateway.server import DataPlane
from gateway.store import BackendStore, StoreError
from gateway.trace import wanted
from gateway.upkeep import Upkeep

Load = Callable[[], GatewayConfig]


class App:
    """A running gateway. `start`, then `run_until_signal` or `close`."""

    def __init__(self, config: GatewayConfig, load: Load | None = None, log_fd: int = 1) -> None:
        self._config = config
        self._load = load
        self._log_fd = log_fd
        self._stack = AsyncExitStack()
        self.admin_key = ""

    async def start(self) -> None:
        """Open everything, or nothing. Raises OSError when a listener's address is taken, StoreError."""
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _open(self) -> None:
        config, loop, stack = self._config, asyncio.get_running_loop(), self._stack
        writer = LineWriter(self._log_fd, config.log.queue_lines)
        stack.callback(writer.close)
        self.logs = Logs(config.log, writer)
        stack.callback(GiveBack(loop).close)
        loop.set_exception_handler(self._on_loop_error)
        store = BackendStore(config.admin.state_file)
        stack.callback(store.close)
        # uvloop's own clock has steps of 1 ms; both count from the same origin
        now = time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time
        self.plane = DataPlane(config, self.logs, Random(secrets.randbits(64)), loop, now)
        if wanted(os.environ):
            self._export_spans()  # closed after the plane, whose last requests leave spans, too
        stack.push_async_callback(self.plane.close)
        self.learnt = Learnt(file_of(config.admin), self.logs, now)
        self.learnt.keep("lengths", self.plane.desks.tagging.tagger)
        self.learnt.keep("engines", self.plane.desks.engines)
        if self.plane.lodging.on:
            self.learnt.keep("swaps", self.plane.lodging.costs)
            self.learnt.keep("offload", self.plane.lodging.offload)
        self.learnt.load()
        stack.push_async_callback(self.learnt.close)
        upkeep = Upkeep(self.plane)
        stack.push_async_callback(upkeep.close)
        self.operations = Operations(self.plane, upkeep, store, self._load)
        stack.push_async_callback(self.operations.close)
        await self.plane.listen()
        self.operations.start()
        self.admin_key, made = admin_key(config)
        from gateway.admin import ControlPlane  # late: the first answer does not need it

        self._control = ControlPlane(self.operations, self.admin_key)
        stack.push_async_callback(self._control.close)
        await self._control.start()
        self.learnt.start()
        ports = {"data": f"port {self.plane.port}", "control": f"port {self._control.port}"}
        connections = self.plane.door.most
        self.logs.event("info", "listening", **ports, connections=connections)
        if made:
            where = f"kept in {config.admin.key_file}" if config.admin.key_file else "for this run only"
            print(f"admin key ({where}): {self.admin_key}", file=sys.stderr, flush=True)
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked through again

    def _export_spans(self) -> None:
        plane = self.plane
        try:
            from gateway.spans import Spans  # its libraries are large, and an extra
        except ImportError as error:
            self.logs.event("error", "spans are not exported", reason=f"{error}: the extra otlp is not installed")
            return
        spans = Spans(Random(secrets.randbits(64)), plane.now)
        self._stack.push_async_callback(spans.close)
        plane.books.tracer = spans

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A bug of ours, seen by the loop: where and what kind, never the values (they may be a client's)."""
        error = context.get("exception")
        trace = traceback.extract_tb(error.__traceback__) if error is not None else []
        where = f"{os.path.basename(trace[-1].filename)}:{trace[-1].lineno}" if trace else ""
        self.logs.event("error", "internal error", kind=type(error).__name__, where=where)

    @property
    def control_port(self) -> int:
        """The control listener's port."""
        return self._control.port

    async def run_until_signal(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain."""
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        now = asyncio.Event()

        def end() -> None:
            (now if ending.is_set() else ending).set()

        loop.add_signal_handler(signal.SIGTERM, end)
        loop.add_signal_handler(signal.SIGINT, end)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        await ending.wait()
        self.logs.event("info", "draining", limit_s=self.plane.timeouts.drain_s, busy=self.plane.door.busy)
        self.operations.ending()
        drain = asyncio.create_task(self.plane.drain(self.plane.timeouts.drain_s))
        stop = asyncio.create_task(now.wait())
        await asyncio.wait((drain, stop), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, stop):
            task.cancel()
        await asyncio.gather(drain, stop, return_exceptions=True)

    def _reload(self) -> None:
        self.plane.spawn(self._reload_quietly())

    async def _reload_quietly(self) -> None:
        try:
            await self.operations.reload()
        except OperationError as error:
            if error.code == "no_file":  # the one refusal that reload() has not logged; else the old one serves on
                self.logs.event("warning", "reload refused", error=error.message)

    async def close(self) -> None:
        """Close everything, the last opened first."""
        self.logs.event("info", "stopped")
        await self._stack.aclose()


def admin_key(config: GatewayConfig) -> tuple[str, bool]:
    """(the admin key, whether it was made just now). A made one is kept in `key_file` (mode 0600), if that is set."""
    if config.admin.key:
        return config.admin.key, False
    key = "leeway-admin-" + secrets.token_urlsafe(24)
    if config.admin.key_file:
        # an empty file is filled; one that holds a key was read with the configuration
        with os.fdopen(open_private(config.admin.key_file, os.O_WRONLY), "w") as file:
            file.write(key + "\n")
    return key, True


async def _serve(config: GatewayConfig, load: Load | None) -> None:
    app = App(config, load)
    await app.start()
    try:
        await app.run_until_signal()
    finally:
        await app.close()


def serve(config: GatewayConfig, load: Load | None) -> None:
    """Run a gateway until it is told to end. Raises OSError when an address is taken, SystemExit for a bad state file."""
    raise_limit()
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    try:
        run(_serve(config, load))
    except StoreError as error:
        raise SystemExit(str(error)) from None
