"""Promises on real sockets: what is refused, in which order who waits goes, what travels to engines, what is told after."""

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import Any

import looptime
import pytest

from gateway.config import BackendSpec, ClassSpec, GatewayConfig, KeyLimits, KeySpec, ModelSpec, Queue, Slo
from gateway.spending import STAGES
from tests.wire.kit import CONFIG, INSTANT, Rig, chat, run, until
from tests.wire.peer import Answer
from tests.wire.scripted import DONE, FINISH, Call, ScriptedBackend, event

KEY, OTHER, FREE = "sk-budget-one", "sk-budget-two", "sk-budget-xyz"
CLASSES = (ClassSpec("chat", ttft_ms=2000, tpot_ms=100), ClassSpec("batch", e2e_ms=60_000))
PLANNED = replace(CONFIG, models=(ModelSpec("m", "plan"),))
VIRTUAL = looptime.new_event_loop  # where a budget must not be spent by a busy machine
LEEWAY = (b"x-leeway-tier", b"x-leeway-budget-left-ms", b"x-leeway-predicted-ttft-ms")


def key(text: str, class_name: str = "default", **limits: int) -> KeySpec:
    return KeySpec(hashlib.sha256(text.encode()).hexdigest(), text[-3:], class_name, limits=KeyLimits(**limits))


def one_at_once(spec: BackendSpec) -> BackendSpec:
    return replace(spec, max_in_flight=1)


