"""examples/production: its gateway.toml serves as leeway.service would run it; its figures agree with the gateway's own.

The proxies' snippets are run by test_nginx.py and test_haproxy.py.
"""

import asyncio
import os
import re
import signal
import sys
import tomllib
from pathlib import Path

from backends.mock import MockConfig, MockEngine
from gateway.config import Limits, Timeouts
from predictor.profile import preset
from tests.tools.programs import ADMIN_KEY, ROOT, Gateway, ask, free_port, output_of, serving_file, until_async
from tests.wire.kit import metric, until

SOURCE = ROOT / "examples" / "production"
TOML = (SOURCE / "gateway.toml").read_text()
STATE_FILE = "/var/lib/leeway/backends.sqlite"
CHAT = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


def unit(name: str) -> dict[str, list[str]]:
    """A unit file's settings; a key may be there more than once."""
    settings: dict[str, list[str]] = {}
    for line in (SOURCE / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    return settings


def setting_s(name: str, pattern: str) -> float:
    """A time in a snippet, in seconds."""
    found = re.search(rf"^\s*{pattern}\s+(\d+)(ms|s|m|)\b", (SOURCE / name).read_text(), re.MULTILINE)
    assert found is not None, f"{name}: {pattern}"
    return int(found[1]) * UNITS[found[2]]


async def _generation(gateway: Gateway) -> float:
    return metric(await gateway.metrics(), "leeway_config_generation")


def _reload(gateway: Gateway, file: Path, text: str) -> None:
    file.write_text(text)
    os.kill(gateway.program.pid, signal.SIGHUP)


def _rendered(folder: Path, urls: list[str], port: int, control_port: int) -> str:
    places = {"127.0.0.1:8080": f"127.0.0.1:{port}", "127.0.0.1:8081": f"127.0.0.1:{control_port}"}
    places |= dict(zip(("http://127.0.0.1:8000", "http://127.0.0.1:8001"), urls, strict=True))
    places[STATE_FILE] = str(folder / "backends.sqlite")
    text = TOML
    for shown, used in places.items():
        assert shown in text
        text = text.replace(shown, used)
    return text


def test_it_serves_reloads_and_ends_as_the_unit_does_it(tmp_path: Path) -> None:
    """The admin key from a file, SIGHUP with a good and with a bad file, backends that survive a restart, SIGTERM."""

    async def main() -> None:
        instant = preset("instant")
        config = MockConfig(profile=instant.profile, limits=instant.limits)
        async with MockEngine(config) as first, MockEngine(config) as second, MockEngine(config) as third:
            port, control_port = free_port(), free_port()
            text = _rendered(tmp_path, [first.url, second.url], port, control_port)
            file, key = tmp_path / "gateway.toml", tmp_path / "admin-key"
            file.write_text(text)
            key.write_text(ADMIN_KEY + "\n")
            env = {"LEEWAY_ADMIN_KEY": "", "LEEWAY_ADMIN_KEY_FILE": str(key)}
            async with serving_file(file, port, control_port, env) as gateway:
                _reload(gateway, file, text + "\n[queue]\nsize = 7\n")

                async def reloaded() -> bool:
                    return await _generation(gateway) == 2

                await until_async(reloaded)
                _reload(gateway, file, text + "\n[queue]\nsize = -1\n")
                await until(lambda: "queue.size" in gateway.program.output(), 60, gateway.program.output)
                assert await _generation(gateway) == 2
                assert (await ask(port, CHAT, BODY)).status == 200
                headers = {"authorization": f"Bearer {ADMIN_KEY}", "content-type": "application/json"}
                added = await ask(control_port, "/admin/backends", {"name": "gpu2", "url": third.url}, headers)
                assert added.status == 202
            file.write_text(text)
            async with serving_file(file, port, control_port, env) as gateway:
                assert {backend["name"] for backend in await gateway.backends()} == {"gpu0", "gpu1", "gpu2"}

    asyncio.run(main())


def test_the_file_as_shipped_is_in_order() -> None:
    async def main() -> None:
        code, _, err = await output_of(sys.executable, "-m", "gateway", "check", str(SOURCE / "gateway.toml"))
        assert code == 0, err

    asyncio.run(main())


def test_the_unit_fits_the_gateway() -> None:
    """It waits longer than the drain, signals what the gateway listens to, and hands the key over where it is read."""
    service = unit("leeway.service")
    drain_s = tomllib.loads(TOML)["timeouts"]["drain_s"]
    (stop,) = service["TimeoutStopSec"]
    assert int(stop.removesuffix("s")) > drain_s + Timeouts().connect_s
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    (start,) = service["ExecStart"]
    assert start.split()[1:] == ["serve", "/etc/leeway/gateway.toml"]
    (credential,) = service["LoadCredential"]
    assert f"LEEWAY_ADMIN_KEY_FILE=%d/{credential.partition(':')[0]}" in service["Environment"]
    assert f"/var/lib/{service['StateDirectory'][0]}/backends.sqlite" == STATE_FILE
    (limit,) = service["LimitNOFILE"]
    assert int(limit) > 2 * Limits().connections
    assert service["Type"] == unit("vllm@.service")["Type"] == ["exec"]


def test_the_proxies_figures_fit_the_gateways_defaults() -> None:
    timeouts = Timeouts()
    assert setting_s("nginx.conf", "proxy_read_timeout") > timeouts.unary_s
    assert setting_s("nginx.conf", "keepalive_timeout") < timeouts.keep_alive_s
    assert setting_s("haproxy.cfg", "timeout server") > timeouts.unary_s
    assert setting_s("haproxy.cfg", "timeout client") >= setting_s("haproxy.cfg", "timeout server")
    assert setting_s("haproxy.cfg", "timeout http-request") <= timeouts.head_s
    assert f"client_max_body_size {Limits().body_bytes >> 20}m;" in (SOURCE / "nginx.conf").read_text()


def test_sidecar_unit_reads_what_the_engines_unit_publishes() -> None:
    engine, sidecar = unit("vllm@.service"), unit("leeway-sidecar@.service")
    (start,) = sidecar["ExecStart"]
    options = dict(re.findall(r"(--[a-z-]+) (\S+)", start))
    assert f"LEEWAY_SNAPSHOT={options['--state']}" in engine["Environment"]
    assert options["--state"] == f"/run/{engine['RuntimeDirectory'][0]}/leeway"
    assert engine["EnvironmentFile"] == sidecar["EnvironmentFile"]
    code, known, _ = asyncio.run(output_of(sys.executable, "-m", "gateway", "sidecar", "--help"))
    assert code == 0
    assert all(name in known for name in options)
    said = (SOURCE / "leeway-sidecar@.service").read_text()
    assert all(f"#     {name}=" in said for name in re.findall(r"\$\{(\w+)\}", start))
    (scheduler,) = re.findall(r"--scheduler-cls backends\.vllm_scheduler\.(\w+)", said)
    assert f"class {scheduler}(" in (ROOT / "backends" / "vllm_scheduler.py").read_text()
