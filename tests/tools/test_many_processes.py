"""Several gateway processes on one data port (`reuse_port = true`): the kernel spreads connections over them."""

import asyncio
import re
import sys
from pathlib import Path

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


def test_a_port_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    """Without the option, a second process on the port ends with a clear word; the first is not disturbed."""

    async def main() -> None:
        async with MockEngine(INSTANT) as engine, serving(tmp_path, {"engine": engine.url}) as first:
            file = tmp_path / "second.toml"
            file.write_text(toml(first.port, free_port(), {"engine": engine.url}))
            command = (sys.executable, "-m", "gateway", "serve", str(file))
            async with running(command, tmp_path / "second.log") as second:
                await until(lambda: second.process.returncode is not None, 30)
            assert second.process.returncode == 1
            assert "cannot listen" in second.output()
            assert (await ask(first.port, CHAT, BODY)).status == 200

    asyncio.run(main())
