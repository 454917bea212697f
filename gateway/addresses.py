"""What a backend's address may look like. Pure: nothing is resolved or fetched here."""

import re
from urllib.parse import urlsplit

ALLOWED_LOW_PORTS = (80, 443)
_NETLOC = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%[0-9A-Za-z]{1,32})?\])(?::[0-9]{1,5})?")
_ADDED = ("/v1", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/models")
KEY_CHARACTERS_MAX = 4096


def sendable_key(key: str) -> bool:
    """Whether a backend's key can go into a header: then it is nothing but a key."""
    return len(key) <= KEY_CHARACTERS_MAX and key.isascii() and " " not in key and (key.isprintable() or not key)


class AddressError(ValueError):
    """The URL can't be a backend's; the text says why."""


def check_url(url: str, guarded: bool) -> None:
    """Raises AddressError unless `url` is a plain http(s) base URL. `guarded`: for URLs that come by REST."""
    if any(c in url for c in "\\ \t\r\n#?") or not url.isascii() or not url.isprintable():
        raise AddressError("The URL holds characters that a base URL cannot have.")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise AddressError("The URL's host or port is malformed.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise AddressError("The URL must be http://host[:port] or https://host[:port].")
    if parts.username is not None or parts.password is not None:
        raise AddressError("Credentials do not belong in the URL; use api_key.")
    if parts.path.rstrip("/").endswith(_ADDED):
        raise AddressError("The URL must be the base URL, without /v1: the gateway adds it.")
    if not _NETLOC.fullmatch(parts.netloc) or port == 0:
        raise AddressError("The URL's host or port is malformed.")
    if guarded and port is not None:
        _check_port(port)


def check_publisher(endpoint: str) -> str:
    """The host of a publisher's endpoint that came by REST. Raises AddressError unless that is tcp://HOST:PORT: a path of
    this machine is nothing that may come over the network."""
    kind, _, place = endpoint.partition("://")
    host, _, port = place.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal() or not _NETLOC.fullmatch(place) or not 0 < int(port) < 65536:
        raise AddressError("The endpoint must be tcp://HOST:PORT.")
    _check_port(int(port))
    return host.strip("[]").lower()


def _check_port(port: int) -> None:
    if port < 1024 and port not in ALLOWED_LOW_PORTS:
        raise AddressError("Ports below 1024 are not allowed, but for 80 and 443.")
