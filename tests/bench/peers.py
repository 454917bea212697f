"""The gateways of the overhead bench and how each is started: one core, four backends, power of two choices.

Leeway gets the shortest configuration a user can write, so that its shipped defaults are what is measured (keys,
access log, metrics, probes).  The rivals log errors only; nginx and haproxy keep their connections alive.
Everything listens on loopback.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BACKEND_PORTS = (21101, 21102, 21103, 21104)
GATEWAY_PORT = 21200
CONTROL_PORT = 21299
CLIENT_KEY = "sk-1234"
REPOSITORY = Path(__file__).resolve().parents[2]

DROPPED_PREFIXES = ("PYTHON", "LEEWAY_", "RUST_", "MALLOC_", "OTEL_")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway runs: tools and rivals, a scratch folder of its own, the interpreter for Leeway."""

    home: Path
    scratch: Path
    python: str


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute; cwd None means the folder the bench was called from."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


Recipe = Callable[[Place], Command]


class NotInstalledError(Exception):
    """A peer's program is not on this machine."""


def urls(separator: str) -> str:
    return separator.join(f"http://127.0.0.1:{port}" for port in BACKEND_PORTS)


def clean_environment(place: Place, extra: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what would change a gateway's defaults: switches of interpreters, proxies,
    Leeway's own variables. HOME and TMPDIR are the scratch folder, so no run sees the state of another."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(DROPPED_PREFIXES) and not name.upper().endswith("_PROXY")
    }
    return kept | {"HOME": str(place.scratch), "TMPDIR": str(place.scratch)} | dict(extra)


def system_program(name: str) -> str:
    """Path of a program of the distribution. Raises NotInstalledError."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if path is None:
        raise NotInstalledError(f"{name} is not installed")
    return path


def nginx(place: Place) -> Command:
    tmp, servers = place.scratch, " ".join(f"server 127.0.0.1:{port};" for port in BACKEND_PORTS)
    (tmp / "nginx.conf").write_text(f"""
daemon off; worker_processes 1; error_log {tmp}/error.log warn; pid {tmp}/nginx.pid; worker_rlimit_nofile 20000;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  client_body_temp_path {tmp}/body; proxy_temp_path {tmp}/proxy; fastcgi_temp_path {tmp}/fastcgi;
  uwsgi_temp_path {tmp}/uwsgi; scgi_temp_path {tmp}/scgi;
  upstream llm {{ random two least_conn; {servers} keepalive 2048; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{GATEWAY_PORT} backlog=4096;
    location / {{
      proxy_pass http://llm; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
""")
    return Command((system_program("nginx"), "-c", f"{tmp}/nginx.conf"), cwd=tmp)


def haproxy(place: Place) -> Command:
    return balanced(place, "random(2)", GATEWAY_PORT, BACKEND_PORTS)


def balanced(place: Place, rule: str, port: int, backend_ports: Sequence[int]) -> Command:
    """HAProxy at `port` with one of its rules."""
    servers = "\n".join(f" server s{backend} 127.0.0.1:{backend}" for backend in backend_ports)
    (place.scratch / "haproxy.cfg").write_text(f"""
global
 nbthread 1
 maxconn 8000
defaults
 mode http
 timeout connect 5s
 timeout client 600s
 timeout server 600s
 option http-no-delay
 http-reuse always
frontend clients
 bind 127.0.0.1:{port}
 default_backend llm
backend llm
 balance {rule}
{servers}
""")
    return Command((system_program("haproxy"), "-f", f"{place.scratch}/haproxy.cfg"), cwd=place.scratch)


def rust_router(environment: str, *module: str) -> Recipe:
    """Power of two choices by one of the three Rust routers."""
    return routed(environment, module, "power_of_two", GATEWAY_PORT, CONTROL_PORT, urls(" ").split())


def routed(
    environment: str,
    module: Sequence[str],
    policy: str,
    port: int,
    metrics_port: int,
    worker_urls: Sequence[str],
    more: Sequence[str] = (),
) -> Recipe:
    """The three Rust routers share their command line; each is started through its Python package."""

    def recipe(place: Place) -> Command:
        python = place.home / environment / "bin" / "python"
        if not python.exists():
            raise NotInstalledError(f"{environment} is missing: run setup.sh")
        listen = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port))
        workers = ("--worker-urls", *worker_urls, "--policy", policy, "--log-level", "error", *more)
        return Command((str(python), "-m", *module, *listen, *workers), cwd=place.scratch)

    return recipe


def leeway_config(models: str) -> str:
    """The TOML of a user with four servers and one key: nothing in it changes a default but `models`."""
    backends = "\n".join(
        f'[[backends]]\nname = "b{number}"\nurl = "http://127.0.0.1:{port}"\nengine = "openai"\nmodels = ["m"]\n'
        for number, port in enumerate(BACKEND_PORTS, 1)
    )
    digest = hashlib.sha256(CLIENT_KEY.encode()).hexdigest()
    return (
        f'[listen]\ndata = "127.0.0.1:{GATEWAY_PORT}"\ncontrol = "127.0.0.1:{CONTROL_PORT}"\n\n{backends}\n'
        f'[[keys]]\nsha256 = "{digest}"\n\n{models}'
    )


def leeway(place: Place) -> Command:
    """Power of two choices on requests in flight, as the rivals run it."""
    return _leeway(place, '[models.m]\npolicy = "po2_requests"\n')


def leeway_default(place: Place) -> Command:
    """No policy named: whatever the default does for a model with four backends."""
    return _leeway(place, "")


def _leeway(place: Place, models: str) -> Command:
    config = place.scratch / "gateway.toml"
    config.write_text(leeway_config(models))
    built = os.environ.get("PYTHONPATH") or str(REPOSITORY)  # the wheel, as `make bench-overhead` runs it
    return Command((place.python, "-m", "gateway", "serve", str(config)), {"PYTHONPATH": built}, place.scratch)


def added_command(command: str) -> Recipe:
    """A gateway given on the command line; {port} {urls} {urls_sp} {ports} {tmp} are filled in."""

    def recipe(place: Place) -> Command:
        ports = ",".join(map(str, BACKEND_PORTS))
        return Command(
            tuple(
                shlex.split(
                    command.format(port=GATEWAY_PORT, urls=urls(","), urls_sp=urls(" "), ports=ports, tmp=place.scratch)
                )
            )
        )

    return recipe


PEERS: Mapping[str, Recipe] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "vllm-router": rust_router("v_vr", "vllm_router.launch_router"),
    "sglang-router": rust_router("v_sr", "sglang_router.launch_router"),
    "smg": rust_router("v_smg", "smg", "launch"),
    "leeway": leeway,
    "leeway-default": leeway_default,
}
QUICK = ("vllm-router", "smg", "leeway")
