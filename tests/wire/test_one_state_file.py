"""Two gateways with one state file: said clearly, nothing lost, and the second has it once the first is gone."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.config import Admin
from gateway.learnt import Learnt
from tests.wire.admin_kit import ADMIN_KEY, CONFIG, engine_config, engines, running
from tests.wire.kit import until


def told(folder: Path, event: str) -> list[dict[str, Any]]:
    """Log lines of that event."""
    lines = [json.loads(line) for line in (folder / "gateway.log").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_the_second_reads_it_and_keeps_nothing_until_the_first_is_gone(tmp_path: Path) -> None:
    config = replace(CONFIG, admin=Admin(key=ADMIN_KEY, state_file=str(tmp_path / "state.db")))
    old_home, new_home = tmp_path / "old", tmp_path / "new"
    old_home.mkdir()
    new_home.mkdir()

    async def run() -> None:
        async with engines(engine_config("instant")) as (engine,):
            body = {"name": "a", "url": engine.url}
            later = body | {"name": "later"}
            old = running(old_home, config)
            first = await old.__aenter__()
            assert (await first.call("POST", "/admin/backends", body)).status == 202
            async with running(new_home, config) as second:
                await second.ready("a")
                refused = await second.call("POST", "/admin/backends", later)
                assert (refused.status, refused.code) == (503, "state_file_in_use")
                assert (await second.call("DELETE", "/admin/backends/a")).code == "state_file_in_use"
                assert (await second.chat()).status == 200
                assert (await first.call("POST", "/admin/backends", later)).status == 202, "the first has it"
                first.app.operations.ending()  # as on SIGTERM
                await second.ready("later")
                assert (await second.call("POST", "/admin/backends", body | {"name": "b"})).status == 202
                assert (await first.call("DELETE", "/admin/backends/a")).code == "state_file_in_use"
                await old.__aexit__(None, None, None)
            async with running(tmp_path, config) as third:
                for name in ("a", "b", "later"):
                    await third.ready(name)
            assert not told(tmp_path, "state file in use")

    asyncio.run(run())
    (line,) = told(new_home, "state file in use")
    assert line["level"] == "error"
    assert line["by"].startswith("process ")
    assert told(new_home, "state file taken over")
    assert not told(old_home, "state file in use")


def test_what_was_learnt_is_written_by_one(tmp_path: Path) -> None:
    class Logs:
        lines: list[dict[str, object]] = []

        def event(self, level: str, event: str, **fields: object) -> None:
            self.lines.append({"event": event, **fields})

    async def run() -> None:
        path, logs, loop = str(tmp_path / "learnt"), Logs(), asyncio.get_running_loop()
        one, two = (Learnt(path, logs, loop.time) for _ in range(2))  # type: ignore[arg-type]
        one.start()
        two.start()
        await two.save()
        assert not Path(path).exists()
        (line,) = logs.lines
        assert (line["event"], "uses it" in str(line["reason"])) == ("learnt file not written", True)
        await one.save()
        assert Path(path).exists()
        await one.close()
        Path(path).unlink()
        await two.close()
        assert Path(path).exists()
        await until(lambda: len(logs.lines) == 1)

    asyncio.run(run())
