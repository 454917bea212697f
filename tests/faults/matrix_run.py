"""Runs the cells of the fault matrix against a gateway, several lanes at a time, and judges each by the ledgers. Shell.

A cell goes in rounds: arm the fault, send requests, disarm, and one clean request that must succeed at once. After it
nothing may be in flight. Each lane has backends and proxies of its own, so that cells do not disturb each other.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.faults.checker import Kind, Verdict, View, check
from tests.faults.client import Connection, connect
from tests.faults.ledger import ClientRecord, Request, request
from tests.faults.matrix import Cell
from tests.faults.rig import Group, Rig

LIMIT_S = 90.0
REST_S = 60.0
WIDTH = 20
NARROW = 5  # single bytes by the hundred: wider, and the machine has no time for anything else
CHAIN = 4
SETTINGS = """
[timeouts]
# hangs must end within a test, not within minutes
connect_s = 1.0
first_byte_s = 1.0
unary_s = 1.0
idle_s = 1.0
[health]
# each request of a cell must meet the fault, not a breaker that earlier requests have opened
failures = 100
"""


def lanes(count: int) -> dict[str, int]:
    """The rig's groups: for each lane a model with one backend and a model with three."""
    return {f"{word}-{i}": size for i in range(count) for word, size in (("one", 1), ("three", 3))}


@dataclass(slots=True)
class MatrixResult:
    """What came out: one verdict over all cells, and the names of those that failed, with why."""

    verdict: Verdict = field(default_factory=Verdict)
    cells: int = 0
    failed: dict[str, list[str]] = field(default_factory=dict)


class MatrixRun:
    """See the module's words."""

    def __init__(self, rig: Rig, per_cell: int, result: MatrixResult) -> None:
        self._rig = rig
        self._per_cell = per_cell
        self.result = result

    async def run(self, cells: Iterable[Cell], lane_count: int) -> None:
        """All cells, each by the next free lane."""
        todo = iter(list(cells))

        async def lane(number: int) -> None:
            for cell in todo:
                await self._cell(cell, self._rig.groups[f"{'one' if cell.backends == 1 else 'three'}-{number}"])

        await asyncio.gather(*(lane(number) for number in range(lane_count)))

    async def _cell(self, cell: Cell, group: Group) -> None:
        ids: list[str] = []
        wrong: list[str] = []
        try:
            width = NARROW if cell.fault == "slicer" else WIDTH
            for start in range(0, self._per_cell, width):
                numbers = range(start, min(start + width, self._per_cell))
                await self._round(cell, group, numbers, ids)
            await self._rig.released(group, REST_S)
        except TimeoutError as error:
            wrong.append(str(error))
        verdict = await self._judge(cell, ids)
        wrong += [str(breach) for breach in verdict.breaches]
        self.result.verdict.add(verdict)
        self.result.cells += 1
        if wrong:
            self.result.failed[cell.name] = wrong

    async def _round(self, cell: Cell, group: Group, numbers: range, ids: list[str]) -> None:
        """One round: the struck requests, then a clean one."""
        fault = cell.network
        if fault is not None:
            group.proxies[0].arm(fault)
        try:
            requests = [self._request(cell, group, number) for number in numbers]
            ids += [one.id for one in requests]
            if cell.phase == "idle":
                # in one chain, so that a close behind an answer is there before the next request; what hangs, in several
                chains = max(1, len(requests) // CHAIN) if cell.fault == "black_hole" else 1
                await asyncio.gather(*(self._in_turn(requests[i::chains]) for i in range(chains)))
            else:
                await asyncio.gather(*(self._rig.ask(one, LIMIT_S) for one in requests))
        finally:
            if fault is not None:
                group.proxies[0].disarm()
        if cell.phase == "connect" or cell.fault in ("refuse", "black_hole"):
            await self._rig.ready([group], REST_S)  # probes met the fault as well
        clean = request(f"{cell.name}-clean-{numbers.start}", group.model, cell.stream)
        ids.append(clean.id)
        await self._rig.ask(clean, LIMIT_S)

    def _request(self, cell: Cell, group: Group, number: int) -> Request:
        wish, plan = cell.wish(number), cell.plan(number)
        pad = 70_000 if plan.leave == "upload" or number % 7 == 6 else 0
        return request(f"{cell.name}-{number}", group.model, cell.stream, wish, plan, asks_usage=number % 2 == 1, pad=pad)

    async def _in_turn(self, requests: list[Request]) -> None:
        """One after the other, so that backend connections are used again."""
        connection: Connection | None = None
        for one in requests:
            if connection is None or not connection.usable:
                connection = await connect(self._rig.port, self._rig.ledgers)
            await connection.ask([one], LIMIT_S)
        if connection is not None:
            connection.close()

    async def _judge(self, cell: Cell, ids: list[str]) -> Verdict:
        await self._rig.settled_for(ids, REST_S)
        ledgers = self._rig.ledgers.take(ids)
        touched = {i: frozenset(touch.kind for touch in touches) for i, touches in ledgers.touches.items()}

        def allowed(record: ClientRecord, seen: View) -> frozenset[Kind]:
            name, _, number = record.request.id.rpartition("-")
            if name.endswith("clean"):
                return frozenset(("complete",))
            return cell.ends(touched.get(record.request.id, frozenset()), int(number))

        return check(ledgers, allowed)
