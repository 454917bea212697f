"""What comes with a question counts before it is answered, and lengths that come late count from then on."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from predictor.request import LengthEstimate
from predictor.wire import TOOK_HEADER, Ask, encode_correction, with_notes
from tests.wire.test_sidecar import SCHEMAS, Bench, InEngine, asking, with_bench

DECODING = InEngine("chatcmpl-old-0123abcd", 30, 33, output=[0] * 3)


def correction(name: str, output_tokens: int) -> bytes:
    return encode_correction(Ask(name, "m", 1, LengthEstimate(output_tokens, output_tokens, output_tokens, "test")))


def fits(name: str, body: object) -> None:
    jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text())).validate(body)


async def asked(bench: Bench, body: bytes) -> tuple[int, str | None, dict[str, float]]:
    """Status, how many notes were taken, and the answer."""
    async with bench.client.post(bench.sidecar.url + "/predict", data=body) as answer:
        return answer.status, answer.headers.get(TOOK_HEADER), await answer.json()


def test_reservations_come_with_the_question_as_by_themselves(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        bench.publish([DECODING], [])
        body = with_notes(asking(), [asking("r1", 60), asking("r2", 70)], [correction("r2", 90)])
        fits("ask", json.loads(body))
        status, took, first = await asked(bench, body)
        assert (status, took, first["waiting"]) == (200, "3", 2)
        assert (await asked(bench, asking()))[1:] == ("0", first), "each counts once, and is there before the answer"
        await bench.ask("POST", "/reserve", asking("r1", 60))
        assert (await bench.predict())["waiting"] == 2

    with_bench(tmp_path, use)


def test_what_came_with_a_question_that_cannot_be_answered_was_taken_all_the_same(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        await bench.predict()
        bench.publish([DECODING], [])
        bench.clock.now_s += 11.0
        status, took, _ = await asked(bench, with_notes(asking(), [asking("r1", 60)], []))
        assert (status, took) == (503, "1")
        bench.publish([DECODING], [])
        assert (await bench.predict())["waiting"] == 1

    with_bench(tmp_path, use)


@pytest.mark.parametrize(
    "notes",
    [
        {"reserved": [json.loads(asking("r1", 60)), {"v": 1, "id": "r2"}]},
        {"reserved": [json.loads(asking("r1", 60))] * 65},
        {"reserved": {}},
        {"reserved": [3]},
        {"reserved": [json.loads(asking("r1", 60))], "corrected": [{"id": "r1", "out_q10": 5, "out_q50": 4, "out_q90": 9}]},
        {"corrected": "r1"},
    ],
    ids=["no prompt", "too many", "no list", "no object", "quantiles", "text"],
)
def test_a_question_with_a_malformed_note_is_refused_as_a_whole(tmp_path: Path, notes: dict[str, object]) -> None:
    async def use(bench: Bench) -> None:
        status, took, _ = await asked(bench, json.dumps({**json.loads(asking()), **notes}).encode())
        assert (status, took) == (400, None)
        assert (await bench.predict())["waiting"] == 0

    with_bench(tmp_path, use)


def test_a_length_that_comes_late_counts_on_the_way_and_in_the_engine(tmp_path: Path) -> None:
    async def use(bench: Bench) -> None:
        queued = replace(DECODING, request_id="cmpl-r1-0-0123abcd", output=[], num_computed_tokens=0, max_tokens=400)
        queued.leeway_expected = 400
        bench.publish([DECODING], [])
        await bench.ask("POST", "/reserve", asking("r1", 30, 100))
        before = await bench.predict()
        status, answer = await bench.ask("POST", "/correct", correction("r1", 10))
        fits("correction", json.loads(correction("r1", 10)))
        fits("correct-reply", answer)
        assert (status, answer) == (200, {"v": 1, "id": "r1", "known": True})
        on_its_way = await bench.predict()
        assert on_its_way["queued_tokens"] == before["queued_tokens"] - 90
        bench.publish([DECODING], [queued])
        there = await bench.predict()
        assert there["queued_tokens"] == on_its_way["queued_tokens"]
        await bench.ask("POST", "/correct", correction("r1", 60))
        assert (await bench.predict())["queued_tokens"] == there["queued_tokens"] + 50, "the state itself is the same"
        bench.publish([DECODING], [])
        await bench.predict()
        assert (await bench.ask("POST", "/correct", correction("r1", 9)))[1]["known"] is False
        assert (await bench.ask("POST", "/correct", correction("nobody", 9)))[1]["known"] is False
        assert await bench.refused("POST", "/correct", b'{"v":1,"id":"r1"}') == (400, "malformed")

    with_bench(tmp_path, use)
