"""The length tagger behind real sockets: what is asked, what is skipped, what a request waits for, and what it never does."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import median

import pytest

from gateway.config import GatewayConfig, ModelSpec, PolicyName, Tagger
from gateway.tagging import Tagging
from predictor.features import Cues
from predictor.length import Guess, LengthTagger, Tag
from predictor.request import LengthEstimate
from tests.wire.kit import CONFIG, Rig, chat, metric, run, until
from tests.wire.scripted import Held, ScriptedBackend
from tests.wire.tagger_kit import broken_command, patient, tiny_models

NEVER_LATE = 10_000.0  # ms


def config(models: str, policy: PolicyName = "po2", **options: object) -> GatewayConfig:
    tagger = replace(Tagger(mode="on", models=models, deadline_ms=NEVER_LATE), **options)  # type: ignore[arg-type]
    return replace(CONFIG, models=(ModelSpec("m", policy),), tagger=tagger)


class Trusting(LengthTagger):
    """Believes what the encoder says at once, without evidence."""

    def tag(self, model: str, route: str, cues: Cues | None, guesses: Mapping[str, Guess], max_tokens: int) -> Tag:
        """As its quantiles."""
        tag = super().tag(model, route, cues, guesses, max_tokens)
        guess = guesses.get("encoder")
        if guess is None:
            return tag
        q10, q50, q90 = (round(exp(value)) for value in (guess.q10, guess.q50, guess.q90))
        return replace(tag, estimate=LengthEstimate(q10, q50, q90, "encoder"), layer="encoder")


async def up(rig: Rig) -> Tagging:
    """Wait until the process answers."""
    tagging = rig.app.plane.desks.tagging
    await until(lambda: tagging.link is not None and tagging.link.state == "up", 60.0, lambda: tagging.link)
    return tagging


def test_a_request_is_told_its_length_before_it_is_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        assert (await rig.ask(chat("how long?"))).status == 200
        assert sum(tagging.counts.layers.values()) == 1
        assert not tagging.counts.misses
        assert tagging.link is not None
        assert tagging.link.models == ("trees", "encoder")
        text = await rig.metrics()
        assert metric(text, "leeway_length_predictions_total") == 1
        assert metric(text, "leeway_tagger_up") == 1

    run(case, config(tiny_models(tmp_path)), backends=2)


def test_the_same_question_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        for _ in range(5):
            await rig.ask(chat("the same"))
        await rig.ask(chat("the same", max_tokens=700))
        assert tagging.counts.cache_hits == 4
        assert sum(tagging.counts.layers.values()) == 6

    run(case, config(tiny_models(tmp_path)), backends=2)


def test_so_many_answers_are_remembered_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        for text in ("one", "two", "three", "one", "one"):
            await rig.ask(chat(text))
        assert (tagging.counts.cache_hits, len(tagging.memory)) == (1, 2)

    run(case, config(tiny_models(tmp_path), cache_entries=2), backends=2)


def test_nothing_is_asked_where_it_decides_nothing(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        await rig.ask(chat("short", max_tokens=2))
        assert tagging.counts.skips["limit"] > 0
        assert not tagging.counts.layers

    run(case, config(tiny_models(tmp_path)), backends=2)

    async def plan(rig: Rig) -> None:
        tagging = await up(rig)
        await rig.ask(chat("nobody waits"))
        assert tagging.counts.skips == {"sent": 1, "limit": tagging.counts.skips["limit"]}
        assert not tagging.counts.layers

    run(plan, config(tiny_models(tmp_path), "plan"), backends=2)


def test_auto_starts_no_process_before_a_length_can_matter(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        tagging = rig.app.plane.desks.tagging
        await rig.ask(chat())
        assert tagging.link is None
        assert metric(await rig.metrics(), "leeway_tagger_up") == 0

    run(case, config(tiny_models(tmp_path), "plan", mode="auto"), backends=2)


def test_who_waits_in_the_line_is_told_and_goes_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes while the job waits: it is not held for it, and a short one passes those before it."""
    patient(monkeypatch)
    play = Held()
    backend = ScriptedBackend("b0")

    async def case(rig: Rig) -> None:
        backend.play = play
        tagging = rig.app.plane.desks.tagging
        tagging.command, tagging.tagger = broken_command("by_text"), Trusting()
        tagging.start()
        await up(rig)
        asked = [asyncio.create_task(rig.ask(chat("1" * 1_500_000, stream=True)))]
        await until(lambda: len(play.order) == 1)
        for text in ("4", "3", "2 short"):
            asked.append(asyncio.create_task(rig.ask(chat(text, stream=True))))
            await until(lambda: rig.app.plane.held == len(asked) - 1)
        ((_, desk),) = rig.app.plane.desks
        await until(lambda: desk.hindsight.compared == 3, 60.0, lambda: tagging.counts.misses)
        play.go_on.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert play.order[:2] == ["1", "2"]
        assert desk.hindsight.changed >= 1
        assert desk.hindsight.gain_s > 0

    # one of a few seconds is looked at to learn from it, and is not asked about again: a slow machine takes as long for these
    tagger = Tagger(mode="auto", deadline_ms=NEVER_LATE, learn_per_s=0.0)
    run(case, replace(config("", "plan"), tagger=tagger), backends=(backend,))