class Gate:
    """A backend's play that holds every answer until it is opened; `order` is what came, by its first letter."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.order: list[str] = []

    async def __call__(self, call: Call) -> None:
        self.order.append(call.json["messages"][0]["content"][:1])
        call.start_events()
        await self.open.wait()
        call.end_events(event("x"), FINISH, DONE)


async def told(rig: Rig, name: str) -> dict[str, Any]:
    """What is told of a request, once it is over."""
    owner = hashlib.sha256(rig.key.encode()).hexdigest() if rig.key else ""
    await until(lambda: rig.app.plane.books.find(name, owner) is not None)
    answer = await rig.ask(path=f"/v1/requests/{name}", method="GET")
    assert answer.status == 200
    return dict(answer.json)


@pytest.mark.parametrize(
    ("header", "text"),
    [("x-slo-ttft-ms", "soon"), ("x-slo-tpot-ms", "0"), ("x-llm-d-slo-ttft-ms", "-5"), ("x-slo-class", "gold")],
)
def test_nonsense_is_refused_by_its_header_s_name(header: str, text: str) -> None:
    async def case(rig: Rig) -> None:
        answer = await rig.ask(chat(), headers={header: text})
        assert answer.status == 400
        assert (answer.error["code"], answer.error["param"]) == ("invalid_slo", header)
        assert answer.error["type"] == "invalid_request_error"
        assert rig.calls == 0

    run(case, replace(CONFIG, classes=CLASSES))


def test_a_promise_is_told_of_and_nothing_is_told_without_one() -> None:
    async def case(rig: Rig) -> None:
        plain = await rig.ask(chat(stream=True))
        assert not plain.headers.keys() & set(LEEWAY)
        answer = await rig.ask(chat(stream=True), headers={"x-slo-ttft-ms": "5000"})
        assert answer.headers[b"x-leeway-tier"] == b"1"
        assert 3000 < int(answer.headers[b"x-leeway-budget-left-ms"]) <= 5000
        assert 0 <= int(answer.headers[b"x-leeway-predicted-ttft-ms"]) < 1000
        by_class = await rig.ask(chat(stream=True), headers={"x-slo-class": "chat"})
        assert 1000 < int(by_class.headers[b"x-leeway-budget-left-ms"]) <= 2000

    run(case, replace(CONFIG, classes=CLASSES), backends=2, on=VIRTUAL)


def test_a_finished_request_is_told_of_to_its_own_key_alone() -> None:
    async def case(rig: Rig) -> None:
        rig.key = KEY
        await rig.ask(chat(stream=True), headers={"x-request-id": "mine-1"})
        record = await told(rig, "mine-1")
        assert (record["id"], record["model"], record["end"], record["attempts"]) == ("mine-1", "m", "complete", 1)
        assert record["slo"]["class"] == "chat"
        assert (record["slo"]["ttft_ms"], record["slo"]["e2e_ms"], record["slo"]["kept"]) == (2000.0, None, True)
        assert sum(record["spent_ms"].values()) == pytest.approx(record["duration_ms"], abs=0.1)
        assert set(record["spent_ms"]) == set(STAGES)
        rig.key = OTHER
        assert (await rig.ask(path="/v1/requests/mine-1", method="GET")).error["code"] == "request_not_found"
        rig.key = ""
        assert (await rig.ask(path="/v1/requests/mine-1", method="GET")).status == 401
        assert (await rig.ask(path="/v1/requests/mine-1", method="DELETE", headers={"x-api-key": KEY})).status == 405
        rig.key = FREE

    keys = (key(KEY, "chat"), key(OTHER), key(FREE))
    run(case, replace(CONFIG, classes=CLASSES, keys=keys), backends=2, key=FREE, on=VIRTUAL)


def test_the_table_of_records_is_bounded() -> None:
    async def case(rig: Rig) -> None:
        for i in range(5):
            await rig.ask(chat(), headers={"x-request-id": f"r{i}"})
        await told(rig, "r4")
        assert len(rig.app.plane.books._records) == 3
        statuses = [(await rig.ask(path=f"/v1/requests/r{i}", method="GET")).status for i in range(5)]
        assert statuses == [404, 404, 200, 200, 200]

    run(case, replace(CONFIG, slo=Slo(records=3)))


def test_those_with_the_nearest_deadline_go_first() -> None:
    """One backend, one place: the line forms at the gateway. What cannot be in time any more waits for the others."""
    backend, gate = ScriptedBackend("b0"), Gate()

    async def case(rig: Rig) -> None:
        backend.play = gate
        asked = [asyncio.create_task(rig.ask(chat("0", stream=True)))]
        await until(lambda: len(gate.order) == 1)
        for name, target in (("3", "90000"), ("2", "50000"), ("5", ""), ("4", "1"), ("1", "20000")):
            headers = {"x-slo-ttft-ms": target} if target else {}
            text = name * (4000 if name == "5" else 40)  # 4 and 5: promised nothing that can be kept, the shorter one first
            asked.append(asyncio.create_task(rig.ask(chat(text, stream=True), headers=headers)))
            await until(lambda: rig.app.plane.held == len(asked) - 1)
        gate.open.set()
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert gate.order == ["0", "1", "2", "3", "4", "5"]
        assert answers[4].headers[b"x-leeway-tier"] == b"2"

    rule = ModelSpec("m", "plan", rho=0.0)
    run(case, replace(CONFIG, models=(rule,)), backends=(backend,), spec=one_at_once)


def test_without_predictions_the_nearest_deadline_goes_first() -> None:
    backend, gate = ScriptedBackend("b0"), Gate()

    async def case(rig: Rig) -> None:
        backend.play = gate
        asked = [asyncio.create_task(rig.ask(chat("0", stream=True)))]
        await until(lambda: len(gate.order) == 1)
        for name, target in (("3", ""), ("2", "20000"), ("4", "90000"), ("1", "9000")):
            headers = {"x-slo-ttft-ms": target} if target else {}
            asked.append(asyncio.create_task(rig.ask(chat(name, stream=True), headers=headers)))
            await until(lambda: rig.app.plane.held == len(asked) - 1)
        gate.open.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert gate.order == ["0", "1", "2", "3", "4"]

    run(case, backends=(backend,), spec=one_at_once)


def status_of(event_bytes: bytes) -> dict[str, Any]:
    name, data = event_bytes.rstrip().split(b"\n")
    assert name == b"event: leeway.status"
    return dict(json.loads(data.removeprefix(b"data: ")))


def test_the_wait_is_told_on_the_stream_to_who_asks() -> None:
    backend, gate = ScriptedBackend("b0"), Gate()

    async def case(rig: Rig) -> None:
        backend.play = gate
        first = asyncio.create_task(rig.ask(chat("0", stream=True)))
        await until(lambda: len(gate.order) == 1)
        peer = await rig.connect()
        peer.ask(chat("1", stream=True), headers={"x-leeway-wait-status": "sse", "x-slo-ttft-ms": "60000"})
        told = status_of(await peer.seen(b"leeway.status"))
        assert (told["state"], told["waiting"]) == ("waiting", 1)
        assert 0 < told["budget_left_ms"] <= 60_000
        assert told["expected_wait_ms"] >= 1000
        gate.open.set()
        answer = await peer.answer()
        assert (answer.status, answer.whole) == (200, True)
        events = answer.events
        while b"leeway.status" in events[0]:
            events.pop(0)
        assert events == [event("x"), FINISH, DONE]
        peer.ask(chat("2", stream=True), headers={"x-leeway-wait-status": "sse"})
        again = await peer.answer()
        assert again.events == [event("x"), FINISH, DONE], "who does not wait is told nothing"
        assert (await first).status == 200

    run(case, PLANNED, backends=(backend,), spec=one_at_once)


@pytest.mark.parametrize("how", ["refused", "engine"])
def test_what_ends_a_told_wait_without_an_answer_is_one_error_event(how: str) -> None:
    backend, gate = ScriptedBackend("b0"), Gate()

    async def case(rig: Rig) -> None:
        backend.play = gate
        first = asyncio.create_task(rig.ask(chat("0", stream=True)))
        await until(lambda: len(gate.order) == 1)
        peer = await rig.connect()
        strict = {"x-slo-ttft-ms": "200", "x-leeway-strict": "1"} if how == "refused" else {}
        peer.ask(chat("1", stream=True), headers={"x-leeway-wait-status": "sse", **strict})
        await peer.seen(b"leeway.status")
        if how == "engine":
            backend.play = lambda call: call.error(400)
            gate.open.set()
        answer = await peer.answer()
        assert (answer.status, answer.whole) == (200, True)
        assert b"[DONE]" not in answer.body
        error = json.loads(answer.events[-1].split(b"data: ")[1])["error"]
        assert error["code"] == ("out_of_budget" if how == "refused" else "400"), error
        gate.open.set()
        assert (await first).status == 200
        backend.play = gate
        peer.ask(chat("2", stream=True))
        assert (await peer.answer()).status == 200, "the connection goes on"

    run(case, PLANNED, backends=(backend,), spec=one_at_once, on=VIRTUAL)


def full_house(ask: dict[str, str], config: GatewayConfig = CONFIG) -> list[Answer]:
    """What one with these headers is answered while the only place is taken."""
    backend, gate, answers = ScriptedBackend("b0"), Gate(), []

    async def case(rig: Rig) -> None:
        backend.play = gate
        first = asyncio.create_task(rig.ask(chat("0", stream=True)))
        await until(lambda: len(gate.order) == 1)
        answers.append(await rig.ask(chat("1", stream=True), headers=ask))
        gate.open.set()
        assert (await first).status == 200
        assert len(gate.order) == 1, "it never reached the backend"

    run(case, config, backends=(backend,), spec=one_at_once)
    return answers


@pytest.mark.parametrize("config", [CONFIG, PLANNED], ids=["by requests", "planned"])
def test_admit_now_or_refuse(config: GatewayConfig) -> None:
    (answer,) = full_house({"x-leeway-admit": "now"}, config)
    assert (answer.status, answer.error["code"]) == (429, "would_wait")
    assert int(answer.headers[b"retry-after"]) >= 1
    assert int(answer.headers[b"x-leeway-expected-wait-ms"]) >= 1
    assert b"x-should-retry" not in answer.headers


@pytest.mark.parametrize("config", [CONFIG, PLANNED], ids=["by requests", "planned"])
def test_a_strict_request_is_refused_when_its_budget_is_spent(config: GatewayConfig) -> None:
    (answer,) = full_house({"x-slo-ttft-ms": "150", "x-leeway-strict": "true"}, config)
    assert (answer.status, answer.error["code"]) == (503, "out_of_budget")
    assert int(answer.headers[b"retry-after"]) >= 1


def test_a_refusal_of_the_line_tells_the_expected_wait() -> None:
    (answer,) = full_house({}, replace(CONFIG, queue=Queue(timeout_s=0.1)))
    assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
    assert int(answer.headers[b"x-leeway-expected-wait-ms"]) >= 1


def test_a_strict_request_that_cannot_be_in_time_is_not_begun() -> None:
    """The only engine takes seconds for such a prompt, by all that is known of it."""

    async def case(rig: Rig) -> None:
        headers = {"x-slo-ttft-ms": "20", "x-leeway-strict": "true"}
        answer = await rig.ask(chat("x" * 1_000_000, stream=True), headers=headers)
        assert (answer.status, answer.error["code"]) == (503, "out_of_budget")
        assert rig.calls == 0
        assert (await rig.ask(chat("x" * 1_000_000, stream=True), headers={"x-slo-ttft-ms": "20"})).status == 200

    run(case, PLANNED)


def test_requests_and_tokens_per_minute() -> None:
    async def case(rig: Rig) -> None:
        rig.key = KEY
        answers = [await rig.ask(chat()) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[2].error["code"] == "requests_per_min"
        assert 1 <= int(answers[2].headers[b"retry-after"]) <= 120
        rig.key = OTHER
        assert (await rig.ask(chat("x" * 4000))).status == 200
        refused = await rig.ask(chat("x" * 4000))
        assert (refused.status, refused.error["code"]) == (429, "tokens_per_min")
        assert (await rig.ask(chat("x"))).status == 200, "a small one still fits"
        await until(lambda: not any(client.in_flight for client in rig.app.plane.keyring._clients.values()))
        rig.key = FREE

    run(case, replace(CONFIG, keys=(key(KEY, requests_per_min=2), key(OTHER, tokens_per_min=1500), key(FREE))), key=FREE)


def test_what_travels_to_an_engine() -> None:
    slo = Slo(engine_priority="always", engine_budget="always")

    async def case(rig: Rig) -> None:
        seen = rig.engines[0].serving.recent
        headers = {"x-slo-ttft-ms": "3000", "x-slo-tpot-ms": "50", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
        await rig.ask(chat(stream=True, vllm_xargs={"mine": 1, "leeway_class": "stolen"}), headers=headers)
        facts = seen[-1].vllm_xargs
        assert (facts["mine"], facts["leeway_class"]) == (1, "stolen"), "the client's own entries stay as they are"
        assert (facts["leeway_v"], facts["leeway_ttft_ms"], facts["leeway_tpot_ms"]) == (1, 3000.0, 50.0)
        promised_s = (facts["leeway_deadline_unix_ms"] - facts["leeway_arrival_unix_ms"]) / 1e3
        assert promised_s == pytest.approx(3.0, abs=0.01)
        assert facts["leeway_deadline_unix_ms"] - 100 < seen[-1].priority <= facts["leeway_deadline_unix_ms"]
        assert seen[-1].headers["traceparent"] == headers["traceparent"]
        await rig.ask(chat(), headers={"x-vllm-priority": "-9"})
        plain = seen[-1]
        assert plain.vllm_xargs["leeway_class"] == "default"
        assert "leeway_deadline_unix_ms" not in plain.vllm_xargs
        assert plain.priority > facts["leeway_deadline_unix_ms"], "without a promise it is none of the first, whatever it says"
        assert "traceparent" not in plain.headers, "no trace is invented"
        assert plain.kv_transfer_params is None

    config = replace(CONFIG, slo=slo, models=(ModelSpec("m", "plan"),))
    run(case, config, backends=0, engines=(replace(INSTANT, models=("m",)),))


@pytest.mark.parametrize(("restored_per_s", "forbidden"), [(0.0, False), (1e9, False), (0.01, True)])
def test_a_deep_restore_that_does_not_fit_is_forbidden(restored_per_s: float, forbidden: bool) -> None:
    async def case(rig: Rig) -> None:
        seen = rig.engines[0].serving.recent
        await rig.ask(chat(stream=True), headers={"x-slo-ttft-ms": "3000"})
        assert seen[-1].kv_transfer_params == ({"kv_load_tiers": []} if forbidden else None)
        own = {"kv_load_tiers": [{"medium": "storage"}], "mine": 1}
        await rig.ask(chat(stream=True, kv_transfer_params=own), headers={"x-slo-ttft-ms": "3000"})
        assert seen[-1].kv_transfer_params == own, "what a client says itself stays"
        await rig.ask(chat(stream=True))
        assert seen[-1].kv_transfer_params is None, "without a promise nothing is added"

    def restores(spec: BackendSpec) -> BackendSpec:
        return replace(spec, restore_tokens_per_s=restored_per_s)

    run(case, PLANNED, backends=0, engines=(replace(INSTANT, models=("m",)),), spec=restores)


def test_an_engine_without_priorities_gets_the_bytes_of_its_client() -> None:
    async def case(rig: Rig) -> None:
        await rig.ask(chat(stream=False), headers={"x-slo-ttft-ms": "3000"})
        call = rig.backend.calls[-1]
        assert call.json == chat(stream=False)
        assert b"x-vllm-priority" not in call.headers

    run(case)


@pytest.mark.parametrize(("rule", "passes"), [("override", False), ("respect", True)])
def test_a_client_s_own_priority(rule: str, passes: bool) -> None:
    async def case(rig: Rig) -> None:
        await rig.ask(chat(priority=-3), headers={"x-vllm-priority": "-9"})
        call = rig.backend.calls[-1]
        assert (b"x-vllm-priority" in call.headers) is passes
        assert call.json["priority"] == -3
        record = await told(rig, call.headers[b"x-request-id"].decode())
        assert record["slo"]["class"] == "urgent"

    urgent = ClassSpec("urgent", ttft_ms=500, priorities=(-3, -9))
    run(case, replace(CONFIG, classes=(urgent,), slo=Slo(client_priority=rule)))  # type: ignore[arg-type]


def test_an_agent_s_deadline_in_the_body_is_a_promise() -> None:
    async def case(rig: Rig) -> None:
        context = {"agentic_context": {"deadline_seconds": 12.5, "program_id": "p"}}
        await rig.ask(chat(vllm_xargs=context), headers={"x-request-id": "agent"})
        record = await told(rig, "agent")
        assert record["slo"]["e2e_ms"] == 12_500.0
        assert json.loads(rig.backend.calls[-1].body)["vllm_xargs"] == context

    run(case)


def test_an_agent_s_deadline_leaves_what_the_head_says() -> None:
    async def case(rig: Rig) -> None:
        context = {"agentic_context": {"deadline_seconds": 12.5}}
        await rig.ask(chat(vllm_xargs=context), headers={"x-request-id": "agent", "x-request-priority": "-3"})
        slo = (await told(rig, "agent"))["slo"]
        assert (slo["class"], slo["e2e_ms"]) == ("urgent", 12_500.0)

    run(case, replace(CONFIG, classes=(ClassSpec("urgent", ttft_ms=500, priorities=(-3,)),)))


def test_promises_are_counted() -> None:
    async def case(rig: Rig) -> None:
        for _ in range(3):
            await rig.ask(chat(stream=True), headers={"x-slo-class": "chat"})
        rig.backends[0].play = rig.backends[1].play = lambda call: call.error(500)
        await rig.ask(chat(stream=True), headers={"x-slo-class": "chat"})
        await told(rig, rig.sent.ids[-1])
        text = await rig.metrics()
        assert 'leeway_slo_requests_total{class="chat"} 4.0' in text
        assert 'leeway_slo_good_total{class="chat"} 3.0' in text
        assert 'leeway_slo_violations_total{class="chat",target="ttft"} 1.0' in text
        assert 'leeway_slo_spent_seconds_total{class="chat",stage="decode"}' in text
        assert 'leeway_slo_jain{by="tenant"} 1.0' in text

    run(case, replace(CONFIG, classes=CLASSES), backends=2, on=VIRTUAL)
