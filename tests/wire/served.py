"""A gateway as a process of its own, for what only a process can show: signals, exit codes, its own memory. Shell.

`served` checks the same common conditions as kit.run: answers in time, nothing held, nothing on standard error, one end
for each request; and that SIGTERM ends it with code 0.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.wire.kit import ADMIN_KEY, ANSWER_S, BACK_S, CANARY, idle_for, metric, quick
from tests.wire.peer import Answer, Peer, Sent, connect
from tests.wire.scripted import ScriptedBackend

END_S = 60.0
HELD = ("leeway_backend_in_flight", "leeway_queue_depth", "leeway_client_connections", "leeway_held_body_bytes")


class Served:
    """`gateway serve` on free ports. `log` holds the lines read so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._more = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())
        self.log: list[dict[str, Any]] = []
        self.sent = Sent()
        self.port = 0
        self.control_port = 0

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._more:
                self.log.append(json.loads(line))
                self._more.notify_all()

    async def event(self, event: str, **fields: object) -> dict[str, Any]:
        """Wait for a log line."""
        wanted = {"event": event, **fields}

        def found() -> list[dict[str, Any]]:
            return [line for line in self.log if all(line.get(name) == value for name, value in wanted.items())]

        async with asyncio.timeout(END_S), self._more:
            await self._more.wait_for(found)
        return found()[-1]

    async def started(self) -> None:
        """Wait until it listens."""
        line = await self.event("listening")
        self.port = int(line["data"].removeprefix("port "))
        self.control_port = int(line["control"].removeprefix("port "))

    async def connect(self) -> Peer:
        """A connection to the data listener."""
        return await connect(self.port, self.sent)

    async def ask(self, body: object = None, path: str = "/v1/chat/completions", method: str = "POST") -> Answer:
        """One request."""
        return await self._one(await self.connect(), body, path, method)

    async def admin(self, method: str, path: str, body: object = None) -> Answer:
        """One request to the control listener."""
        peer = await connect(self.control_port, Sent(), ADMIN_KEY)
        return await self._one(peer, body, path, method)

    @staticmethod
    async def _one(peer: Peer, body: object, path: str, method: str) -> Answer:
        peer.ask(body, path, method, {"content-type": "application/json"})
        answer = await peer.answer()
        peer.close()
        return answer

    async def held(self) -> dict[str, float]:
        """What it holds now, as it says itself and as the kernel does."""
        text = (await self.admin("GET", "/metrics")).body.decode()
        assert CANARY not in text
        return {name: metric(text, name) for name in HELD} | {"fds": len(os.listdir(f"/proc/{self.pid}/fd"))}

    async def at_rest(self, before: dict[str, float]) -> None:
        """Check that it answers at once and holds no more than `before`."""
        loop = asyncio.get_running_loop()

        async def healthy() -> None:
            assert (await self.ask(path="/health", method="GET")).status == 200

        await quick(healthy, ANSWER_S)
        end_s = loop.time() + BACK_S
        now = await self.held()
        while any(now[name] > before[name] for name in now):
            assert loop.time() < end_s, f"{before}, and after the case {now}"
            await idle_for(0.02)
            now = await self.held()

    def check_log(self) -> None:
        """One end for each request, and nothing that must not be there. Only once it has ended."""
        text = json.dumps(self.log)
        assert CANARY not in text
        assert "Traceback" not in text
        ends = Counter(line["id"] for line in self.log if line["event"] == "request")
        wrong = {request_id: ends[request_id] for request_id in self.sent.ids if ends[request_id] != 1}
        assert not wrong, f"requests without exactly one end: {wrong}"

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait for the process's end: its exit code."""
        async with asyncio.timeout(END_S):
            code = await self._process.wait()
            await self._reader
        return code

    async def kill(self) -> None:
        """End it, if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reader


@asynccontextmanager
async def served(
    tmp_path: Path, settings: str, *backends: ScriptedBackend, limits: tuple[str, ...] = ()
) -> AsyncIterator[Served]:
    """A gateway of these TOML settings before these backends, under these `ulimit` options. Nothing may come out of its
    standard error."""
    tables = [f'[[backends]]\nname = "{b.name}"\nurl = "{b.url}"\nengine = "openai"\nmodels = ["m"]' for b in backends]
    path = tmp_path / "gateway.toml"
    listen = '[pool]\nidle_s = 0.2\n[listen]\ndata = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"'
    path.write_text("\n".join((listen, f'[admin]\nkey = "{ADMIN_KEY}"', settings, *tables)))
    with (tmp_path / "stderr").open("wb") as errors:
        limited = ("sh", "-c", f'ulimit {" ".join(limits)} && exec "$@"', "sh") if limits else ()
        command = (*limited, sys.executable, "-m", "gateway", "serve", str(path))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=errors)
    running = Served(process)
    try:
        await running.started()
        for backend in backends:
            await running.event("backend", name=backend.name, after="ready")
        before = await running.held()
        yield running
        if running.running:
            await running.at_rest(before)
            running.terminate()
            assert await running.ended() == 0
    finally:
        await running.kill()
    running.check_log()
    assert (tmp_path / "stderr").read_text() == ""
