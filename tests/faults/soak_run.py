"""The mixed load of the soak: workers, the weather of network faults, and one judgement per epoch. Shell.

Between epochs everything comes to rest: the ledgers are judged and cleared, the gateway's memory and descriptors are
read. So a run of any length needs bounded memory of its own, and a leak shows as a slope over epochs.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

from tests.faults.checker import NOT_STARTED, Breach, Kind, Verdict, View, check
from tests.faults.client import Connection, connect
from tests.faults.ledger import STAY, ClientRecord, Request
from tests.faults.mix import draw, network_faults, right
from tests.faults.rig import GatewayProcess, Group, Rig

MODEL = "mix"
WORKERS = 64
LIMIT_S = 90.0  # beyond the longest wait in the line: whatever comes of a request, its client is told
REST_S = 60.0
WEATHER_S = 1.0
PIPELINED = 0.02
HEAVY = 0.3
REFUSALS = ("no_backend", "queue_timeout", "queue_full")
SAMPLES_MAX = 40
LOOK_S = 0.5
AFTER_S = 1.0  # connections that a fault has left in a pool are closed when it ends, and may meet a request just then
SETTINGS = """
[timeouts]
# shipped defaults except these: hangs must end within seconds, not minutes, for a run of minutes to hold many
connect_s = 1.0
first_byte_s = 1.5
unary_s = 1.5
idle_s = 1.5
write_stall_s = 3.0

[tagger]
# full when the warm-up ends: what grows after that grows for ever
cache_entries = 128
"""


@dataclass(slots=True)
class SoakResult:
    """What the epochs gave. `memory_mib`: what the gateway kept at rest, each after `memory_at` requests; the first is the
    warm-up's."""

    verdict: Verdict = field(default_factory=Verdict)
    memory_mib: list[float] = field(default_factory=list)
    memory_at: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    faults_armed: int = 0
    descriptors_base: int = 0
    descriptors_end: int = 0

    @property
    def growth_mib(self) -> float:
        """MiB per 100,000 requests: from the median of the second fifth of the readings to that of the last fifth. The first
        fifth, like the warm-up, is left for pools and tables to fill; a single reading may be off by a step of the
        allocator, a median of several is not; what is never let go lies between the two, however little it is. 0.0 of
        fewer than five readings after the warm-up."""
        fifth = (len(self.memory_mib) - 1) // 5
        if fifth < 1:
            return 0.0
        early, late = slice(1 + fifth, 1 + 2 * fifth), slice(-fifth, None)
        grown_mib = median(self.memory_mib[late]) - median(self.memory_mib[early])
        return grown_mib * 100_000 / (median(self.memory_at[late]) - median(self.memory_at[early]))

    @property
    def line_mib(self) -> float:
        """The same by the straight line from the warm-up to the end: for long runs, where steps weigh little."""
        count = self.memory_at[-1] - self.memory_at[0] if self.memory_at else 0
        return (self.memory_mib[-1] - self.memory_mib[0]) * 100_000 / count if count else 0.0


