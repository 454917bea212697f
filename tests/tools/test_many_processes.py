"""Several gateway processes on one data port (`reuse_port = true`): the kernel spreads connections over them."""

import asyncio
import re
import sys
from pathlib import Path

import aiohttp

from backends.mock import MockConfig, MockEngine
from predictor.profile import preset
from tests.tools.programs import Gateway, ask, free_port, running, serving, toml
from tests.wire.kit import metric, until

CHAT = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
CONNECTIONS = 200
SHARED = "reuse_port = true"
INSTANT = MockConfig(profile=preset("instant").profile, limits=preset("instant").limits)


async def _ask_all(port: int) -> list[int]:
    """One request on each of many connections."""
    answers = await asyncio.gather(*(ask(port, CHAT, BODY) for _ in range(CONNECTIONS)))
    return [answer.status for answer in answers]


async def _served(gateway: Gateway) -> float:
    return metric(re.sub(r"(?m)^leeway_requests_total\{(?!.*chat).*$", "", await gateway.metrics()), "leeway_requests_total")


def test_two_processes_share_one_port(tmp_path: Path) -> None:
    """Both get connections and serve them; when one has ended, the other serves all."""

    async def main() -> None:
        port = free_port()
        async with MockEngine(INSTANT) as engine:
            backends = {"engine": engine.url}
            async with serving(tmp_path, backends, port=port, listen=SHARED) as first:
                async with serving(tmp_path, backends, port=port, listen=SHARED) as second:
                    assert await _ask_all(port) == [200] * CONNECTIONS
                    shares = [await _served(first), await _served(second)]
                    assert sum(shares) == CONNECTIONS
                    assert min(shares) > 0
                assert await _ask_all(port) == [200] * CONNECTIONS
                assert await _served(first) == shares[0] + CONNECTIONS
            assert engine.finished == 2 * CONNECTIONS

    asyncio.run(main())


class Steady:
    """Clients that hold their connections and ask without end, until told to stop."""

    def __init__(self, port: int, clients: int) -> None:
        self._url = f"http://127.0.0.1:{port}{CHAT}"
        self._stop = False
        self._tasks = [asyncio.create_task(self._ask(number % 2 == 0)) for number in range(clients)]
        self.served = 0
        self.lost: list[str] = []

    async def _ask(self, stream: bool) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            while not self._stop:
                try:
                    async with session.post(self._url, json={**BODY, "stream": stream}) as response:
                        text = await response.text()
                except aiohttp.ClientError as error:
                    self.lost.append(repr(error))
                    continue
                if response.status != 200 or (stream and "[DONE]" not in text):
                    self.lost.append(f"{response.status} {text[:200]}")
                self.served += 1

    async def more(self, count: int) -> None:
        """Wait until so many more have been served."""
        goal = self.served + count
        await until(lambda: self.served >= goal, 60)

    async def stop(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


def test_a_rolling_restart_loses_no_request(tmp_path: Path) -> None:
    """One process after the other is told to end under load: each connection gets its last answer, and is made anew."""

    async def main() -> None:
        port = free_port()
        async with MockEngine(INSTANT) as engine:
            backends = {"engine": engine.url}
            async with serving(tmp_path, backends, port=port, listen=SHARED) as last:
                async with serving(tmp_path, backends, port=port, listen=SHARED) as first:
                    load = Steady(port, 12)
                    await load.more(60)
                    async with serving(tmp_path, backends, port=port, listen=SHARED) as second:
                        await load.more(60)
                        assert await first.program.end() == 0
                        await load.more(60)
                        assert await second.program.end() == 0
                        await load.more(60)
                assert load.lost == []
                await load.stop()
                assert await _served(last) > 0
            assert load.lost == []

    asyncio.run(main())


def test_a_port_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    """Without the option, a second process on the port ends with a clear word; the first is not disturbed."""

    async def main() -> None:
        async with MockEngine(INSTANT) as engine, serving(tmp_path, {"engine": engine.url}) as first:
            file = tmp_path / "second.toml"
            file.write_text(toml(first.port, free_port(), {"engine": engine.url}))
            command = (sys.executable, "-m", "gateway", "serve", str(file))
            async with running(command, tmp_path / "second.log") as second:
                await until(lambda: second.process.returncode is not None, 60)
            assert second.process.returncode == 1
            assert "cannot listen" in second.output()
            assert (await ask(first.port, CHAT, BODY)).status == 200

    asyncio.run(main())
