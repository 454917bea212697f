"""What a backend's address may look like; nothing is resolved."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.addresses import KEY_CHARACTERS_MAX, AddressError, check_publisher, check_url, sendable_key


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000",
        "http://127.0.0.1:8000/",
        "https://engine.example",
        "http://engine_1.svc.cluster.local:8000/base/path",
        "http://[::1]:8000",
        "https://[2001:db8::1]/v0",
        "http://[fe80::1%251]:8000",  # judged as an address: operations.py
        "HTTP://HOST:8000",
        "http://host:80",
        "http://host:443",
        "http://host:65535",
        "http://169.254.169.254/",  # judged when its address is known: operations.py, pool.py
    ],
)
def test_base_urls(url: str) -> None:
    check_url(url, guarded=False)
    check_url(url, guarded=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "//localhost:8000",
        "/v1",
        "http://",
        "http:///v1",
        "http://:8000",
        "file:///etc/passwd",
        "ftp://host/",
        "gopher://host:70/",
        "javascript:alert(1)",
        "unix:/run/engine.sock",
        "http://user@host/",
        "http://user:secret@host/",
        "http://@host/",
        "http://a\\@b/",
        "http://a\\b/",
        "http://host/?q=1",
        "http://host/#frag",
        "http://host /",
        " http://host",
        "http://host\n",
        "http://host\r\nX-Injected: 1",
        "http://ho\tst/",
        "http://host\0/",
        "http://host\x7f/",
        "http://hôst/",
        "http://host:port/",
        "http://host:99999/",
        "http://host:-1/",
        "http://[::1/",
        "http://::1]/",
        "http://[not-an-address]/",
        "http://[::1]x/",
        "http://host:0",
        "http://host:8000/v1",
        "http://host:8000/v1/chat/completions",
        "http://host:8000/v1/completions/",
        "http://host:8000/openai/v1/",
    ],
)
def test_what_is_no_base_url(url: str) -> None:
    for guarded in (False, True):
        with pytest.raises(AddressError) as caught:
            check_url(url, guarded)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("port", [1, 2, 22, 25, 79, 81, 442, 444, 1023])
def test_low_ports_are_for_the_file_only(port: int) -> None:
    check_url(f"http://host:{port}", guarded=False)
    with pytest.raises(AddressError, match="below 1024"):
        check_url(f"http://host:{port}", guarded=True)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30) | st.text("htps:/[]@.%\\0159 \n?#", max_size=30).map(lambda tail: "http://" + tail))
@example("HTTP://0/@")
def test_no_text_raises_anything_else(url: str) -> None:
    try:
        check_url(url, guarded=True)
    except AddressError:
        return
    assert url.lower().startswith(("http://", "https://"))
    assert not set(url) & set("\\ \t\r\n#?")
    assert "@" not in url.split("/")[2]  # in a path it is no credential


@pytest.mark.parametrize(
    ("key", "sendable"),
    [
        ("", True),
        ("sk-abc_DEF.123=", True),
        ("a" * KEY_CHARACTERS_MAX, True),
        ("a" * (KEY_CHARACTERS_MAX + 1), False),
        ("a b", False),
        ("a\r\nX-Injected: 1", False),
        ("a\t", False),
        ("a\0", False),
        ("é", False),
    ],
)
def test_a_key_must_be_fit_for_a_header(key: str, sendable: bool) -> None:
    assert sendable_key(key) is sendable


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("tcp://gpu1:5557", "gpu1"),
        ("tcp://10.0.0.7:5557", "10.0.0.7"),
        ("tcp://[fe80::1]:5557", "fe80::1"),
        ("tcp://0X7F.0.0.1:5557", "0x7f.0.0.1"),
        ("tcp://host:443", "host"),
    ],
)
def test_publishers(endpoint: str, host: str) -> None:
    assert check_publisher(endpoint) == host


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://",
        "tcp://:5557",
        "tcp://host",
        "tcp://host:",
        "tcp://host:0",
        "tcp://host:22",
        "tcp://host:65536",
        "tcp://host:\u0665",
        "tcp://*:5557",
        "tcp://[::1]",
        "tcp://user@host:5557",
        "tcp://host:5557/x",
        "tcp://ho st:5557",
        "tcp://host:5557\n",
        "ipc:///run/kv",
        "http://host:5557",
        "host:5557",
    ],
)
def test_what_is_no_publisher_for_the_network(endpoint: str) -> None:
    with pytest.raises(AddressError):
        check_publisher(endpoint)