class Soak:
    """See the module's words."""

    def __init__(self, rig: Rig, seed: int, log: Callable[[str], None], rest_s: float) -> None:
        self._rig = rig
        self._rest_s = rest_s
        self._log = log
        self._rng = Random(seed)
        self._faults = network_faults()
        self._next = 0
        self._left = 0
        self._heavy = 0
        self.result = SoakResult()

    @property
    def _group(self) -> Group:
        return self._rig.groups[MODEL]

    async def run(self, requests: int, warm_up: int, epoch: int) -> None:
        """A warm-up that begins with a heavy part, then `requests` more, in epochs."""
        gateway = self._rig.gateway
        assert isinstance(gateway, GatewayProcess)
        await self._quiet()
        self.result.descriptors_base = gateway.descriptors()
        self._heavy = int(warm_up * HEAVY)
        sizes = [size for size in (warm_up, *([epoch] * (requests // epoch)), requests % epoch) if size]
        read_every = max(1, len(sizes) // SAMPLES_MAX)
        for number, size in enumerate(sizes):
            await self._epoch(size)
            if number % read_every == 0 or number == len(sizes) - 1:
                self.result.memory_mib.append(await self._kept_mib(gateway))
                self.result.memory_at.append(self._next)
            if number == 1:
                gateway.reload()
        self.result.descriptors_end = await self._closed(gateway)

    async def _kept_mib(self, gateway: GatewayProcess) -> float:
        """The least that is seen of its memory within `rest_s`: free pages are given back at turns (gateway/memory.py), so a
        reading between two of them tells of the last large bodies as well."""
        end_s = asyncio.get_running_loop().time() + self._rest_s
        least_mib = gateway.memory_mib()
        while asyncio.get_running_loop().time() < end_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), LOOK_S)
            least_mib = min(least_mib, gateway.memory_mib())
        return least_mib

    async def _closed(self, gateway: GatewayProcess) -> int:
        """Descriptors at rest, once the backends have closed what idles."""
        for proxy in self._group.proxies:
            proxy.close_idle()
        await self._quiet()
        return gateway.descriptors()

    async def _quiet(self) -> None:
        await self._rig.at_rest(REST_S)
        await self._rig.ready([self._group], REST_S)

    async def _epoch(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        self._left = size
        over = asyncio.Event()
        weather = asyncio.create_task(self._weather(over))
        await asyncio.gather(*(self._worker() for _ in range(WORKERS)))
        over.set()
        await weather
        loaded_s = loop.time() - started_s
        try:
            await self._quiet()
        except TimeoutError as error:
            self.result.verdict.breaches.append(Breach("-", "orphan", str(error)))
        ids = list(self._rig.ledgers.clients)
        await self._rig.settled_for(ids, REST_S)
        self._judge()
        self._log(f"{self._next} requests, {size / loaded_s:.0f} per second, {len(self.result.verdict.breaches)} breaches")
        gc.collect()

    async def _weather(self, over: asyncio.Event) -> None:
        """A fault somewhere, always: another one at another proxy every second."""
        while not over.is_set():
            proxy = self._rng.choice(self._group.proxies)
            proxy.arm(self._rng.choice(self._faults))
            self.result.faults_armed += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), WEATHER_S)
            proxy.disarm()

    # -- load

    async def _worker(self) -> None:
        connection: Connection | None = None
        while self._left > 0:
            batch = self._batch()
            if connection is None or not connection.usable or batch[0].plan.fresh:
                if connection is not None:
                    connection.close()
                connection = await connect(self._rig.port, self._rig.ledgers)
            await connection.ask(batch, LIMIT_S)
        if connection is not None:
            connection.close()

    def _batch(self) -> list[Request]:
        """One request, or a few for one write."""
        first = self._draw()
        if first.plan != STAY or self._rng.random() > PIPELINED:
            return [first]
        more = [self._draw() for _ in range(self._rng.randrange(1, 4))]
        return [
            first,
            *(
                replace(one, plan=replace(one.plan, leave="", stall_s=0.0, drip=0, expects_continue=False, pipelined=True))
                for one in more
            ),
        ]

    def _draw(self) -> Request:
        self._left -= 1
        self._next += 1
        return draw(self._rng, f"s{self._next:x}", MODEL, heavy=self._next <= self._heavy)

    # -- judgement

    def _judge(self) -> None:
        ledgers = self._rig.ledgers

        def allowed(record: ClientRecord, seen: View) -> frozenset[Kind]:
            one = record.request
            near = [w for w in ledgers.windows if w.start_s <= record.ended_s and record.sent_s <= w.end_s + AFTER_S]
            runs = ledgers.runs.get(one.id, [])
            ran = any(run.status not in NOT_STARTED for run in runs)
            kinds = right(one, ledgers.touches.get(one.id, []), ran, near)
            if seen.code in REFUSALS and not ran:
                self.result.refused[seen.code] += 1  # an honest refusal while no backend is up
                kinds |= {"error"}
            return kinds

        self.result.verdict.add(check(ledgers, allowed))
        self._rig.forget()
