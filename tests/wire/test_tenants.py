"""Tenants on real sockets: what the line charges them is what engines really produced."""

import asyncio
import hashlib
from dataclasses import replace

import pytest

from gateway.config import BackendSpec, KeySpec, ModelSpec
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import ANSWER, DONE, FINISH, Call, ScriptedBackend, event

ONE, TWO = "sk-tenant-one", "sk-tenant-two"


def owner(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def one_at_once(spec: BackendSpec) -> BackendSpec:
    return replace(spec, max_in_flight=1)


@pytest.mark.parametrize("stream", [True, False])
def test_the_charge_is_corrected_when_the_answer_is_over(stream: bool) -> None:
    backend, turns, sent = ScriptedBackend("b0"), asyncio.Semaphore(0), []

    async def play(call: Call) -> None:
        sent.append(call)
        await turns.acquire()
        if stream:
            call.start_events()
            call.end_events(*[event("x")] * 700, FINISH, DONE)
        else:
            call.answer(ANSWER.replace(b'"completion_tokens":1,', b'"completion_tokens":700,'))

    async def case(rig: Rig) -> None:
        backend.play = play
        asked = [asyncio.create_task(rig.ask(chat("0", stream=stream)))]
        await until(lambda: len(sent) == 1)
        for number, name in enumerate((ONE, TWO, ONE, TWO), 2):
            rig.key = name
            asked.append(asyncio.create_task(rig.ask(chat("1", stream=stream))))
            await until(lambda count=number: rig.app.plane.held == count - 1)
        turns.release()
        await until(lambda: len(sent) == 2)
        ((_, desk),) = rig.app.plane.desks
        tenants = desk.line.tenants
        charged = tenants.spent(ONE)
        (charge,) = tenants._charges.values()
        assert charged == charge.prompt + 2 * charge.expected
        turns.release()
        await until(lambda: len(sent) == 3)
        assert tenants.spent(ONE) == pytest.approx(charged + 2 * (700 - charge.expected), abs=8)
        for _ in range(3):
            turns.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    keys = tuple(KeySpec(owner(name), name) for name in (ONE, TWO))
    config = replace(CONFIG, keys=keys, models=(ModelSpec("m", "plan", order="fcfs"),))
    run(case, config, backends=(backend,), spec=one_at_once, key=ONE)


@pytest.mark.parametrize("name", ["x-llm-d-inference-fairness-id", "x-tenant-id"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_client_names_its_tenant_where_there_are_no_keys(name: str, keyed: bool) -> None:
    """With keys the key is the tenant, whatever a client says."""
    backend, turns, sent = ScriptedBackend("b0"), asyncio.Semaphore(0), []

    async def play(call: Call) -> None:
        sent.append(call)
        await turns.acquire()
        call.answer(ANSWER)

    async def case(rig: Rig) -> None:
        backend.play = play
        asked = [asyncio.create_task(rig.ask(chat("0")))]
        await until(lambda: len(sent) == 1)
        for number, tenant in enumerate(("red", "blue"), 1):
            asked.append(asyncio.create_task(rig.ask(chat(tenant), headers={name: tenant})))
            await until(lambda count=number: rig.app.plane.held == count)
        ((_, desk),) = rig.app.plane.desks
        assert set(desk.line.tenants._waiting) == ({ONE} if keyed else {"red", "blue"})
        assert desk.line.tenants.share is not keyed
        for _ in asked:
            turns.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    config = replace(CONFIG, keys=(KeySpec(owner(ONE), ONE),) if keyed else (), models=(ModelSpec("m", "plan"),))
    run(case, config, backends=(backend,), spec=one_at_once, key=ONE if keyed else "")
