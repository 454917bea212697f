"""A client that leaves frees the engine: the abort reaches it within a second, streamed or not."""

import pytest

from tests.engine.engine_http import Json, Target, counter, half_done, wait_until
from tests.engine.engine_run import Servers

LONG: Json = {"model": "smollm2", "max_tokens": 1900, "ignore_eos": True}
MESSAGES: list[Json] = [{"role": "user", "content": "Tell me a very long story about a lighthouse."}]
CASES = [
    pytest.param("/v1/chat/completions", {**LONG, "messages": MESSAGES}, id="chat"),
    pytest.param("/v1/completions", {**LONG, "prompt": "Once upon a time"}, id="completions"),
    pytest.param("/v1/messages", {**LONG, "messages": MESSAGES}, id="messages"),
]


def running(servers: Servers) -> int:
    return sum(server.running_requests() for server in servers.generating)


def finished(servers: Servers) -> float:
    return sum(counter(server.url, "vllm:request_success_total") for server in servers.generating)


@pytest.mark.parametrize(("path", "body"), CASES)
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
def test_engine_drops_it_within_a_second(through: Target, servers: Servers, path: str, body: Json, streamed: bool) -> None:
    wait_until(lambda: running(servers) == 0, 20.0, "the engines are idle")
    finished_before = finished(servers)
    with half_done(through, path, {**body, "stream": streamed}) as connection:
        if streamed:
            assert connection.getresponse().read1(65536) != b""
        wait_until(lambda: running(servers) == 1, 20.0, "the request runs")
    wait_until(lambda: running(servers) == 0, 1.0, "the engine has dropped it")
    assert finished(servers) == finished_before
