"""Traces on real sockets: what an engine is told of them, and which requests leave a span."""

from dataclasses import replace
from random import Random

import pytest

from gateway.accounts import Account
from gateway.trace import Trace, joined
from tests.wire.kit import CONFIG, INSTANT, Rig, chat, run, until
from tests.wire.scripted import Call, well

CLIENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class Kept:
    """Spans that were over, where others would be exported."""

    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self._rng = Random(7)

    def joined(self, traceparent: bytes) -> Trace:
        return joined(traceparent, self._rng)

    def over(self, account: Account) -> None:
        self.accounts.append(account)


@pytest.mark.parametrize("name", ["traceparent", "TraceParent"])
def test_an_engine_s_span_is_a_child_of_ours_and_ours_of_the_client_s(name: str) -> None:
    async def case(rig: Rig) -> None:
        kept = rig.app.plane.books.tracer = Kept()
        seen = rig.engines[0].serving.recent
        for count, stream in enumerate((True, False), 1):  # which go out with different lines
            headers = {name: CLIENT, "tracestate": "vendor=1", "x-slo-ttft-ms": "3000"}
            assert (await rig.ask(chat(stream=stream), headers=headers)).status == 200
            await until(lambda count=count: len(kept.accounts) == count)
            trace = kept.accounts[-1].trace
            assert trace is not None
            assert f"{trace.trace_id:032x}-{trace.parent_id:016x}" == CLIENT[3:52]
            assert seen[-1].headers["traceparent"] == f"00-{trace.trace_id:032x}-{trace.span_id:016x}-01"
            assert seen[-1].headers["tracestate"] == "vendor=1"
        assert (await rig.ask(chat())).status == 200
        await until(lambda: len(kept.accounts) == 3)
        trace = kept.accounts[-1].trace
        assert trace is not None
        assert trace.parent_id == 0
        assert seen[-1].headers["traceparent"][3:52] == f"{trace.trace_id:032x}-{trace.span_id:016x}"

    run(case, backends=0, engines=(replace(INSTANT, models=("m",)),))


def test_one_span_for_a_request_however_often_it_is_tried_and_none_where_none_are_exported() -> None:
    async def case(rig: Rig) -> None:
        def play(call: Call) -> None:
            call.error(429, b"retry-after: 1") if rig.calls == 1 else well(call)

        for backend in rig.backends:
            backend.play = play
        kept = rig.app.plane.books.tracer = Kept()
        assert (await rig.ask(chat(), headers={"traceparent": CLIENT})).status == 200
        await until(lambda: bool(kept.accounts))
        calls = [call for backend in rig.backends for call in backend.calls]
        assert len(calls) == 2
        assert len({call.headers[b"traceparent"] for call in calls}) == 1
        assert [account.attempts for account in kept.accounts] == [2]
        assert (await rig.ask({**chat(), "model": "nobody's"})).status == 404
        await until(lambda: len(kept.accounts) == 2)
        assert kept.accounts[-1].end == "refused"
        rig.app.plane.books.tracer = None
        assert (await rig.ask(chat(), headers={"traceparent": CLIENT})).status == 200
        rig.app.plane.books.write()
        assert len(kept.accounts) == 2
        last = [call for backend in rig.backends for call in backend.calls if call not in calls][-1]
        assert last.headers[b"traceparent"] == CLIENT.encode()

    run(case, CONFIG, backends=2)
