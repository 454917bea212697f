"""Questions of requests with a promise, from the gateway's probing client to a real sidecar and to one of before."""

import asyncio
import math
from dataclasses import replace

import pytest

from gateway.jobs import Job
from gateway.probing import ProbeClient
from predictor.oracle import FixedPace, Oracle
from predictor.request import LengthEstimate
from predictor.sidecar import Sidecar, SidecarConfig
from predictor.sighting import Sighting
from tests.core.test_cascade import NOW_S
from tests.core.test_places import PROFILE, Budgeted
from tests.wire.test_probing import REPLY, Link, Scripted, good

LOOP_S = 500.0  # the gateway's clock, at the instant that is NOW_S in unix time
PLAIN = Job("plain", "m", 48, LengthEstimate(10, 10, 10, "test"), LOOP_S)
TIGHT = replace(PLAIN, id="tight", arrival_s=LOOP_S - 0.1, deadline_s=LOOP_S + 0.7, class_name="chat")


class Still:
    """A source that shows one state."""

    def __init__(self, seen: Sighting) -> None:
        self.seen = seen

    def look(self, now_s: float) -> Sighting:
        return self.seen

    def close(self) -> None:
        """Nothing to let go of."""


def client() -> ProbeClient:
    return ProbeClient(30.0, lambda: LOOP_S, lambda: int(NOW_S * 1000))


def test_a_tight_request_is_told_its_real_place_and_an_unpromised_one_its_own() -> None:
    engine = Budgeted(1, rho=0.0)
    seen = engine.seen()
    assert len(seen.snapshot.waiting) > 5

    async def main() -> dict[str, float]:
        told: dict[str, float] = {}
        async with Sidecar(Still(seen), Oracle(FixedPace(PROFILE)), SidecarConfig(port=0), lambda: 100.0) as sidecar:
            asking = client()
            asking.added("a", sidecar.url)
            for job in (PLAIN, TIGHT, replace(TIGHT, id="late", deadline_s=LOOP_S + 600.0)):
                reply = (await asking.probe(("a",), job))["a"]
                assert reply is not None
                told[job.id] = reply.estimate.ttft_s
            asking.reserve("a", replace(TIGHT, id="before", deadline_s=LOOP_S + 0.6))
            reply = (await asking.probe(("a",), TIGHT))["a"]
            assert reply is not None
            told["behind a reserved one"] = reply.estimate.ttft_s
            await asking.close()
        return told

    told = asyncio.run(asyncio.wait_for(main(), 60))
    assert told["tight"] < told["late"] < math.inf
    assert told["tight"] < told["plain"]
    assert told["tight"] < told["behind a reserved one"]


@pytest.mark.parametrize("job", [PLAIN, TIGHT], ids=["plain", "promised"])
def test_a_sidecar_of_before_answers_as_ever(job: Job) -> None:
    bodies: list[bytes] = []

    async def old(link: Link) -> None:
        while True:
            head = await link.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            bodies.append(await link.reader.readexactly(length))
            link.writer.write(good())

    async def main() -> None:
        async with Scripted(old).running() as sidecar:
            asking = client()
            asking.added("a", sidecar.url)
            assert (await asking.probe(("a",), job))["a"] == REPLY
            await asking.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert (b"deadline_unix_ms" in bodies[0]) is (job is TIGHT)
