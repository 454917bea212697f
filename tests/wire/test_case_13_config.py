"""Failure cases, section 13: reload, metric labels, model names."""

import asyncio
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from gateway.config import Limits, ModelSpec
from gateway.config_file import ConfigError, load
from tests.wire.kit import ADMIN_KEY, CONFIG, Rig, chat, idle_for, metric, run, until
from tests.wire.scripted import ScriptedBackend
from tests.wire.served import Served, served
from tests.wire.test_case_06_headers import FORM, MULTIPART

HEAD = f'[pool]\nidle_s = 0.2\n[listen]\ndata = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n[admin]\nkey = "{ADMIN_KEY}"\n'


def table(backend: ScriptedBackend, name: str = "") -> str:
    """A backend's TOML table."""
    return f'[[backends]]\nname = "{name or backend.name}"\nurl = "{backend.url}"\nengine = "openai"\nmodels = ["m"]\n'


def test_case_13_1_reloads_under_load(tmp_path: Path) -> None:
    """13.1: a syntax error, a file that cannot work, a good file: the old one serves on, each error is logged once."""

    async def load_it(gateway: Served, statuses: list[int], stop: asyncio.Event) -> None:
        while not stop.is_set():
            statuses.append((await gateway.ask(chat())).status)
            await idle_for(0.005)

    async def main() -> None:
        old, new = ScriptedBackend("old"), ScriptedBackend("new")
        await old.start()
        await new.start()
        statuses: list[int] = []
        stop = asyncio.Event()
        async with served(tmp_path, "", old) as gateway:
            clients = [asyncio.create_task(load_it(gateway, statuses, stop)) for _ in range(4)]
            file = tmp_path / "gateway.toml"
            for text, said in (
                (HEAD + table(new) + "[limits\nn = 1\n", "line 13, column 8"),
                (HEAD + table(new) + table(old, "new"), "two backends are named 'new'"),
                (HEAD + table(new) + "[limits]\nn = 0\nnn = 1\n", "limits.nn"),
            ):
                file.write_text(text)
                refused = await gateway.admin("POST", "/admin/reload")
                assert refused.status == 422
                assert said in refused.error["message"]
                await gateway.event("reload refused", error=refused.error["message"])
                assert not new.calls
            assert sum(line["event"] == "reload refused" for line in gateway.log) == 3
            file.write_text(HEAD + table(new))
            assert (await gateway.admin("POST", "/admin/reload")).status == 200
            await gateway.event("backend removed", name="old")
            seen = len(new.calls)
            await new.called(seen + 20)
            stop.set()
            await asyncio.gather(*clients)
            assert set(statuses) == {200}
            await old.close()  # the kept connection of its last probe, too
        await new.close()

    asyncio.run(main())


def series(metrics: str) -> int:
    """How many series an exposition holds."""
    return sum(not line.startswith("#") for line in metrics.splitlines())


def test_case_13_2_unknown_model_names_make_no_series() -> None:
    """13.2: 10,000 different unknown model names: the series that one of them makes, and no more."""

    async def case(rig: Rig) -> None:
        await rig.ask({"model": "unknown"})
        before = series(await rig.metrics())
        peer = await rig.connect()
        for first in range(0, 10_000, 16):
            for number in range(first, first + 16):
                peer.ask(b'{"model":"canary-5f1c77aa-%d"}' % number)
            for _ in range(16):
                assert (await peer.answer()).status == 404
        assert series(await rig.metrics()) == before

    run(case)


def test_case_13_2_known_model_names_are_bounded_too() -> None:
    """13.2: more models served than labels allowed: the rest count as "other"."""
    backend = ScriptedBackend("b0", tuple(f"m{i}" for i in range(40)))

    async def case(rig: Rig) -> None:
        for model in backend.models:
            assert (await rig.ask({**chat(), "model": model})).status == 200
        lines = [line for line in (await rig.metrics()).splitlines() if line.startswith("leeway_requests_total{")]
        assert sum('route="chat"' in line for line in lines) == 6
        assert sum('model="other"' in line for line in lines) == 1

    run(case, replace(CONFIG, limits=Limits(model_labels=5)), backends=(backend,))


