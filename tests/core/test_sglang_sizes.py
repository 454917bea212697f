"""What SGLang's /server_info says of its sizes: read where it is a whole number within bounds, else unknown."""

import asyncio
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import UNSAID, Identity, ProbeFailedError, Reply, Sizes
from backends.priorities import sglang_scheduling
from backends.registry import snapshot_sizes, snapshot_source
from backends.sglang import SglangAdapter
from backends.sglang_sizes import rank_sizes, server_sizes

INFO: dict[str, object] = {
    "dp_size": 1,
    "page_size": 64,
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 16384,
    "max_running_requests": None,
    "max_total_num_tokens": 400_001,
    "internal_states": [{"effective_max_running_requests_per_dp": 200}],
}


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, Sizes(6250, 64, 200, 4096)),
        ({"page_size": 1}, Sizes(400_001, 1, 200, 4096)),
        ({"chunked_prefill_size": -1}, Sizes(6250, 64, 200, 16384)),
        ({"chunked_prefill_size": None}, Sizes(6250, 64, 200, 16384)),
        ({"chunked_prefill_size": True}, Sizes(6250, 64, 200, 0)),
        ({"chunked_prefill_size": 2.5, "max_total_num_tokens": "9"}, Sizes(0, 0, 200, 0)),
        ({"max_total_num_tokens": 63}, Sizes(0, 0, 200, 4096)),
        ({"max_total_num_tokens": 1 << 40}, Sizes(0, 0, 200, 4096)),
        ({"max_running_requests": 48, "internal_states": []}, Sizes(6250, 64, 48, 4096)),
        ({"max_running_requests": 48, "internal_states": [{}]}, Sizes(6250, 64, 48, 4096)),
        ({"internal_states": None}, Sizes(6250, 64, 0, 4096)),
        (
            {"dp_size": 2, "internal_states": [{"effective_max_running_requests_per_dp": n} for n in (200, 100)]},
            Sizes(12500, 64, 300, 8192),
        ),
        ({"dp_size": 2, "max_running_requests": 48, "internal_states": [{}, {}]}, Sizes(12500, 64, 0, 8192)),
    ],
)
def test_sizes(changes: dict[str, object], sizes: Sizes) -> None:
    assert server_sizes(INFO | changes) == sizes


def test_what_is_not_said_is_unknown() -> None:
    assert server_sizes({}) == UNSAID
    assert server_sizes({"version": "0.5.23", "max_prefill_tokens": 16384}) == UNSAID


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*INFO, "x"]), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from([*INFO]), values), st.lists(st.dictionaries(st.text(max_size=3), values), max_size=2))
def test_nothing_that_a_server_says_breaks_it(info: dict[str, object], states: list[object]) -> None:
    for told in (info, info | {"internal_states": states}):
        found = server_sizes(told)
        assert 0 <= found.kv_blocks <= 1 << 41
        assert (found.kv_blocks == 0) == (found.block_size == 0)
        assert 0 <= found.max_num_seqs <= 1_000_000
        assert 0 <= found.max_num_batched_tokens <= 1 << 31


def test_only_a_queue_of_arrivals_is_called_one() -> None:
    assert sglang_scheduling({"enable_priority_scheduling": False, "schedule_policy": "fcfs"}) == "fcfs"
    assert sglang_scheduling({"enable_priority_scheduling": False, "schedule_policy": "lpm"}) == ""
    assert sglang_scheduling({"enable_priority_scheduling": True, "schedule_policy": "fcfs"}) == "priority"


class Server:
    """Answers a control request by its path."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, path: str) -> Reply:
        self.asked.append(path)
        name = path.rpartition("/")[2]
        if name == "models":
            return Reply(200, orjson.dumps({"data": [{"id": "m", "max_model_len": 4096}]}))
        if name == "health":
            return Reply(200, b"")
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return Reply(404, b"") if answer is None else Reply(200, orjson.dumps(answer))

    async def post(self, path: str, body: dict[str, object]) -> Reply:
        raise AssertionError(path)


def test_one_look_at_the_server_s_information_tells_all() -> None:
    server = Server(server_info=INFO | {"version": "0.5.23"}, model_info={"is_generation": True})
    found = asyncio.run(SglangAdapter().identify(server))
    assert found == Identity("sglang", "0.5.23", ("m",), "generate", 4096, "", Sizes(6250, 64, 200, 4096), recall="rid")
    for keeps, names in ((False, True), (True, False), (None, False)):
        server = Server(server_info=INFO | {"enable_session_radix_cache": keeps})
        assert asyncio.run(SglangAdapter().identify(server)).body_session is names
    assert server.asked.count("/server_info") == 1


def test_an_older_server_and_one_that_is_late() -> None:
    older = Server(get_server_info=INFO | {"version": "0.4"})
    assert asyncio.run(SglangAdapter().identify(older)).sizes.kv_blocks == 6250
    late = Server(server_info=ProbeFailedError("late"), get_server_info=ProbeFailedError("late"))
    found = asyncio.run(SglangAdapter().identify(late))
    assert (found.version, found.sizes) == ("", UNSAID)
    before = Identity("sglang", "0.5.23", ("old",), "generate", 1, "fcfs", Sizes(6250, 64, 200, 4096))
    kept = found.completed(before)
    assert (kept.version, kept.models, kept.scheduling, kept.sizes) == ("0.5.23", ("m",), "fcfs", before.sizes)
    assert found.completed(replace(before, body_session=True)).body_session
    assert not replace(found, sizes=Sizes(1, 1, 1, 1)).completed(replace(before, body_session=True)).body_session
    assert found.completed(Identity("vllm", "1", sizes=before.sizes)) == found


def test_a_sidecar_asks_for_what_the_load_snapshot_does_not_say() -> None:
    info = INFO | {"dp_size": 4, "context_length": 32768}
    assert rank_sizes(info) == {"chunk_tokens": 4096, "page_tokens": 64, "max_model_len": 32768}
    assert rank_sizes({"context_length": None, "page_size": 0}) == {}
    sizes = asyncio.run(snapshot_sizes("sglang", Server(server_info=info)))
    snapshot_source("sglang", "/nowhere", sizes)
    for engine, server, problem in (
        ("vllm", Server(server_info=info), ValueError),
        ("sglang", Server(), ProbeFailedError),
        ("sglang", Server(server_info={"version": "1"}), ProbeFailedError),
    ):
        with pytest.raises(problem):
            asyncio.run(snapshot_sizes(engine, server))