def test_the_process_is_told_which_model_will_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = rig.app.plane.desks.tagging
        tagging.command, tagging.tagger = broken_command("by_model"), Trusting()
        tagging.start()
        await up(rig)
        assert (await rig.ask(chat("hello"))).status == 200
        ((known, _),) = tagging.memory._known.values()
        assert known.guesses["encoder"].q50 == 2.0

    run(case, config("", mode="auto"), backends=2)


def test_an_answer_that_comes_late_corrects_what_is_expected_in_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request went with the constant length at the deadline; it is still under way when the models' answer comes."""
    patient(monkeypatch)
    play, go = Held(), tmp_path / "go"
    backends = (ScriptedBackend("b0"), ScriptedBackend("b1"))

    async def case(rig: Rig) -> None:
        for backend in backends:
            backend.play = play
        tagging = rig.app.plane.desks.tagging
        tagging.command, tagging.tagger = broken_command("held", go), Trusting()
        tagging.start()
        await up(rig)
        asked = asyncio.create_task(rig.ask(chat("how long?", stream=True)))
        await until(lambda: tagging.counts.misses == {"late": 1}, say=lambda: tagging.counts.misses)
        go.touch()
        await until(lambda: tagging.counts.late_used == 1, 60.0, lambda: tagging.counts.misses)
        mirrors = [replica.mirror for replica in rig.app.plane.fleet if replica.mirror is not None]
        assert [seat.rest.median for mirror in mirrors for seat in mirror.seats] == [round(exp(5.0))]
        assert tagging.counts.misses == {"late": 1}
        play.go_on.set()
        assert (await asked).status == 200

    run(case, config("", mode="auto", deadline_ms=1.0), backends=backends)


@pytest.mark.parametrize("fault", ["silent", "nan", "negative", "garbage", "huge", "rubbish", "slow", "dies", "refuses"])
def test_case_15_3_the_tagger_at_fault(fault: str) -> None:
    """15.3: every fault of the tagger's process: all requests are served, within the deadline (but for those that the machine
    itself let wait: less than half of them), and each cause is counted."""
    causes = {"huge": "garbage", "rubbish": "garbage", "slow": "late", "silent": "late", "dies": "down", "refuses": "down"}
    deadline_s = 0.02

    async def case(rig: Rig) -> None:
        tagging, loop, took_s = rig.app.plane.desks.tagging, asyncio.get_running_loop(), []
        for i in range(20):
            began_s = loop.time()
            assert (await rig.ask(chat(f"prompt {i}"))).status == 200
            took_s.append(loop.time() - began_s)
            if i == 0:
                await until(
                    lambda: tagging.link is not None and (tagging.link.state == "up" or tagging.link.restarts > 0), 60.0
                )
        assert median(took_s) < deadline_s + 1.0, took_s
        cause = causes.get(fault, fault)
        assert tagging.counts.misses[cause] > 0, tagging.counts.misses
        assert f'leeway_tagger_misses_total{{cause="{cause}"}}' in await rig.metrics()

    def commanded(rig_case: Callable[[Rig], object]) -> Callable[[Rig], object]:
        async def inner(rig: Rig) -> None:
            rig.app.plane.desks.tagging.command = broken_command(fault)
            await rig_case(rig)  # type: ignore[misc]

        return inner

    run(commanded(case), config("", mode="auto", deadline_ms=deadline_s * 1e3, cache_entries=0), backends=2)  # type: ignore[arg-type]


def test_case_15_3_the_tagger_killed_under_load(tmp_path: Path) -> None:
    """15.3: killed again and again while requests run: none fails, it comes back, and then it answers again."""

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        link = tagging.link
        assert link is not None
        for round_number in range(3):
            asked = [asyncio.create_task(rig.ask(chat(f"round {round_number} number {i}"))) for i in range(30)]
            os.kill(link.pid, signal.SIGKILL)
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
            await until(lambda: link.restarts > round_number and link.state == "up", 60.0, lambda: link)  # noqa: B023
        before = tagging.counts.layers.total()
        assert (await rig.ask(chat("after all"))).status == 200
        assert tagging.counts.layers.total() == before + 1
        assert metric(await rig.metrics(), "leeway_tagger_restarts_total") >= 3

    run(case, config(tiny_models(tmp_path), queue=4096, skip=False), backends=2)


def test_case_15_3_a_hung_process_is_ended_and_replaced() -> None:
    """15.3: stopped (not dead): nobody waits beyond the deadline, and after two seconds there is another one."""

    async def case(rig: Rig) -> None:
        tagging = rig.app.plane.desks.tagging
        tagging.command = broken_command("silent")
        await rig.ask(chat("first"))
        await until(lambda: tagging.link is not None and tagging.link.state == "up", 60.0)
        link = tagging.link
        assert link is not None
        first = link.pid
        assert (await rig.ask(chat("second"))).status == 200
        await until(lambda: link.restarts == 1 and link.state == "up" and link.pid != first, 60.0, lambda: link)

    run(case, config("", mode="auto", deadline_ms=5.0), backends=2)


