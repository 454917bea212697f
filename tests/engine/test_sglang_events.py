"""What a running SGLang says of its KV cache, joined to the prompts that the gateway has sent it."""

from collections.abc import Iterator

import pytest

from gateway.config import Admin, BackendSpec, GatewayConfig, Listen, ModelSpec
from predictor.kvview import KvView
from tests.engine.engine_http import SURELY_S, Json, Stream, ask, wait_until
from tests.engine.engine_run import Portal
from tests.engine.sglang_server import Front, Sglangs, SglangServer

PATH = "/v1/chat/completions"
TEXT = " ".join(f"word{number}" for number in range(350))


@pytest.fixture(params=["smollm2", "tiny"])
def server(request: pytest.FixtureRequest, sglangs: Sglangs) -> SglangServer:
    """Pages of 16 tokens, pages of one."""
    found = sglangs.smol if request.param == "smollm2" else sglangs.tiny
    assert ask(found.target, "POST", "/flush_cache").status == 200
    return found


@pytest.fixture
def front(portal: Portal, server: SglangServer) -> Iterator[Front]:
    config = GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
        backends=(BackendSpec("gen", server.url, kv_events=server.events),),
        models=(ModelSpec(server.model, "plan"),),
        admin=Admin(key="k"),
    )
    with Front(portal, config) as made:
        yield made


def view_of(front: Front) -> KvView:
    return front.call(lambda: front.app.plane.desks.engines.views["gen"])


def test_what_it_keeps_of_a_prompt_is_known_and_what_it_drops(front: Front, server: SglangServer) -> None:
    view = view_of(front)

    def chat(text: str) -> Json:
        body: Json = {"model": server.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
        answer = Stream(front.target, PATH, body).result()
        assert answer.status == 200, answer.body
        return answer.json()["usage"]  # type: ignore[return-value]

    for number in range(200):  # a publisher's first messages are for nobody
        chat(f"{number} is heard")
        if front.call(lambda: view.tokens):
            break
    before, joined = front.call(lambda: (view.tokens, view.joined))
    assert before > 0
    usage = chat(TEXT)
    # all but the template's beginning, which was there, and the end that fills no page
    least = usage["prompt_tokens"] - 64  # type: ignore[operator]
    wait_until(lambda: front.call(lambda: view.tokens) - before >= least, SURELY_S, "its blocks are told")
    wait_until(lambda: front.call(lambda: view.joined) > joined, SURELY_S, "they are joined to the prompt")
    # and what was still to be told of the one before
    assert front.call(lambda: view.tokens) - before <= usage["total_tokens"] + 64  # type: ignore[operator]
    (replica,) = front.replicas
    index = front.call(lambda: front.app.plane.desks.engines.mirror(replica).index)
    assert len(index) > 0
    assert ask(server.target, "POST", "/flush_cache").status == 200
    wait_until(lambda: front.call(lambda: view.tokens) == 0, SURELY_S, "it has dropped all")
    wait_until(lambda: len(index) == 0, SURELY_S, "and so has the gateway")
