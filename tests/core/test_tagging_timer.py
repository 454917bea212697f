"""Who waits in a line is asked about by one timer, whatever becomes of the tagger's settings meanwhile."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import looptime

from gateway.config import GatewayConfig, Tagger
from gateway.jobs import Job
from gateway.lodging import Waiter
from gateway.tagging import JOIN_AFTER_S, Prompt, Tagging, Watched
from predictor.request import LengthEstimate


class Request:
    """Left its line before it was asked about."""

    def __init__(self) -> None:
        self.watched: Watched | None = None
        self.joins = True

    def waiter(self) -> Waiter | None:
        return None

    def tagged(self, lengths: LengthEstimate, plain: LengthEstimate | None) -> None:
        raise AssertionError("it did not wait")

    def revised(self, lengths: LengthEstimate) -> bool:
        raise AssertionError("nobody was asked")


class Plane:
    """The loop that it lends keeps what is due."""

    def __init__(self) -> None:
        self.config = GatewayConfig(tagger=Tagger(mode="auto"))
        self.loop = self
        self.due: list[asyncio.TimerHandle] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, wait_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.due.append(asyncio.get_running_loop().call_later(wait_s, call))
        return self.due[-1]

    @property
    def live(self) -> int:
        return sum(not handle.cancelled() and handle.when() > self.now() for handle in self.due)


def test_one_timer_before_and_after_a_reload() -> None:
    async def main() -> None:
        plane = Plane()
        tagging = Tagging(plane)  # type: ignore[arg-type]
        job, prompt = Job("1", "m", 100, LengthEstimate(1, 2, 3, "t"), 0.0), Prompt(b"{}", (), -1, 1.0)

        def comes() -> None:
            tagging.after(Request(), job, prompt, waiting=True)

        async def later(wait_s: float) -> None:
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(wait_s, passed.set)
            await passed.wait()

        comes()
        comes()
        assert plane.live == 1
        plane.config = replace(plane.config, tagger=Tagger(mode="auto", deadline_ms=7.0))
        tagging.adopt()
        assert plane.live == 0
        comes()
        assert plane.live == 1
        await later(JOIN_AFTER_S / 2)
        comes()
        assert plane.live == 1
        await later(0.6 * JOIN_AFTER_S)
        assert (plane.live, tagging.counts.skips["sent"]) == (1, 1)
        await later(JOIN_AFTER_S)
        assert (plane.live, tagging.counts.skips["sent"]) == (0, 2)
        assert len(plane.due) == 3
        comes()
        tagging.close()
        assert plane.live == 0

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(main())
