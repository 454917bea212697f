"""The fault matrix in short: each of its 352 cells with a few requests, through a gateway inside this process.

The soak runs the same cells with 100 requests each against a gateway of its own process.
"""

import asyncio

import pytest

from tests.faults.ledger import Seen, request
from tests.faults.matrix import cells
from tests.faults.matrix_run import SETTINGS, MatrixResult, MatrixRun, lanes
from tests.faults.rig import GatewayInside, Rig, run
from tests.faults.script import Wish

LANES = 8
PER_CELL = 2


def test_every_cell_has_exactly_one_end_of_the_right_kind() -> None:
    async def matrix() -> tuple[MatrixResult, int, int]:
        rig = Rig(lanes(LANES), SETTINGS, seed=1, inside=True)
        await rig.start()
        tasks_before = len(asyncio.all_tasks())
        result = MatrixResult()
        try:
            await MatrixRun(rig, PER_CELL, result).run(cells(), LANES)
            await rig.at_rest(60.0)
            tasks_after = len(asyncio.all_tasks())
        finally:
            await rig.stop()
        return result, tasks_before, tasks_after

    result, tasks_before, tasks_after = run(matrix())
    assert result.failed == {}
    assert result.cells == 352
    assert result.verdict.requests == 352 * (PER_CELL + 1)
    assert result.verdict.count("lost", "duplicated", "changed", "orphan") == 0
    assert {"complete", "error", "stream_error", "broken", "gone"} <= set(result.verdict.ends)
    assert tasks_after <= tasks_before


@pytest.mark.parametrize("do", ["rst", "fin", "hang"])
def test_a_giant_event_cut_in_the_middle_breaks_the_connection(do: str) -> None:
    """More of it than the gateway holds is out: nothing may be added behind half an event."""

    async def giant() -> tuple[str, int, bytes]:
        rig = Rig({"m": 1}, SETTINGS, seed=1, inside=True)
        await rig.start()
        try:
            wish = Wish(do=do, at="mid", k=1, text=200_000)  # type: ignore[arg-type]
            record = await rig.ask(request("giant", "m", True, wish))
            await rig.settled_for(["giant"], 30.0)
            line = rig.ledgers.access["giant"][0]
        finally:
            await rig.stop()
        return f"{record.seen} {line.end}", len(record.body), record.body[-40:]

    end, size, tail = run(giant())
    assert end == "cut failed_in_stream"
    assert size > 65536
    assert b"error" not in tail


def test_answers_of_different_lengths_on_one_backend_connection() -> None:
    """Each has its own Content-Length, also when its head was recognised from an earlier answer."""

    async def answers() -> tuple[list[tuple[Seen, bytes, int]], int]:
        rig = Rig({"m": 1}, SETTINGS, seed=1, inside=True)
        await rig.start()
        out = []
        try:
            for i, text in enumerate((24, 90_000, 24, 300, 24)):
                record = await rig.ask(request(f"r{i}", "m", False, Wish(text=text)))
                out.append((record.seen, record.headers[b"content-length"], len(record.body)))
            assert isinstance(rig.gateway, GatewayInside)
            connections = sum(pool.open_connections for pool in rig.gateway.app.plane.pools)
        finally:
            await rig.stop()
        return out, connections

    out, connections = run(answers())
    assert connections == 1
    assert all(seen == "whole" and int(length) == size for seen, length, size in out)