def test_case_2_2_a_client_that_leaves_while_the_tagger_is_asked() -> None:
    """2.2: gone while the tagger runs: nothing is dispatched, nothing is left."""

    async def case(rig: Rig) -> None:
        tagging = rig.app.plane.desks.tagging
        tagging.command = broken_command("silent")
        await rig.ask(chat("first"))
        await until(lambda: tagging.link is not None and tagging.link.state == "up", 60.0)
        before = rig.calls
        peer = await rig.connect()
        request_id = peer.ask(chat("left alone", stream=True))
        await until(lambda: "1 asked" in repr(tagging.link))
        peer.leave()
        line = await rig.access(request_id)
        assert line["end"] == "client_gone"
        await until(lambda: tagging.counts.misses["late"] == 1)
        assert rig.calls == before

    run(case, config("", mode="auto", deadline_ms=1500.0), backends=2)


ODD = {
    "empty": {"messages": []},
    "no messages": {},
    "null": {"messages": None},
    "ten megabytes": {"messages": [{"role": "user", "content": "ten megabytes " * 700_000}]},
    "lone surrogates": {"messages": [{"role": "user", "content": "\ud800\udfff\udc00 " * 3000}]},
    "all emoji": {"messages": [{"role": "user", "content": "\U0001f600\U0001f44d\U0001f3fd" * 3000}]},
    "tools only": {
        "messages": [{"role": "tool", "content": "42", "tool_call_id": "x"}] * 9,
        "tools": [{"type": "function"}] * 300,
    },
    "images": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:," + "A" * 90_000}}]}]
    },
    "wrong types": {"messages": [7, None, "x", {"role": 5, "content": {"a": [[]]}}], "tools": 3, "system": 9},
    "token ids": {"prompt": list(range(5000))},
    "deep": {"messages": [{"role": "user", "content": "x"}], "x": json.loads("[" * 900 + "]" * 900)},
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_prompts_are_tagged_like_others(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        answer = await rig.ask(json.dumps({"model": "m", **ODD[odd]}).encode())  # type: ignore[dict-item]
        assert answer.status == 200
        assert tagging.counts.layers.total() == 1
        assert not tagging.counts.misses

    run(case, config(tiny_models(tmp_path)), backends=2)


def test_without_the_extra_the_trees_and_what_is_learnt_online_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    hidden = "import sys; sys.modules['onnxruntime'] = None; from gateway.tag_worker import main; main({fd}, '{folder}')"

    async def case(rig: Rig) -> None:
        tagging = rig.app.plane.desks.tagging
        tagging.command = (sys.executable, "-c", hidden.replace("{folder}", tiny_models(tmp_path)))
        tagging.start()
        await up(rig)
        assert tagging.link is not None
        assert tagging.link.models == ("trees",)
        assert (await rig.ask(chat("no runtime"))).status == 200
        assert not tagging.counts.misses
        assert tagging.counts.layers.total() == 1

    run(case, config("", mode="auto"), backends=2)


def test_models_that_can_t_be_read_are_left_out_and_told(tmp_path: Path) -> None:
    tiny_models(tmp_path)
    (tmp_path / "trees.onnx").write_bytes(b"no trees")

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        assert tagging.link is not None
        assert tagging.link.models == ("encoder",)
        await until(lambda: any(line["event"] == "tagger problem" for line in rig.log()))

    run(case, config(str(tmp_path)), backends=2)


def test_a_folder_without_models_is_told(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        await until(lambda: any(line["event"] == "tagger problem" and "neither" in line["reason"] for line in rig.log()))

    run(case, config(str(tmp_path)), backends=2)


def test_what_is_known_of_layers_and_decisions_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        await up(rig)
        for number in range(12):
            assert (await rig.ask(chat(f"number {number}", stream=True))).status == 200
        text = await rig.metrics()
        assert metric(text, "leeway_length_answers_total") >= 1
        assert metric(text, "leeway_length_error_count") == metric(text, "leeway_length_answers_total")
        assert metric(text, "leeway_length_covered_total") <= metric(text, "leeway_length_answers_total")
        assert metric(text, "leeway_length_decisions_compared_total") == 12
        assert metric(text, "leeway_tagger_answer_seconds_count") == 12
        assert 'leeway_length_layer_weight{layer="encoder",model="m"}' in text
        assert metric(text, "leeway_length_layer_weight") == pytest.approx(1.0, abs=0.01)

    run(case, config(tiny_models(tmp_path), "fanout", compare_share=1.0, skip=False), backends=2)


def test_without_models_the_cheap_layers_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        assert tagging.link is not None
        assert tagging.link.models == ()
        assert (await rig.ask(chat("no models"))).status == 200
        assert tagging.counts.layers.total() == 1
        assert not tagging.counts.misses

    run(case, config(str(tmp_path)), backends=2)
