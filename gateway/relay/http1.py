"""What both directions of HTTP/1.1 share: the error, the limits, which fields cross a hop, the chunked coding. Pure."""

from typing import Protocol

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)


class ProtocolError(Exception):
    """A peer broke the protocol; `status` is what a client is told, and the connection closes after it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HeadLimits(Protocol):
    """The part of config.Limits that bounds a head."""

    @property
    def head_bytes(self) -> int: ...
    @property
    def headers(self) -> int: ...
    @property
    def url_bytes(self) -> int: ...


def forwardable(headers: Headers, values: dict[bytes, bytes], drop: frozenset[bytes]) -> Headers:
    """The header fields that cross to the next hop: no hop-by-hop ones, none that Connection names, none in `drop`.

    Names with an underscore are dropped too: some servers read `content_length` as Content-Length.
    """
    if b"connection" in values:
        named = b",".join(value for name, value in headers if name == b"connection")
        if named.lower() not in (b"keep-alive", b"close"):
            drop = drop | {token.strip().lower() for token in named.split(b",")}
    return [(name, value) for name, value in headers if name not in drop and b"_" not in name]


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding; `data` is not empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
