"""A live engine's state as its sidecar tells it, and what the sidecar foretells of the next request."""

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from backends.sglang_load import SglangLoadSource
from tests.engine.engine_http import SURELY_S, Json, Stream, ask, counter, half_done, wait_until
from tests.engine.engine_pace import times_slower
from tests.engine.engine_record import Recorder
from tests.engine.engine_run import ROOT, Gateway, Server, Servers, SidecarProcess

PATH = "/v1/completions"
WORDS = ("lighthouse", "harbour", "winter", "copper", "orchard", "violin", "desert", "engine", "meadow", "river")


def body(number: int, tokens: int, prompt_words: int = 30) -> Json:
    """A request whose prompt begins like no other's, so that nothing of it is cached."""
    text = f"{WORDS[number % 10]} {number} " + "and so it went on " * (prompt_words // 5)
    return {"model": "smollm2", "prompt": text, "max_tokens": tokens, "ignore_eos": True, "stream": True}


def snapshot(sidecar: SidecarProcess) -> Json:
    answer = ask(sidecar.target, "GET", "/snapshot")
    assert answer.status == 200, answer.body
    state = answer.json()["state"]
    assert isinstance(state, dict)
    return state


def residents(sidecar: SidecarProcess, what: str) -> dict[str, dict[str, int]]:
    found = snapshot(sidecar)[what]
    assert isinstance(found, list)
    return {one["id"]: one for one in found}


def predict(sidecar: SidecarProcess, name: str = "asked", prompt_tokens: int = 100, tokens: int = 50) -> dict[str, float]:
    lengths = {"out_q10": tokens, "out_q50": tokens, "out_q90": tokens}
    answer = ask(
        sidecar.target, "POST", "/predict", {"v": 1, "id": name, "model": "m", "prompt_tokens": prompt_tokens, **lengths}
    )
    assert answer.status == 200, answer.body
    return answer.json()  # type: ignore[return-value]


@contextmanager
def streams(server: Server, count: int, tokens: int, base: int) -> Iterator[list[str]]:
    """Requests that run (or wait) at the engine until the block is left; their X-Request-Ids."""
    with ExitStack() as stack:
        for number in range(count):
            stack.enter_context(
                half_done(server.target, PATH, body(base + number, tokens), {"x-request-id": f"id-{base + number}"})
            )
        wait_until(lambda: server.running_requests() == count, SURELY_S, f"{count} requests are at the engine")
        yield [f"id-{base + number}" for number in range(count)]
    wait_until(lambda: server.running_requests() == 0, SURELY_S, "the engine is idle")


def test_snapshot_lists_every_request_with_its_computed_tokens(servers: Servers, sidecars: tuple[SidecarProcess, ...]) -> None:
    sidecar = sidecars[0]
    with streams(servers.smol_a, 19, 1900, base=100) as ids:
        wait_until(lambda: len(residents(sidecar, "running")) == 16, SURELY_S, "the batch is full")
        wait_until(
            lambda: all(one["generated_tokens"] > 1 for one in residents(sidecar, "running").values()), SURELY_S, "all decode"
        )
        before = residents(sidecar, "running")
        waiting = residents(sidecar, "waiting")
        assert set(before) | set(waiting) == set(ids)
        assert len(waiting) == 3
        for one in before.values():
            assert one["computed_tokens"] == one["prompt_tokens"] + one["generated_tokens"] - 1
            assert one["output_tokens"] == 1900
        wait_until(
            lambda: all(
                after["computed_tokens"] > before[name]["computed_tokens"]
                for name, after in residents(sidecar, "running").items()
            ),
            SURELY_S,
            "every running request has moved on",
        )
    wait_until(lambda: not residents(sidecar, "running"), SURELY_S, "an idle engine's snapshot is empty")
    wait_until(lambda: snapshot(sidecar)["free_blocks"] == 95, SURELY_S, "and all of its memory free")


def test_predictions_are_finite_and_ordered(servers: Servers, sidecars: tuple[SidecarProcess, ...]) -> None:
    busy, idle = sidecars
    with streams(servers.smol_a, 18, 1900, base=200):
        wait_until(lambda: len(residents(busy, "running")) == 16, SURELY_S, "the batch is full")
        told = [predict(idle), predict(busy)]
        for reply in told:
            assert all(math.isfinite(reply[name]) and reply[name] >= 0 for name in ("ttft_s", "tpot_s", "e2e_s", "wait_s"))
            assert reply["ttft_s"] <= reply["e2e_s"]
        assert told[0]["e2e_s"] < told[1]["e2e_s"]
        assert told[0]["ttft_s"] < told[1]["ttft_s"]
        assert (told[0]["in_flight"], told[1]["in_flight"]) == (0, 18)
        assert predict(busy, tokens=20)["e2e_s"] < predict(busy, tokens=200)["e2e_s"]
    assert predict(idle, prompt_tokens=20)["ttft_s"] < predict(idle, prompt_tokens=1500)["ttft_s"]


def test_expected_length_travels_with_the_request(servers: Servers, sidecars: tuple[SidecarProcess, ...]) -> None:
    hinted = {**body(300, 900), "vllm_xargs": {"leeway_v": 1, "leeway_out_tokens": 77}}
    with half_done(servers.smol_a.target, PATH, hinted, {"x-request-id": "hinted"}):
        wait_until(lambda: "hinted" in residents(sidecars[0], "running"), SURELY_S, "the request runs")
        assert residents(sidecars[0], "running")["hinted"]["output_tokens"] == 77


def test_reservation_ends_when_its_request_is_there(servers: Servers, sidecars: tuple[SidecarProcess, ...]) -> None:
    sidecar = sidecars[1]
    lengths = {"out_q10": 50, "out_q50": 50, "out_q90": 50}
    reserve: Json = {"v": 1, "id": "reserved", "model": "m", "prompt_tokens": 40, **lengths}
    assert ask(sidecar.target, "POST", "/reserve", reserve).status == 200
    assert predict(sidecar)["waiting"] == 1
    with half_done(servers.smol_b.target, PATH, body(400, 900), {"x-request-id": "reserved"}):
        wait_until(lambda: "reserved" in residents(sidecar, "running"), SURELY_S, "the request runs")
        wait_until(
            lambda: ask(sidecar.target, "GET", "/snapshot").json()["reserved"] == 0, SURELY_S, "it counts once, where it is"
        )
        assert predict(sidecar)["in_flight"] == 1


def test_each_dispatch_goes_to_the_lower_predicted_e2e(
    guided: Gateway, servers: Servers, sidecar_records: tuple[Recorder, Recorder]
) -> None:
    """Whichever of the two is busy: a full batch and a queue, which no difference of pace outweighs."""
    went = []
    for number, busy in enumerate((0, 1, 1, 0)):
        with streams(servers.generating[busy], 18, 1900, base=700 + 20 * number):
            answer = ask(guided.target, "POST", PATH, {**body(800 + number, 20), "stream": False})
            assert answer.status == 200, answer.body
            # a recorder has it all when what it passed on was read
            told = [json.loads(record.said["/predict"]) for record in sidecar_records]
            lower = min((0, 1), key=lambda index: told[index]["e2e_s"])
            assert answer.headers["x-leeway-backend"] == servers.generating[lower].name, told
            asked = [json.loads(record.asked["/predict"])["id"] for record in sidecar_records]
            assert asked == [answer.headers["x-request-id"]] * 2
            went.append(lower)
    assert went == [1, 0, 0, 1]


def test_each_dispatch_is_reserved_under_the_engines_id(
    guided: Gateway, servers: Servers, sidecars: tuple[SidecarProcess, ...], sidecar_records: tuple[Recorder, Recorder]
) -> None:
    with half_done(guided.target, PATH, body(900, 900)) as connection:
        response = connection.getresponse()
        name, request_id = response.headers["x-leeway-backend"], response.headers["x-request-id"]
        index = [server.name for server in servers.generating].index(name)
        wait_until(lambda: request_id.encode() in sidecar_records[index].asked.get("/reserve", b""), SURELY_S, "it is reserved")
        wait_until(lambda: request_id in residents(sidecars[index], "running"), SURELY_S, "it runs")
        wait_until(
            lambda: ask(sidecars[index].target, "GET", "/snapshot").json()["reserved"] == 0,
            SURELY_S,
            "it counts once, where it is",
        )


def test_killed_sidecar_costs_no_request(guided: Gateway, servers: Servers, sidecars: tuple[SidecarProcess, ...]) -> None:
    assert ask(guided.target, "POST", PATH, {**body(910, 2), "stream": False}).status == 200
    sidecars[0].kill()
    try:
        for number in range(6):
            assert ask(guided.target, "POST", PATH, {**body(911 + number, 2), "stream": False}).status == 200
    finally:
        sidecars[0].start()
    wait_until(lambda: counter(guided.admin, "leeway_prediction_fallbacks_total") >= 6, SURELY_S, "each is counted")


def test_answers_are_those_of_the_engine_alone(servers: Servers) -> None:
    """The scheduler class publishes and decides nothing: what is asked twice is answered twice alike."""
    wait_until(lambda: not any(server.running_requests() for server in servers.generating), SURELY_S, "both are idle")
    once = Stream(servers.smol_a.target, PATH, {**body(500, 30), "temperature": 0}).result()
    again = Stream(servers.smol_b.target, PATH, {**body(500, 30), "temperature": 0}).result()
    texts = [
        [json.loads(e[6:])["choices"][0]["text"] for e in answer.events() if e.startswith(b"data: {")]
        for answer in (once, again)
    ]
    assert "".join(texts[0]) == "".join(texts[1])


def test_publishing_is_cheap(servers: Servers) -> None:
    """By the engine's own account: thread CPU time a step, in the hundred steps that were disturbed least."""
    Stream(servers.smol_a.target, PATH, body(600, 100)).result()

    def costs() -> list[str]:
        return re.findall(r"publishing takes ([\d.]+) us a step", servers.smol_a.log_path.read_text())

    wait_until(lambda: bool(costs()), SURELY_S, "the engine says what publishing costs")
    assert min(map(float, costs())) <= 50.0 * times_slower()


CLASSES = """
import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
import backends.vllm_scheduler as ours
assert ours.__doc__
assert issubclass(ours.SnapshotScheduler, Scheduler) and not issubclass(ours.SnapshotScheduler, AsyncScheduler)
assert issubclass(ours.AsyncSnapshotScheduler, AsyncScheduler)
ours.check_version(vllm.__version__)
for version in ("0.31.9", "0.33.0", "1.0", "dev"):
    try:
        ours.check_version(version)
    except ours.UntestedVersionError as error:
        assert version in str(error) and "0.32.0" in str(error) and "--scheduler-cls" in str(error)
    else:
        raise AssertionError(version)
import sys
assert not {"gateway", "predictor.sidecar", "backends.control_http"} & set(sys.modules), "the engine carries a server"
print("as it should be")
"""


def test_scheduler_classes_fit_the_tested_version_and_refuse_others() -> None:
    python = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([python, "-c", CLASSES], env=env, capture_output=True, text=True, timeout=600, check=False)
    assert "as it should be" in done.stdout, done.stderr[-2000:]


def test_sglangs_own_writer_is_understood(tmp_path: Path) -> None:
    python = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
    path = tmp_path / "load"
    script = Path(__file__).with_name("sglang_load_writer.py")
    done = subprocess.run([python, script, path], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    written = json.loads(done.stdout)
    assert written["path"].startswith("/dev/shm/sglang_loads_") and written["path"].endswith(".shm")
    state = SglangLoadSource(str(path), rank=1).look(1000.0).snapshot
    assert len(state.running) == written["num_running_reqs"]
    assert len(state.waiting) == written["num_waiting_reqs"]
    assert sum(one.prompt_tokens for one in state.waiting) == written["num_waiting_uncached_tokens"]
    assert state.limits.kv_blocks == written["max_total_num_tokens"]
    assert state.limits.max_num_seqs == written["max_running_requests"]
