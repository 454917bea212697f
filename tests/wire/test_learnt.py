"""What was learnt in one life of the gateway is known in the next, and no file whatever stops a start."""

import asyncio
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway import learnt
from gateway.config import Admin, GatewayConfig, ModelSpec, Tagger
from gateway.learnt import HEAD, Learnt, file_of
from gateway.swap_config import DeviceSpec
from predictor.cost import GB
from predictor.length import LengthTagger
from predictor.lengths import UNKNOWN
from tests.wire.kit import CANARY, CONFIG, INSTANT, Case, Rig, chat, run, until

TOKENS = 7
ENGINES = tuple(replace(INSTANT, name=name, models=("m",), output_tokens=lambda _: TOKENS) for name in ("e0", "e1"))


def config(**changed: object) -> GatewayConfig:
    admin = replace(CONFIG.admin, **changed)  # type: ignore[arg-type]
    return replace(CONFIG, models=(ModelSpec("m", "plan"),), tagger=Tagger(mode="off"), admin=admin)


def live(case: Case, told: GatewayConfig) -> None:
    run(case, told, backends=0, engines=ENGINES)


def expected(rig: Rig) -> int:
    """What is told of the first request's length."""
    return rig.app.plane.desks.tagging.tagger.tag("m", "chat", None, {}, -1).estimate.q50


def events(rig: Rig, word: str) -> list[dict[str, object]]:
    return [line for line in rig.log() if str(line["event"]).startswith(word)]


async def ask(rig: Rig, times: int) -> None:
    for number in range(times):
        assert (await rig.ask(chat(f"{CANARY} {number}", stream=True))).status == 200


async def grow_slow(rig: Rig) -> None:
    """As if a long time with slow engines had passed."""
    for replica in rig.app.plane.fleet:
        mirror = rig.app.plane.desks.engines.mirror(replica)
        for _ in range(30):
            mirror.learned.window(1.0, 8.0)


def test_the_next_life_begins_with_what_was_learnt(tmp_path: Path) -> None:
    told = config(state_file=str(tmp_path / "state.db"))
    kept = tmp_path / "state.db.learnt"

    async def first(rig: Rig) -> None:
        assert expected(rig) > 10 * TOKENS
        await grow_slow(rig)
        await ask(rig, 60)
        await until(lambda: expected(rig) < 2 * TOKENS)

    async def second(rig: Rig) -> None:
        assert expected(rig) < 2 * TOKENS
        await ask(rig, 1)
        paces = [replica.mirror.pace for replica in rig.app.plane.fleet if replica.mirror is not None]
        assert all(4.0 < pace < 12.0 for pace in paces), paces
        await until(lambda: bool(events(rig, "learnt records taken over")))

    live(first, told)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert CANARY.encode() not in kept.read_bytes()
    live(second, told)
    assert sorted(path.name for path in tmp_path.glob("*learnt*")) == ["state.db.learnt", "state.db.learnt.lock"]


def test_what_swaps_took_is_known_in_the_next_life(tmp_path: Path) -> None:
    told = replace(config(learnt_file=str(tmp_path / "learnt")), devices=(DeviceSpec("gpu0", 80.0),))

    def seconds(rig: Rig) -> float:
        return rig.app.plane.lodging.costs.predict("m", 8 * GB, "generic", "disk", "gpu").mean_s

    async def first(rig: Rig) -> None:
        assert seconds(rig) < 60.0
        for _ in range(6):
            rig.app.plane.lodging.costs.observe("m", 8 * GB, "generic", "disk", "gpu", 90.0)
        assert seconds(rig) == pytest.approx(90.0, rel=0.2)

    async def second(rig: Rig) -> None:
        assert seconds(rig) == pytest.approx(90.0, rel=0.2)

    live(first, told)
    live(second, told)


