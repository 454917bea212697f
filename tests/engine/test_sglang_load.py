"""What a running SGLang publishes of its load, read by us: its snapshot in shared memory, the sidecar on it, its metrics."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from backends.base import EngineReport
from backends.registry import adapter_for, snapshot_sizes
from backends.sglang_load import SglangLoadSource, SglangSizes, sizes_of
from predictor.sighting import NoSightError
from predictor.snapshot import Snapshot
from tests.engine.engine_http import SURELY_S, Json, ask, half_done, wait_until
from tests.engine.engine_run import SidecarProcess
from tests.engine.sglang_server import Sglangs, SglangServer, wall_s
from tests.wire.mover_kit import control_of

PATH = "/v1/completions"
TOKENS = 1500  # minutes, until they are left
BODY: Json = {
    "model": "smollm2",
    "prompt": "Count to a thousand: 1, 2, 3,",
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "stream": True,
}


def sizes_told(server: SglangServer) -> SglangSizes:
    async def told() -> dict[str, int]:
        async with control_of(server.url) as http:
            return await snapshot_sizes("sglang", http)

    return sizes_of(asyncio.run(told()))


@contextmanager
def looking(server: SglangServer) -> Iterator[SglangLoadSource]:
    (path,) = server.load_files()
    source = SglangLoadSource(path, sizes=sizes_told(server))
    yield source
    source.close()


def seen(source: SglangLoadSource) -> Snapshot | None:
    """What is published now; None before the first."""
    try:
        return source.look(wall_s()).snapshot
    except NoSightError:
        return None


@contextmanager
def running(server: SglangServer, count: int) -> Iterator[None]:
    """So many requests, until the block is left."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(half_done(server.target, PATH, BODY))
        yield


def counts(source: SglangLoadSource) -> tuple[int, int]:
    state = seen(source)
    return (len(state.running), len(state.waiting)) if state else (0, 0)


def test_sizes_are_the_servers(sglangs: Sglangs) -> None:
    assert sizes_told(sglangs.smol) == SglangSizes(512, 16, 2048)
    assert sizes_told(sglangs.tiny) == SglangSizes(512, 1, 2048)


def test_its_snapshot_follows_what_it_does(sglangs: Sglangs) -> None:
    """Two run at a time, the third waits; its KV fills as they go on, and all of it is free in the end."""
    server = sglangs.smol
    with looking(server) as source:
        wait_until(lambda: counts(source) == (0, 0), SURELY_S, "it is idle")
        idle = seen(source)
        assert idle is not None
        assert (idle.limits.kv_blocks, idle.limits.max_num_seqs, idle.limits.max_model_len) == (768, 2, 2048)
        assert idle.free_blocks == 768
        with running(server, 3):
            wait_until(lambda: counts(source) == (2, 1), SURELY_S, "two run and one waits")
            state = seen(source)
            assert state is not None
            assert abs(state.taken_s - wall_s()) < SURELY_S
            wait_until(lambda: server.requests() == (2, 1), SURELY_S, "as its own route says")
            began = min(one.computed_tokens for one in state.running)
            wait_until(lambda: grown(source) > began + 5, SURELY_S, "contexts grow")
        wait_until(lambda: counts(source) == (0, 0), SURELY_S, "it is idle again")


def grown(source: SglangLoadSource) -> int:
    state = seen(source)
    return min((one.computed_tokens for one in state.running), default=0) if state else 0


def test_its_file_is_found_by_being_written_to(sglangs: Sglangs) -> None:
    """Two servers are here: whose it is must be said; each writes even while it has nothing to do."""
    for server in (sglangs.smol, sglangs.tiny):
        (path,) = server.load_files()
        source = SglangLoadSource(path, stale_s=SURELY_S)
        first_s = source.look(wall_s()).snapshot.taken_s
        wait_until(lambda s=source, at=first_s: s.look(wall_s()).snapshot.taken_s > at, SURELY_S, "it goes on publishing")  # type: ignore[misc]
        source.close()


def test_its_metrics_are_read(sglangs: Sglangs) -> None:
    async def report() -> EngineReport | None:
        async with control_of(sglangs.tiny.url) as http:
            return await (await adapter_for("auto", http)).report(http)

    # it tells nothing before its first work, and of what it had to do last: it is told while it works
    work: Json = {"model": "tiny", "prompt": "one", "max_tokens": 1}
    found: list[EngineReport] = []

    def told() -> bool:
        assert ask(sglangs.tiny.target, "POST", PATH, work).status == 200
        found.extend(one for one in (asyncio.run(report()),) if one is not None)
        return bool(found) and replace(found[-1], kv_usage=0.0) == EngineReport(0, 0.0, 12288, 1, waiting=0)

    wait_until(told, SURELY_S, "its metrics are there")
    assert 0.0 <= found[-1].kv_usage < 1.0


def test_a_sidecar_beside_it_predicts(sglangs: Sglangs, tmp_path: Path) -> None:
    """Somebody whose turn comes after the two that run waits about as long as they have left."""
    (state,) = sglangs.smol.load_files()
    sidecar = SidecarProcess(tmp_path, "smollm2", Path(state), "--engine", "sglang", "--engine-url", sglangs.smol.url)
    try:
        sidecar.start()
        wait_until(lambda: sglangs.smol.requests() == (0, 0), SURELY_S, "it is idle")
        idle = foretold(sidecar)
        with running(sglangs.smol, 2):
            wait_until(lambda: sglangs.smol.requests() == (2, 0), SURELY_S, "two run")
            wait_until(lambda: foretold(sidecar) > 5 * idle, SURELY_S, "it foretells a wait")
        wait_until(lambda: foretold(sidecar) < 2 * idle, SURELY_S, "it foretells none any more")
    finally:
        sidecar.kill()


def foretold(sidecar: SidecarProcess) -> float:
    """Seconds to the first token of a short request that comes now."""
    lengths = {"out_q10": 20, "out_q50": 20, "out_q90": 20}
    asked: Json = {"v": 1, "id": "asked", "model": "m", "prompt_tokens": 50, **lengths}
    answer = ask(sidecar.target, "POST", "/predict", asked)
    assert answer.status == 200, answer.body
    return float(answer.json()["ttft_s"])  # type: ignore[arg-type]
