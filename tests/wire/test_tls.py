"""TLS on both hops: the data listener with a certificate of its own, a backend at an https URL, verified."""

import asyncio
import json
import os
import ssl
from pathlib import Path

import httpx2 as httpx
import pytest
import trustme

from gateway.app import App
from gateway.config import Admin, BackendSpec, GatewayConfig, Listen, ModelSpec
from tests.wire.served import served

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = b'{"id":"x","object":"chat.completion","model":"m","choices":[]}'
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
LIMIT_S = 60.0


async def _backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request with one small JSON."""
    while head := await _head(reader):
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        await reader.readexactly(length)
        said = MODELS if head.startswith(b"GET") else ANSWER
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
    writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    return context


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """A CA that this process trusts."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


def _config(folder: Path, certificate: trustme.LeafCert, backend: str) -> GatewayConfig:
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "gateway.pem")
    return GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0", tls_cert_file=str(folder / "gateway.pem")),
        backends=(BackendSpec("a", backend, engine="openai", models=("m",)),),
        models=(ModelSpec("*"),),
        admin=Admin(key="k"),
    )


def _run(folder: Path, authority: trustme.CA, backend_name: str) -> tuple[int, bytes]:
    """(status, body) of one request through TLS on both hops; the backend's certificate is for `backend_name`."""

    async def work() -> tuple[int, bytes]:
        server = await asyncio.start_server(_backend, "127.0.0.1", 0, ssl=_context(authority.issue_cert(backend_name)))
        port = server.sockets[0].getsockname()[1]
        config = _config(folder, authority.issue_cert("127.0.0.1"), f"https://127.0.0.1:{port}")
        app = App(config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await app.start()
        async with httpx.AsyncClient(verify=ssl.create_default_context()) as client, asyncio.timeout(LIMIT_S):
            replica = app.plane.fleet.get("a")
            assert replica is not None
            while replica.state == "starting":
                await asyncio.sleep(0)
            for _ in range(3):  # the second and third on pooled connections
                answer = await client.post(f"https://127.0.0.1:{app.plane.port}/v1/chat/completions", json=BODY)
        await app.close()
        server.close()
        return answer.status_code, answer.content

    return asyncio.run(work())


def test_both_hops_encrypted(tmp_path: Path, authority: trustme.CA) -> None:
    assert _run(tmp_path, authority, "127.0.0.1") == (200, ANSWER)


def test_a_renewed_certificate_is_used_after_a_reload(tmp_path: Path, authority: trustme.CA) -> None:
    """A reload reads the files again: new connections see the new certificate; with a broken file they see the old one."""

    async def shown(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        assert isinstance(found, bytes)
        return found

    async def work() -> None:
        config = _config(tmp_path, authority.issue_cert("127.0.0.1"), "http://127.0.0.1:1")
        app = App(config, lambda: config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await app.start()
        before = await shown(app.plane.port)
        _config(tmp_path, authority.issue_cert("127.0.0.1"), "http://127.0.0.1:1")
        assert await shown(app.plane.port) == before
        await app.operations.reload()
        after = await shown(app.plane.port)
        assert after != before
        stranger = authority.issue_cert("127.0.0.1")
        (tmp_path / "gateway.pem").write_bytes(stranger.cert_chain_pems[0].bytes())
        await app.operations.reload()
        assert await shown(app.plane.port) == after
        await app.close()

    asyncio.run(work())


@pytest.mark.parametrize(("name", "status"), [("127.0.0.1", 200), ("elsewhere.example", 404)])
def test_a_serving_process_checks_a_backend_s_certificate_itself(
    tmp_path: Path, authority: trustme.CA, name: str, status: int
) -> None:
    """It keeps aiohttp from reading the trust store at its import: what it asks by aiohttp is verified all the same."""

    async def work() -> tuple[int, str]:
        server = await asyncio.start_server(_backend, "127.0.0.1", 0, ssl=_context(authority.issue_cert(name)))
        port = server.sockets[0].getsockname()[1]
        table = f'[[backends]]\nname = "a"\nurl = "https://127.0.0.1:{port}"\nengine = "openai"\n'
        async with served(tmp_path, table) as gateway, asyncio.timeout(LIMIT_S):
            while (seen := json.loads((await gateway.admin("GET", "/admin/backends/a")).body))["state"] == "starting":
                await asyncio.sleep(0)
            answered = (await gateway.ask(BODY)).status
        server.close()
        return answered, str(seen)

    answered, seen = asyncio.run(work())
    assert answered == status, seen


def test_a_backend_with_a_wrong_certificate_is_not_used(tmp_path: Path, authority: trustme.CA) -> None:
    status, body = _run(tmp_path, authority, "elsewhere.example")
    assert status == 503
    assert ANSWER not in body
