"""Case 14.4: the wall clock jumps while 100 streams run (libfaketime; the monotonic clock is left alone).

Forward by an hour, back by two: no request is affected, whether it streams, waits in the line or is still to come, and
no budget is spent by it.
"""

import asyncio
import json
from datetime import datetime
from pathlib import Path

from tests.tools.programs import Gateway, ask, find_library, serving, until_async
from tests.wire.kit import until
from tests.wire.peer import Peer, Sent, connect
from tests.wire.scripted import ANSWER, DONE, FINISH, Call, ScriptedBackend, event

CHAT = "/v1/chat/completions"
STREAMS = 100
WAITING = 10
JUMPS_S = (3600, -7200)
PARTS = len(JUMPS_S) + 1
PROBES = 3
# Far less than a jump: a budget that the wall clock had a part in would be spent at once, and the request refused.
STRICT = {"x-slo-ttft-ms": "600000", "x-leeway-strict": "true"}
# Real seconds: what a slow machine may take. Far less than a jump, too.
LIMIT_S = 300
PATIENT = "[queue]\ntimeout_s = 600\n[timeouts]\nidle_s = 600\nfirst_byte_s = 600\n"
BACKENDS = PATIENT + '[[backends]]\nname = "engine"\nurl = "{url}"\nmax_in_flight = 100\n'


def _body(stream: bool) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}


# Under libfaketime 0.9.10 Python's time.sleep fails with EINVAL, and subprocess waits by it for the child that checks the
# configuration. Python runs a module of this name at its start.
SITE = ("sitecustomize.py", "import threading\nimport time\n\ntime.sleep = threading.Event().wait\n")


class Wall:
    """The wall clock of a program under libfaketime: a file that holds its distance from the true time."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "wall"
        self.set(0)
        name, code = SITE
        (folder / name).write_text(code)
        self.environment = {
            "PYTHONPATH": str(folder),
            "LD_PRELOAD": find_library("faketime/libfaketime.so.1", "libfaketime"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
        }

    def set(self, offset_s: int) -> None:
        """Move it: a new file in one step, so that no half-written one is read."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}\n")
        fresh.replace(self._file)


class Steps:
    """The play of a backend whose streams send their next part when they are told to."""

    def __init__(self) -> None:
        self.gates = [asyncio.Event() for _ in range(PARTS)]
        self.probes = 0

    async def __call__(self, call: Call) -> None:
        if not call.stream:
            call.answer(ANSWER)
            return
        call.start_events()
        for i, gate in enumerate(self.gates):
            call.events(event(f"part {i};"))
            await gate.wait()
        call.end_events(FINISH, DONE)

    def probe(self, call: Call) -> None:
        """Answer a probe and count it."""
        self.probes += 1
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        call.answer(json.dumps(models if call.target == b"/v1/models" else {}).encode())


async def _open(gateway: Gateway, count: int, stream: bool) -> list[Peer]:
    peers = [await connect(gateway.port, Sent()) for _ in range(count)]
    for peer in peers:
        peer.ask(_body(stream), CHAT, headers=STRICT)
    return peers


async def _all_seen(peers: list[Peer], mark: bytes) -> None:
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(peer.seen(mark) for peer in peers))


def _wall_offset_s(line: dict[str, object]) -> float:
    """How far a log line's stamp is from the true time."""
    return (datetime.fromisoformat(str(line["time"])) - datetime.now().astimezone()).total_seconds()


async def _jump(gateway: Gateway, wall: Wall, steps: Steps, offset_s: int) -> None:
    """Move the clock; wait until the gateway has gone by it (its log says so) and has probed its backend again."""
    wall.set(offset_s)
    lines = len(gateway.access())
    assert (await ask(gateway.port, "/v1/models")).status == 200
    await until(lambda: len(gateway.access()) > lines, LIMIT_S)
    assert abs(_wall_offset_s(gateway.access()[-1]) - offset_s) < LIMIT_S
    probes = steps.probes
    await until(lambda: steps.probes >= probes + PROBES, LIMIT_S)


async def _waiting(gateway: Gateway, count: int) -> None:
    async def there() -> bool:
        return f"leeway_queue_depth {count:.1f}" in await gateway.metrics()

    await until_async(there)


def test_a_jumping_wall_clock_affects_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        wall, steps, backend = Wall(tmp_path), Steps(), ScriptedBackend("engine")
        await backend.start()
        backend.play, backend.get = steps, steps.probe
        more = BACKENDS.format(url=backend.url)
        try:
            async with serving(tmp_path, {}, more=more, env=wall.environment) as gateway:
                streams = await _open(gateway, STREAMS, stream=True)
                await _all_seen(streams, b"part 0;")
                queued = await _open(gateway, WAITING, stream=False)
                idle = await connect(gateway.port, Sent())
                await _waiting(gateway, WAITING)
                for i, offset_s in enumerate(JUMPS_S):
                    await _jump(gateway, wall, steps, offset_s)
                    assert [b["state"] for b in await gateway.backends()] == ["ready"]
                    steps.gates[i].set()
                    await _all_seen(streams, b"part %d;" % (i + 1))
                await _waiting(gateway, WAITING)
                steps.gates[-1].set()
                await _end(streams, queued, idle)
                await _nothing_failed(gateway)
        finally:
            await backend.close()

    asyncio.run(main())


async def _end(streams: list[Peer], queued: list[Peer], idle: Peer) -> None:
    async with asyncio.timeout(LIMIT_S):
        idle.ask(_body(stream=False), CHAT)
        streamed = await asyncio.gather(*(peer.answer() for peer in streams))
        plain = await asyncio.gather(*(peer.answer() for peer in (*queued, idle)))
    assert [(a.status, a.whole, len(a.events)) for a in streamed] == [(200, True, PARTS + 2)] * STREAMS
    assert [(a.status, a.body) for a in plain] == [(200, ANSWER)] * (WAITING + 1)
    for peer in (*streams, *queued, idle):
        peer.close()


async def _nothing_failed(gateway: Gateway) -> None:
    await until(lambda: len(gateway.access()) >= STREAMS + WAITING + 1 + len(JUMPS_S), LIMIT_S)
    ends = {(line["status"], line["end"]) for line in gateway.access()}
    assert ends == {(200, "complete")}
    assert all(0 <= line["duration_ms"] < 1_200_000 for line in gateway.access())
    assert "Traceback" not in gateway.program.output()
