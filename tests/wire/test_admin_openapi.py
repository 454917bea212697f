"""The API's description: it names every route, and a fuzzer that reads it finds no answer that it does not describe."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from backends.mock import MockEngine
from gateway.admin_openapi import OPERATIONS, document
from gateway.config import Admin, BackendSpec, ModelSpec
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec
from tests.wire.admin_kit import ADMIN_KEY, CONFIG, DEADLINE_S, Running, engine_config, engines, read, running

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 25
# two names are there from the start, so that looking, changing and removing do not only meet 404
NAMES = ("there", "declared", "absent")
MODELS = ("org/first:1b", "second", "absent")
LABELS = [f"{op.method.upper()} {op.path}" for op in OPERATIONS]
KEY = {"Authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway in a thread of its own."""
    started: Future[tuple[Running, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    admin = Admin(key=ADMIN_KEY, networks=("127.0.0.0/8",), backends_max=200)
    path: Path = tmp_path_factory.mktemp("gateway")

    async def serve() -> None:
        lodgers = [replace(engine_config("instant"), name=f"lodger-{i}", models=(MODELS[i],)) for i in (0, 1)]
        async with engines(engine_config("instant"), *lodgers) as (engine, *sharing):
            config = replace(CONFIG, admin=admin, backends=(BackendSpec("declared", engine.url), *map(lodger, sharing)))
            config = replace(
                config,
                devices=(DeviceSpec("gpu0", 10.0),),
                models=tuple(ModelSpec(model, footprint=FootprintSpec(weight_gb=6.0)) for model in MODELS[:2]),
                swaps=Swaps(mode="dry"),
            )
            async with running(path, config, load=lambda: config) as app:
                await app.ready("declared")
                await read(app.session.post(f"{sharing[1].url}/sleep"))
                stop = asyncio.Event()
                started.set_result((app, asyncio.get_running_loop(), stop))
                await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    app, loop, stop = started.result(DEADLINE_S)
    yield app
    loop.call_soon_threadsafe(stop.set)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert "Traceback" not in app.log.read_text()


def lodger(engine: MockEngine) -> BackendSpec:
    """One whose model shares a device, where there is room for one."""
    return BackendSpec(engine.config.name, engine.url, models=engine.config.models, swap=SwapSpec("gpu0", "sleep"))


def test_every_route_is_described_and_every_description_is_a_route(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as app:
            routes = {(method.lower(), path) for method, path, _ in app.app._control.routes()}
            assert routes == {(op.method, op.path) for op in OPERATIONS}
            free = {"/health", "/livez", "/readyz", "/openapi.json", "/metrics"}
            assert {op.path for op in OPERATIONS if op.free} == free
            reply = await app.call("GET", "/openapi.json", key=None)
            assert reply.json == document()
            assert reply.json["openapi"].startswith("3.1.")

    asyncio.run(run())


def test_every_operation_says_what_can_go_wrong() -> None:
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            assert operation["summary"].endswith(".")
            may_be_closed = operation.get("security") != [{}]
            assert may_be_closed == ("401" in operation["responses"]), (method, path)
            errors = [body for status, body in operation["responses"].items() if status.startswith("4")]
            for body in errors:
                assert body["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
            if "requestBody" in operation:
                assert {"400", "413", "415", "422"} <= set(operation["responses"])


def described(result: Any) -> Any:
    """An operation that the fuzzer understood (else it raises)."""
    return result.ok()


def steered(case: Any, places: list[str], turn: int) -> Any:
    """Valid cases go to what exists: known names in turn, addresses of this machine; what can only be empty there is empty."""
    for parameters in (case.path_parameters, case.query):
        for name in ("name", "id"):
            if parameters and name in parameters:
                parameters[name] = NAMES[turn % len(NAMES)]
                if isinstance(case.body, dict) and isinstance(case.body.get(name), str):
                    case.body[name] = parameters[name]
        if parameters and "model" in parameters:
            parameters["model"] = MODELS[len(str(parameters["model"])) % len(MODELS)]
        if parameters and isinstance(parameters.get("url"), str):
            parameters["url"] = places[len(parameters["url"]) % len(places)]
    if isinstance(case.body, dict) and isinstance(case.body.get("url"), str):
        case.body["url"] = places[len(case.body["url"]) % len(places)]
    for name, good in (("profile", "demo-fast"), ("sidecar", ""), ("kv_events", ""), ("kv_replay", "")):
        if isinstance(case.body, dict) and isinstance(case.body.get(name), str):
            case.body[name] = good
    if isinstance(case.body, dict) and case.body.get("device"):
        case.body["device"] = "gpu0"
    if isinstance(case.body, dict) and isinstance(case.body.get("models"), dict):
        case.body["models"] = {MODELS[i % 3]: said for i, said in enumerate(case.body["models"].values())}
    return case


def put_there(gateway: Running, place: str) -> None:
    """Make sure that the backend `there` is there."""
    body = {"name": "there", "url": f"{place}/there"}
    added = requests.post(f"{gateway.control}/admin/backends", json=body, headers=KEY, timeout=DEADLINE_S)
    assert added.status_code in (202, 409), added.text


@pytest.mark.parametrize("label", LABELS)
def test_answers_are_as_described(gateway: Running, label: str) -> None:
    schema = schemathesis.openapi.from_dict(document())
    operation = next(found for found in map(described, schema.get_all_operations()) if found.label == label)
    declared = requests.get(f"{gateway.control}/admin/backends/declared", headers=KEY, timeout=DEADLINE_S).json()
    place, number = declared["url"], LABELS.index(label)
    places = [f"{place}/there", *(f"{place}/{number}-{i}" for i in range(3))]
    malformed = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    seen: set[int] = set()
    turns = count()

    @hypothesis.seed(12)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy() | malformed if operation.body else operation.as_strategy())
    def fuzz(case: Any) -> None:
        put_there(gateway, place)
        response = steered(case, places, next(turns)).call_and_validate(base_url=gateway.control, headers=KEY, checks=CHECKS)
        seen.add(response.status_code)

    fuzz()
    assert any(status < 300 for status in seen), seen
