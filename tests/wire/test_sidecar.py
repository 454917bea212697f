"""The sidecar over real sockets: what it foretells comes true, what it can't see it says, and nobody else is let in."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import jsonschema
import pytest

from backends.scheduler_record import StepRecorder, payload_max
from backends.shared_source import SharedRecordSource
from backends.snapshot_file import SnapshotFile
from backends.snapshot_record import Limits
from predictor.oracle import FixedPace, Oracle
from predictor.profile import StepProfile
from predictor.request import LengthEstimate
from predictor.sidecar import BODY_BYTES_MAX, Sidecar, SidecarConfig, SidecarConfigError
from predictor.wire import Ask, encode_ask
from tests.core.in_engine import InEngine

SCHEMAS = Path(__file__).parents[2] / "docs" / "wire"
PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0001)
LIMITS = Limits(96, 16, 4, 64, 1024)
TOKEN = "token-of-the-sidecar"


def asking(name: str = "new", prompt_tokens: int = 40, output_tokens: int = 20) -> bytes:
    lengths = LengthEstimate(output_tokens, output_tokens, output_tokens, "test")
    return encode_ask(Ask(name, "m", prompt_tokens, lengths), 0)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A published engine and its sidecar. `publish` is one step of the engine."""

    def __init__(self, path: Path, token: str = "") -> None:
        self.path = str(path / "snapshot")
        self.clock = Clock()
        self.file: SnapshotFile | None = None
        source = SharedRecordSource(self.path)
        self.sidecar = Sidecar(source, Oracle(FixedPace(PROFILE)), SidecarConfig(port=0, token=token), self.clock)
        self.client = aiohttp.ClientSession()

    def begin(self) -> None:
        self.file = SnapshotFile(self.path, payload_max(4))
        self.recorder = StepRecorder("vllm 0.32.0", LIMITS, self.file.write)
        self.publish([], [])

    def publish(self, running: list[InEngine], waiting: list[InEngine]) -> None:
        free_blocks = LIMITS.kv_blocks - sum(-(-one.num_computed_tokens // LIMITS.block_size) for one in running)
        scheduled = {one.request_id: 1 for one in running}
        self.recorder.record(self.clock.now_s, running, waiting, scheduled, len(scheduled), free_blocks, 0)

    def end(self) -> None:
        assert self.file is not None
        self.file.close()

    async def ask(self, method: str, path: str, body: bytes | None = None, token: str = "") -> tuple[int, dict[str, object]]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.client.request(method, self.sidecar.url + path, data=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def predict(self, body: bytes | None = None) -> dict[str, float]:
        status, answer = await self.ask("POST", "/predict", body or asking())
        assert status == 200, answer
        return answer  # type: ignore[return-value]

    async def refused(self, method: str, path: str, body: bytes | None = None, token: str = "") -> tuple[int, str]:
        status, answer = await self.ask(method, path, body, token)
        jsonschema.Draft202012Validator(json.loads((SCHEMAS / "error.json").read_text())).validate(answer)
        error = answer["error"]
        assert isinstance(error, dict)
        return status, error["code"]


def with_bench(path: Path, use: Callable[[Bench], Awaitable[None]], token: str = "") -> None:
    async def run() -> None:
        bench = Bench(path, token)
        bench.begin()
        try:
            async with bench.client, bench.sidecar:
                await asyncio.wait_for(use(bench), 60)
        finally:
            bench.end()

    asyncio.run(run())


DECODING = InEngine("chatcmpl-old-0123abcd", 30, 33, output=[0] * 3)


def test_snapshot_lists_every_request_with_its_computed_tokens(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.publish([DECODING, InEngine("filling", 500, 63)], [InEngine("queued", 70)])
        status, answer = await bench.ask("GET", "/snapshot")
        assert status == 200
        jsonschema.Draft202012Validator(json.loads((SCHEMAS / "snapshot.json").read_text())).validate(answer)
        state = answer["state"]
        assert isinstance(state, dict)
        assert [(one["id"], one["computed_tokens"], one["generated_tokens"]) for one in state["running"]] == [
            ("old", 33, 4),
            ("filling", 63, 0),
        ]
        assert [one["id"] for one in state["waiting"]] == ["queued"]

    with_bench(tmp_path, use)


def test_prediction_on_an_idle_engine_is_the_profiles_own(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.clock.now_s += 1000.0  # an idle engine's state does not grow old
        answer = await bench.predict()
        prefill_s = PROFILE.step_s(40, 0, 0)
        decode_s = sum(PROFILE.step_s(0, 1, 40 + n) for n in range(19))
        assert answer["ttft_s"] == pytest.approx(prefill_s)
        assert answer["e2e_s"] == pytest.approx(prefill_s + decode_s)
        assert (answer["in_flight"], answer["free_blocks"], answer["snapshot_age_s"]) == (0, 96, 0.0)

    with_bench(tmp_path, use)


def test_step_in_progress_is_waited_for_and_a_late_one_ends_now(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.publish([DECODING], [])
        step_s = PROFILE.step_s(0, 1, 32)
        first = await bench.predict()
        bench.clock.now_s += 0.4 * step_s
        midway = await bench.predict()
        bench.clock.now_s += 0.6 * step_s
        due = await bench.predict()
        bench.clock.now_s += step_s
        late = await bench.predict()
        assert first["ttft_s"] - midway["ttft_s"] == pytest.approx(0.4 * step_s)
        assert midway["ttft_s"] - due["ttft_s"] == pytest.approx(0.6 * step_s)
        assert late["ttft_s"] == pytest.approx(due["ttft_s"])
        assert late["snapshot_age_s"] == pytest.approx(2 * step_s)

    with_bench(tmp_path, use)


def test_more_load_is_more_time_and_harm_is_told_when_asked(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        times = []
        for count in range(5):
            running = [InEngine(f"r{i}", 30, 33, output=[0] * 3) for i in range(min(count, 4))]
            bench.publish(running, [InEngine("w", 200)] * (count == 4))
            answer = await bench.predict()
            times.append(answer["e2e_s"])
        assert times == sorted(times)
        assert len(set(times)) == 5
        assert "harm_s" not in answer
        body = json.dumps({**json.loads(asking()), "harm": True}).encode()
        assert (await bench.predict(body))["harm_s"] > 0

    with_bench(tmp_path, use)


def test_reservation_counts_once_until_it_is_seen_or_its_time_is_over(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.publish([DECODING], [])
        alone = await bench.predict()
        for _ in range(3):
            status, answer = await bench.ask("POST", "/reserve", asking("r1", 60))
            jsonschema.Draft202012Validator(json.loads((SCHEMAS / "reserve-reply.json").read_text())).validate(answer)
            assert (status, answer["id"]) == (200, "r1")
        reserved = await bench.predict()
        assert reserved["waiting"] == alone["waiting"] + 1
        assert reserved["ttft_s"] > alone["ttft_s"]
        bench.clock.now_s += 2.0
        assert (await bench.ask("POST", "/reserve", asking("r1", 60)))[1]["expires_in_ms"] == 3000
        bench.clock.now_s += 3.0
        assert (await bench.predict())["waiting"] == 0
        await bench.ask("POST", "/reserve", asking("r2", 60))
        assert (await bench.predict())["waiting"] == 1
        bench.publish([DECODING], [InEngine("cmpl-r2-0-0123abcd", 60)])
        seen = await bench.predict()
        assert seen["waiting"] == 1  # the real one, no longer the reservation beside it

    with_bench(tmp_path, use)


def test_dead_engine_is_a_503_and_the_next_one_is_found(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        await bench.predict()
        bench.end()
        bench.clock.now_s += 1.0
        for method, path, body in (("POST", "/predict", asking()), ("GET", "/snapshot", None), ("GET", "/healthz", None)):
            assert await bench.refused(method, path, body) == (503, "gone")
        bench.begin()
        assert (await bench.ask("GET", "/healthz"))[0] == 200
        await bench.predict()

    with_bench(tmp_path, use)


def test_silent_busy_engine_is_stale(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.publish([DECODING], [])
        await bench.predict()
        bench.clock.now_s += 11.0
        assert await bench.refused("POST", "/predict", asking()) == (503, "stale")
        bench.publish([DECODING], [])
        await bench.predict()

    with_bench(tmp_path, use)


def test_no_engine_yet_is_a_503(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.end()
        Path(bench.path).unlink()
        bench.clock.now_s += 1.0
        assert (await bench.refused("POST", "/predict", asking()))[0] == 503
        assert await bench.refused("POST", "/predict", asking()) == (503, "none")
        bench.begin()

    with_bench(tmp_path, use)


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/predict", b"{", (400, "malformed")),
        ("POST", "/reserve", b"[]", (400, "malformed")),
        ("POST", "/predict", b'{"v": 2}', (400, "version")),
        ("POST", "/predict", asking("x" * 300), (400, "malformed")),
        ("POST", "/predict", b" " * (BODY_BYTES_MAX + 1), (413, "refused")),
        ("GET", "/predict", None, (405, "refused")),
        ("GET", "/nowhere", None, (404, "refused")),
    ],
    ids=["no JSON", "no object", "version", "long id", "too large", "method", "route"],
)
def test_refusals(tmp_path: Path, method: str, path: str, body: bytes | None, said: tuple[int, str]) -> None:
    async def use(bench: Bench) -> None:
        assert await bench.refused(method, path, body) == said
        await bench.predict()

    with_bench(tmp_path, use)


def test_token_is_wanted_everywhere_but_for_health(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        for given in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
            assert await bench.refused("POST", "/predict", asking(), given) == (401, "unauthorized")
            assert await bench.refused("GET", "/snapshot", None, given) == (401, "unauthorized")
        assert (await bench.ask("GET", "/healthz"))[0] == 200
        assert (await bench.ask("POST", "/predict", asking(), TOKEN))[0] == 200

    with_bench(tmp_path, use, TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_beyond_loopback_only_with_a_token(host: str) -> None:
    with pytest.raises(SidecarConfigError, match="token"):
        SidecarConfig(host)
    SidecarConfig(host, token=TOKEN)


def test_metrics_count_answers_by_route_and_what_was_not_seen(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        await bench.predict()
        await bench.ask("POST", "/predict", b"{")
        await bench.ask("GET", "/nowhere")
        bench.end()
        bench.clock.now_s += 1.0
        await bench.refused("GET", "/healthz")
        bench.begin()
        async with bench.client.get(bench.sidecar.url + "/metrics") as answer:
            text = await answer.text()
        for line in (
            'leeway_sidecar_requests_total{route="/predict",status="200"} 1.0',
            'leeway_sidecar_requests_total{route="/predict",status="400"} 1.0',
            'leeway_sidecar_requests_total{route="other",status="404"} 1.0',
            'leeway_sidecar_unsighted_total{cause="gone"}',
            "leeway_sidecar_step_error 0.0",
            "leeway_sidecar_stretch 1.0",
        ):
            assert line in text

    with_bench(tmp_path, use)
