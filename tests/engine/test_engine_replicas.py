"""Servers that die, come back and join while requests run. Last in the run: it starts servers of its own.

Requests go by counts here: each server must have some of them, whatever was learnt of its speed on a crowded machine.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import running
from tests.engine.engine_http import SURELY_S, Answer, Json, Stream, Target, ask, wait_until
from tests.engine.engine_run import Engines, Gateway, Server, Servers, SidecarProcess, start_all, stop_all

PATH = "/v1/completions"
SHORT: Json = {"model": "smollm2", "max_tokens": 1, "prompt": "Hello"}
LONG: Json = {"model": "smollm2", "max_tokens": 1900, "ignore_eos": True, "prompt": "Hello", "stream": True}
STREAMS = 8
TOKENS = 60
# So many that none ends before its server is killed: more than ten seconds, where it takes less than one until all are seen.
TOKENS_UNTIL_KILLED = 400


@pytest.fixture(scope="module")
def even(folder: Path, servers: Servers) -> Iterator[Gateway]:
    """A gateway that gives each request to the server with the fewest."""
    backends = {server.name: server.url for server in servers.generating}
    with running(Gateway(folder, "even", backends, rule='[models."*"]\npolicy = "least_request"\n')) as started:
        yield started


def begin(through: Target, count: int, tokens: int = TOKENS) -> list[Stream]:
    """Streams that all have had their first bytes."""
    body = {**LONG, "max_tokens": tokens, "stream_options": {"include_usage": True}}
    streams = [Stream(through, PATH, body) for _ in range(count)]
    for stream in streams:
        assert stream.first.wait(SURELY_S), "a stream does not begin"
    return streams


def served_by(answer: Answer) -> str:
    return answer.headers["x-leeway-backend"]


def is_error(event: bytes) -> bool:
    """Read, not searched: a model's token may be the word itself, in quotes as any text is."""
    data = event.rsplit(b"data: ", 1)[1]
    return data != b"[DONE]" and "error" in json.loads(data)


def assert_whole(answer: Answer, tokens: int = TOKENS) -> None:
    events = answer.events()
    assert not answer.broken
    assert events[-1] == b"data: [DONE]"
    assert json.loads(events[-2].removeprefix(b"data: "))["usage"]["completion_tokens"] == tokens
    assert not any(map(is_error, events))


def assert_one_error(answer: Answer) -> None:
    """Tokens, then one error event as the last word, and no sign of a normal end."""
    events = answer.events()
    assert [is_error(event) for event in events] == [False] * (len(events) - 1) + [True]
    assert len(events) > 1
    error = json.loads(events[-1].rsplit(b"data: ", 1)[1])["error"]
    assert error["message"]
    assert "127.0.0.1" not in json.dumps(error)
    assert b"[DONE]" not in answer.body
    assert b'"finish_reason":"' not in answer.body
    assert answer.broken


def routed_to(through: Target, name: str) -> bool:
    answer = ask(through, "POST", PATH, SHORT)
    assert answer.status == 200, answer.body
    return served_by(answer) == name


def assert_lost(answer: Answer) -> None:
    """A plain request whose server died: it may have run, so it is not sent again, and the client is told so."""
    assert answer.status == 502, answer.body
    assert answer.headers["x-should-retry"] == "false"
    assert b"127.0.0.1" not in answer.body
    assert answer.json()["error"]


def test_killed_server_costs_only_its_own_requests_and_comes_back(
    even: Gateway, guided: Gateway, servers: Servers, engines: Engines, sidecars: tuple[SidecarProcess, SidecarProcess]
) -> None:
    through = even.target
    victim, other = servers.smol_b, servers.smol_a
    for server in (victim, other):
        wait_until(lambda name=server.name: routed_to(through, name), SURELY_S, "both are in use")  # type: ignore[misc]
        wait_until(lambda one=server: one.running_requests() == 0, SURELY_S, "and idle")  # type: ignore[misc]
    streams = begin(through, STREAMS, TOKENS_UNTIL_KILLED)
    body = {**LONG, "max_tokens": TOKENS_UNTIL_KILLED, "stream": False}
    plain = [Stream(through, PATH, body) for _ in range(4)]
    wait_until(lambda: victim.running_requests() + other.running_requests() == STREAMS + 4, SURELY_S, "all of them run")
    victim.kill()
    wait_until(lambda: sidecars[1].health() == 503, SURELY_S, "its sidecar knows that it is gone")
    # The very next requests are served, although nobody has told the gateway yet.
    assert [routed_to(through, other.name) for _ in range(4)] == [True] * 4
    assert [routed_to(guided.target, other.name) for _ in range(4)] == [True] * 4
    answers = [stream.result() for stream in streams]
    assert {served_by(answer) for answer in answers} == {victim.name, other.name}
    for answer in answers:
        if served_by(answer) == victim.name:
            assert_one_error(answer)
        else:
            assert_whole(answer, TOKENS_UNTIL_KILLED)
    for answer in (request.result() for request in plain):
        if served_by(answer) == victim.name:
            assert_lost(answer)
        else:
            assert answer.status == 200
    start_all(engines.portal, [victim])
    wait_until(lambda: sidecars[1].health() == 200, SURELY_S, "the sidecar sees the new one")
    # A probe period of 1 s, the probe itself, and requests until one is placed there (every second one, on average).
    wait_until(lambda: routed_to(through, victim.name), SURELY_S, "the server is used again")


@pytest.fixture
def spare(engines: Engines) -> Iterator[Server]:
    """A third server for the model; which numbers it computes does not matter here, so it is the small one."""
    server = engines.server("smol-c", "tiny", "smollm2", ())
    try:
        start_all(engines.portal, [server])
        yield server
    finally:
        stop_all(engines.portal, [server])


def test_server_added_under_load_is_used_and_can_be_removed(even: Gateway, spare: Server) -> None:
    through = even.target
    streams = begin(through, STREAMS)
    record: Json = {"name": spare.name, "url": spare.url, "engine": "vllm"}
    assert ask(Target(even.admin.url), "POST", "/admin/backends", record).status == 401
    added = ask(even.admin, "POST", "/admin/backends", record)
    assert added.status == 202, added.body
    assert added.headers["location"].endswith(f"/admin/backends/{spare.name}")
    try:
        wait_until(lambda: routed_to(through, spare.name), SURELY_S, "the new server is used")
        late = begin(through, STREAMS)
        assert spare.name in {served_by(stream.result()) for stream in late}
    finally:
        removed = ask(even.admin, "DELETE", f"/admin/backends/{spare.name}")
    assert removed.status == 202, removed.body
    assert not any(routed_to(through, spare.name) for _ in range(6))
    for stream in [*streams, *late]:
        assert_whole(stream.result())
