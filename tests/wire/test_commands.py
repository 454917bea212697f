"""The commands as a user runs them: check, schema, serve's errors, mock, demo, backends."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools.programs import free_port

LIMIT_S = 180.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("LEEWAY_")}


def gateway(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env={**ENVIRONMENT, **environment}, check=False
    )


@contextmanager
def running(*arguments: str, until: str, **environment: str) -> Iterator[str]:
    """A command in the background; gives what it said up to the line that holds `until`, and ends it with SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gateway", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**ENVIRONMENT, **environment},
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if until in line:
                break
        assert until in said, said
        yield said
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)


def test_check_prints_the_effective_settings_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_text('[[backends]]\nname = "a"\nurl = "http://127.0.0.1:8000"\napi_key = "very-secret"\n')
    done = gateway("check", str(path), LEEWAY_QUEUE__SIZE="77", LEEWAY_ADMIN_KEY="also-secret")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["queue"]["size"] == 77
    assert "secret" not in done.stdout


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_bad_file_is_explained_with_file_key_and_reason(tmp_path: Path, command: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('[[backends]]\nname = "a"\nwieght = 2\nurl = "ftp://x"\n[queue]\nsize = -1\n')
    done = gateway(command, str(path))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    for key in ("backends.0.wieght", "backends.0.url", "queue.size"):
        assert any(key in line for line in lines), lines
    assert "Traceback" not in done.stderr


def test_a_missing_file_and_a_taken_port(tmp_path: Path) -> None:
    missing = gateway("serve", str(tmp_path / "none.toml"))
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = tmp_path / "g.toml"
        path.write_text(f'[listen]\ndata = "127.0.0.1:{taken.getsockname()[1]}"\ncontrol = "127.0.0.1:0"\n')
        done = gateway("serve", str(path))
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    listen = '[listen]\ndata = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
    path.write_text(f'{listen}[admin]\nkey_file = "{tmp_path}/none/key"\n')
    done = gateway("serve", str(path))
    assert done.returncode == 1
    assert done.stderr == f"{path}: {tmp_path}/none/key: No such file or directory\n"


def test_schema_is_json_and_names_every_section() -> None:
    schema = json.loads(gateway("schema").stdout)
    assert {"listen", "backends", "models", "keys", "limits"} <= set(schema["properties"])


def test_help_names_the_commands() -> None:
    said = gateway("--help").stdout
    for command in ("serve", "check", "schema", "demo", "mock", "backends", "plan"):
        assert command in said


def test_mock_says_where_it_listens_and_answers() -> None:
    port = free_port()
    with running("mock", "--port", str(port), "--model", "x", "--speed", "instant", until="http://") as said:
        assert f"http://127.0.0.1:{port}" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=LIMIT_S) as answer:
            assert json.load(answer)["data"][0]["id"] == "x"


def test_the_demo_prints_a_curl_line_that_streams_an_answer() -> None:
    data, control = free_port(), free_port()
    with running("demo", "--data", f"127.0.0.1:{data}", "--control", f"127.0.0.1:{control}", until="Ctrl-C") as said:
        found = re.search(r"curl -N (\S+) .*-d '(\{.*\})'", said)
        assert found is not None, said
        request = urllib.request.Request(found[1], found[2].encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            events = answer.read().split(b"\n\n")
        assert events[-2] == b"data: [DONE]"
        assert len(events) > 10
        key = re.search(r"Bearer (\S+)'", said)
        assert key is not None
        end_s = time.monotonic() + LIMIT_S
        while True:  # all three have been probed
            listed = gateway("backends", "--control", f"127.0.0.1:{control}", LEEWAY_ADMIN_KEY=key[1], COLUMNS="200")
            assert listed.returncode == 0, listed.stderr
            if all(re.search(rf"{name} .*vllm", listed.stdout) for name in ("sim-a", "sim-b", "sim-c")):
                break  # the engine that was found, not what was configured
            assert time.monotonic() < end_s, listed.stdout
        refused = gateway("backends", "--control", f"http://127.0.0.1:{control}", "--admin-key", "wrong")
        assert refused.returncode == 1
        assert "401" in refused.stderr


def test_the_demo_of_swaps_does_what_it_prints() -> None:
    data, control = free_port(), free_port()
    where = ("--data", f"127.0.0.1:{data}", "--control", f"127.0.0.1:{control}")
    with running("demo", "--swaps", *where, until="Ctrl-C") as said:
        look = re.search(r"gateway (plan .*)", said)
        assert look is not None, said
        before = gateway(*look[1].split())
        assert before.returncode == 0, before.stderr
        assert "tiny (6 GB), writer (16 GB)" in before.stdout
        assert "Nothing is to be moved." in before.stdout
        asked = re.search(r"curl -N (\S+) -H '([\w-]+): (\w+)' .*-d '(\{.*\})'", said)
        assert asked is not None, said
        headers = {"content-type": "application/json", asked[2]: asked[3]}
        request = urllib.request.Request(asked[1], asked[4].encode(), headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            events = answer.read().split(b"\n\n")
        assert b"expected_start_ms" in events[0]
        assert events[-2] == b"data: [DONE]"
        after = json.loads(gateway(*look[1].split(), "--json").stdout)
        assert [(step["model"], step["outcome"]) for step in after["history"]] == [("coder", "done")]
        assert {model["model"]: model["expected_start_s"] == 0 for model in after["models"]}["coder"]
    refused = gateway(*look[1].split())
    assert refused.returncode == 1
    assert f"127.0.0.1:{control} cannot be asked: Connection refused. --control names" in refused.stderr


def test_the_admin_key_goes_to_no_proxy_of_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        control = f"http://127.0.0.1:{free_port()}"
        asked = gateway("backends", "--control", control, http_proxy=url, HTTP_PROXY=url, all_proxy=url)
        assert "cannot be asked: Connection refused" in asked.stderr
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_serve_with_a_key_file_keeps_the_key_it_made(tmp_path: Path) -> None:
    sha = hashlib.sha256(b"client-key").hexdigest()
    path, key_file = tmp_path / "g.toml", tmp_path / "admin.key"
    path.write_text(
        f'[listen]\ndata = "127.0.0.1:{free_port()}"\ncontrol = "127.0.0.1:{free_port()}"\n'
        f'[admin]\nkey_file = "{key_file}"\n[[keys]]\nsha256 = "{sha}"\n'
    )
    with running("serve", str(path), until="admin key") as said:
        assert key_file.read_text().strip() in said
        assert key_file.stat().st_mode & 0o777 == 0o600
    with running("serve", str(path), until="listening") as said:
        assert "admin key" not in said