def test_nothing_is_kept_unless_there_is_a_place_for_it(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        await ask(rig, 1)

    for admin in (Admin(), Admin(state_file="x", learnt_file="off"), Admin(learnt_file="off")):
        assert file_of(admin) == ""
    assert file_of(Admin(state_file="x")) == "x.learnt"
    assert file_of(Admin(state_file="x", learnt_file="y")) == file_of(Admin(learnt_file="y")) == "y"
    live(case, config(state_file=str(tmp_path / "state.db"), learnt_file="off"))
    assert not list(tmp_path.glob("*learnt*"))


RECORD = orjson.dumps(["lengths", {"kind": "curves", "curves": []}])
BAD = {
    "empty": b"",
    "no text": b"\x00\xff" * 99,
    "no file of ours": b"[1, 2]\n",
    "older": b'{"leeway":"learnt","version":0}\n',
    "newer": b'{"leeway":"learnt","version":99}\n' + RECORD + b"\n",
    "cut short": HEAD + b"\n" + RECORD[:-4],
    "too large": HEAD + b"\n" + (RECORD + b"\n") * 200,
    "a folder": None,
}
SPOILT = {
    "no record": [b"{}", b"7", b'["lengths"]', b"[[], {}]", b"oops"],
    "other kinds": [b'["lengths",{"kind":"x"}]', b'["lengths",3]', b'["engines",{}]', b'["engines",{"name":"e0","same":""}]'],
}


def begins_anew(told: GatewayConfig, event: str) -> None:
    async def case(rig: Rig) -> None:
        await until(lambda: bool(events(rig, event)))
        assert len(events(rig, event)) == 1
        assert expected(rig) == UNKNOWN.q50
        await ask(rig, 1)

    live(case, told)


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_can_t_be_used_is_left_out_and_told_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = tmp_path / "learnt", BAD[kind]
    if body is None:
        path.mkdir()
    else:
        path.write_bytes(body)
    monkeypatch.setattr(learnt, "BYTES_MAX", 5000 if kind == "too large" else learnt.BYTES_MAX)
    begins_anew(config(learnt_file=str(path)), "learnt file ignored")
    assert path.is_dir() or path.read_bytes().startswith(HEAD), "it is written anew"


@pytest.mark.parametrize("kind", SPOILT)
def test_records_that_can_t_be_used_are_left_out_and_the_others_are_not(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "learnt"
    path.write_bytes(b"\n".join([HEAD, *SPOILT[kind], RECORD, b'["of nobody here",{}]', b""]))
    begins_anew(config(learnt_file=str(path)), "learnt records left out")


def test_a_place_that_can_t_be_written_is_told_once(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        for _ in range(3):
            await rig.app.learnt.save()
        await until(lambda: bool(events(rig, "learnt file not written")))
        assert len(events(rig, "learnt file not written")) == 1

    live(case, config(learnt_file=str(tmp_path / "nowhere" / "learnt")))


def test_it_is_written_while_serving_when_something_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "learnt"

    async def case(rig: Rig) -> None:
        tagger = LengthTagger()
        keeper = Learnt(str(path), rig.app.logs, rig.app.plane.now)
        keeper.every_s = 0.01
        keeper.keep("lengths", tagger)
        keeper.start()
        await until(path.exists)
        first = path.stat()
        tagger.observe(tagger.tag("m", "chat", None, {}, -1), 50, truncated=False)
        await until(lambda: path.stat().st_ino != first.st_ino)
        second = path.stat()
        await keeper.save()
        assert path.stat().st_ino == second.st_ino, "nothing new: not written"
        await keeper.close()
        assert len(path.read_bytes().splitlines()) == 2

    live(case, config())


def test_the_loop_is_free_while_much_is_made_ready(tmp_path: Path) -> None:
    """A large state is made in many slices, and others run between them; what was going on is written whole."""
    path = tmp_path / "learnt"

    async def case(rig: Rig) -> None:
        tagger = LengthTagger()
        for number in range(3000):
            tagger.observe(tagger.tag(f"m{number % 1000}", "chat", None, {}, -1), 1 + number % 900, truncated=False)
        keeper = Learnt(str(path), rig.app.logs, rig.app.plane.now)
        keeper.keep("lengths", tagger)
        saving = asyncio.create_task(keeper.save())
        turns = 0
        while not saving.done():
            await asyncio.sleep(0)
            turns += 1
        records = [json.loads(line) for line in path.read_bytes().splitlines()[1:]]
        assert sum(len(state.get("curves", ())) for _, state in records) == len(tagger._running)
        assert turns > 10
        await keeper.close()

    live(case, config())
    assert sorted(os.listdir(tmp_path)) == ["learnt", "learnt.lock"]
