"""The shipped nginx snippet in front of the gateway: stock buffering, streams at once all the same (case 1.6)."""

import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tools import front
from tests.tools.programs import comes_up, find, free_port, listening, running
from tests.wire.kit import Rig, run

MAIN = """
daemon off;
user {user};
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/leeway.conf;
}}
"""


STOCK = {
    "version": ("proxy_http_version 1.1;", ""),
    "connection": ('proxy_set_header Connection "";', ""),
    "kept": ("keepalive 64;", ""),
    "kept for": ("keepalive_timeout 60s;", ""),
}
IGNORING = {"location": ("location / {", "location / { proxy_ignore_headers X-Accel-Buffering;")}


def nginx(folder: Path, changes: dict[str, tuple[str, str]] | None = None) -> front.Front:
    """nginx with the snippet, changed as told."""

    @asynccontextmanager
    async def start(rig: Rig) -> AsyncIterator[int]:
        port = free_port()
        snippet = front.rendered(
            "nginx.conf",
            gateway=("server 127.0.0.1:8080;", f"server 127.0.0.1:{rig.app.plane.port};"),
            listener=("listen 80;", f"listen 127.0.0.1:{port};"),
            **(changes or {}),
        )
        (folder / "leeway.conf").write_text(snippet)
        main = folder / "nginx.conf"
        main.write_text(MAIN.format(folder=folder, user=pwd.getpwuid(os.geteuid()).pw_name))
        command = (find("nginx"), "-c", str(main), "-p", str(folder), "-e", str(folder / "nginx.log"))
        async with running(command, folder / "nginx-output.log") as program:
            await comes_up(program, lambda: listening(port))
            yield port

    return start


@pytest.mark.parametrize("changes", [{}, STOCK], ids=["as shipped", "stock, over HTTP/1.0"])
def test_events_pass_at_once_with_default_buffering(tmp_path: Path, changes: dict[str, tuple[str, str]]) -> None:
    """1.6, with the snippet and with nothing but proxy_pass."""
    run(front.streams_at_once(nginx(tmp_path, changes)))


def test_without_our_header_nginx_holds_the_stream(tmp_path: Path) -> None:
    """The control: buffering is on indeed, and only the gateway's X-Accel-Buffering keeps it from streams."""

    async def case(rig: Rig) -> None:
        async with nginx(tmp_path, STOCK | IGNORING)(rig) as port:
            _, held = await front.lags_s(rig, port)
            assert held

    run(case)


@pytest.mark.parametrize("case", [front.answers_whole, front.keeps_connections])
def test_requests(tmp_path: Path, case: front.Check) -> None:
    run(case(nginx(tmp_path)))


@pytest.mark.parametrize("phase", ["first byte", "stream"])
def test_a_leaving_client_reaches_the_backend(tmp_path: Path, phase: str) -> None:
    run(front.leaving_is_told(nginx(tmp_path), phase))
