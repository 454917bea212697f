"""Ended connections and requests, good and broken, must be gone without the garbage collector's help: it runs rarely."""

import gc
from collections import Counter

from tests.faults.ledger import Plan, request
from tests.faults.matrix_run import SETTINGS
from tests.faults.rig import Rig, run
from tests.faults.script import Wish

WATCHED = (
    "ClientConnection",
    "RequestReader",
    "UpstreamConnection",
    "ResponseReader",
    "Exchange",
    "Answer",
    "Placement",
    "Intake",
)
WISHES = (
    Wish(),
    Wish(framing="close"),
    Wish(do="rst", at="headers"),
    Wish(do="fin", at="event", k=2),
    Wish(do="end", at="event", k=1),
    Wish(do="garbage", at="headers"),
    Wish(do="extra"),
    Wish(status=404),
    Wish(status=302),
)
PLANS = (Plan(), Plan(leave="upload"), Plan(leave="first", reset=True), Plan(leave="head"))


def alive() -> Counter[str]:
    return Counter(name for thing in gc.get_objects() if (name := type(thing).__name__) in WATCHED)


def test_ended_connections_and_requests_leave_no_cycles() -> None:
    async def play() -> Counter[str]:
        rig = Rig({"m": 1}, SETTINGS, seed=1, inside=True)
        await rig.start()
        try:
            ids = []
            gc.collect()
            gc.disable()
            for number in range(8 * len(WISHES)):
                plan = PLANS[number % len(PLANS)]
                one = request(f"r{number}", "m", number % 2 == 0, WISHES[number % len(WISHES)], plan)
                ids.append(one.id)
                await rig.ask(one)
            await rig.settled_for(ids, 30.0)
            for proxy in rig.groups["m"].proxies:
                proxy.close_idle()
            await rig.at_rest(30.0)
            return alive()
        finally:
            gc.enable()
            await rig.stop()

    left = run(play())
    assert sum(left.values()) <= 4, left  # what a last connection may still hold