def test_case_13_2_backends_that_come_and_go_leave_no_series() -> None:
    """13.2 on the operator's side: ten backends under ten names, added and removed by REST: one more set of series in all."""

    async def case(rig: Rig) -> None:
        server = ScriptedBackend("passing", ("passing",))
        await server.start()

        async def one(name: str) -> None:
            made = {"name": name, "url": server.url, "engine": "openai", "models": ["passing"]}
            assert (await rig.admin("POST", "/admin/backends", made)).status == 202
            await until(lambda: (found := rig.app.plane.fleet.get(name)) is not None and found.state == "ready")
            assert (await rig.ask({**chat(), "model": "passing"})).status == 200
            assert (await rig.admin("DELETE", f"/admin/backends/{name}?timeout_s=5")).status == 202
            await until(lambda: rig.app.plane.fleet.get(name) is None)

        await one("pod-0")
        before = series(await rig.metrics())
        for number in range(1, 10):
            await one(f"pod-{number}")
        text = await rig.metrics()
        assert series(text) == before
        assert "pod-" not in text
        assert metric(text, "leeway_output_tokens_total") >= 10
        await server.close()

    run(case)


IDS = ("org/model-7b", "llama3:8b", "org/sub/model:tag@1", "m", "a b", "\u6a21\u578b", "x%2Fy")


def test_case_13_3_every_listed_id_works_on_every_route() -> None:
    """13.3: ids with / and : and others: each is listed, retrieved (encoded or not) and served, its aliases too."""
    backend = ScriptedBackend("b0", IDS)
    models = (ModelSpec("org/model-7b", aliases=("gpt:4/o", "short")),)

    async def case(rig: Rig) -> None:
        listed = (await rig.ask(path="/v1/models", method="GET")).json["data"]
        assert {card["id"] for card in listed} == {*IDS, "gpt:4/o", "short"}
        for card in listed:
            name = card["id"]
            paths = [f"/v1/models/{quote(name, safe='')}"]
            if name.isascii() and "%" not in name and " " not in name:
                paths.append(f"/v1/models/{name}")
            for path in paths:
                found = await rig.ask(path=path, method="GET")
                assert (found.status, found.json["id"]) == (200, name), path
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"):
                assert (await rig.ask({**chat(), "model": name}, path)).status == 200, (name, path)
                assert rig.backend.calls[-1].json["model"] == card.get("root", name)
            form = FORM.replace(b"\r\n\r\nm\r\n", b"\r\n\r\n" + name.encode() + b"\r\n")
            assert (await rig.ask(form, "/v1/audio/transcriptions", headers=MULTIPART)).status == 200
            said = b"\r\n\r\n" + card.get("root", name).encode() + b"\r\n"
            assert rig.backend.calls[-1].body == FORM.replace(b"\r\n\r\nm\r\n", said)

    run(case, replace(CONFIG, models=models), backends=(backend,))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[models.a]\naliases = ["x"]\n[models.b]\naliases = ["x"]\n', ("'x'", "'a'", "'b'")),
        ('[models.a]\naliases = ["b"]\n[models.b]\n', ("'b'", "'a'")),
        ('[models.a]\naliases = ["m"]\n', ("'m'", "'a'")),
        ('[models.a]\naliases = ["a"]\n', ("'a'",)),
    ],
)
def test_case_13_3_colliding_aliases_are_refused(text: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """13.3: two models with one alias, an alias that is a real id: refused at load, with the names in the message."""
    path = tmp_path / "gateway.toml"
    path.write_text(text + '[[backends]]\nname = "n"\nurl = "http://127.0.0.1:9"\nmodels = ["m"]\n')
    with pytest.raises(ConfigError) as refused:
        load(str(path))
    assert all(name in str(refused.value) for name in names)
