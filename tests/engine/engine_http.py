"""Plain HTTP for the engine tests: raw bytes as they came, streams that can be left midway, an engine's counters.

Blocking on purpose: a test that leaves a stream must own the socket. Waiting is for a condition, with a deadline.
"""

import http.client
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

Json = dict[str, object]
# Far above what anything takes that is under way, where several engines share a core with everything else, too: only a hang
# lasts so long. Below the gateway's own limits.
SURELY_S = 120.0
# A plain answer of many tokens is silent until its end.
STREAM_TIMEOUT_S = 280.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: the gateway (with a client key) or an engine itself (without)."""

    url: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `broken`: the connection ended before the body did."""

    status: int
    headers: dict[str, str]
    body: bytes
    broken: bool = False

    def json(self) -> Json:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict), self.body[:200]
        return parsed

    def events(self) -> list[bytes]:
        """The server-sent events, each without its blank line."""
        return [event for event in self.body.split(b"\n\n") if event.strip()]


def _connect(
    target: Target, method: str, path: str, body: Json | None, timeout_s: float, more: dict[str, str] | None = None
) -> http.client.HTTPConnection:
    where = urlsplit(target.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)
    headers = {"content-type": "application/json", **(more or {})}
    if target.key:
        headers["authorization"] = f"Bearer {target.key}"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    return connection


def ask(target: Target, method: str, path: str, body: Json | None = None) -> Answer:
    """One request and its whole answer."""
    connection = _connect(target, method, path, body, SURELY_S)
    try:
        return read_answer(connection.getresponse())
    finally:
        connection.close()


def read_answer(response: http.client.HTTPResponse, on_piece: Callable[[bytes], None] = lambda _: None) -> Answer:
    """Read to the end, or to where the connection broke. `on_piece` is given each piece of the body."""
    pieces, broken = [], False
    try:
        while piece := response.read1(65536):
            pieces.append(piece)
            on_piece(piece)
    except (http.client.IncompleteRead, ConnectionError):
        broken = True
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, b"".join(pieces), broken)


@contextmanager
def half_done(
    target: Target, path: str, body: Json, headers: dict[str, str] | None = None, timeout_s: float = STREAM_TIMEOUT_S
) -> Iterator[http.client.HTTPConnection]:
    """A request that is sent but not answered yet; leaving the block closes its socket, as a vanished client does."""
    connection = _connect(target, "POST", path, body, timeout_s, headers)
    try:
        yield connection
    finally:
        connection.close()


class Stream(threading.Thread):
    """A request read in the background, streamed or not. `first` is set at the first piece of the body, `first_s` is when that
    was; silence may last `timeout_s`; `on_piece` is given each piece, in this thread."""

    def __init__(
        self,
        target: Target,
        path: str,
        body: Json,
        headers: dict[str, str] | None = None,
        timeout_s: float = STREAM_TIMEOUT_S,
        on_piece: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        super().__init__(daemon=True)
        self._on_piece = on_piece
        self._request = (target, path, body, headers, timeout_s)
        self._timeout_s = timeout_s
        self.first = threading.Event()
        self.first_s = math.inf
        self._answer: Answer | None = None
        self._failure: OSError | http.client.HTTPException | None = None
        self.start()

    def run(self) -> None:
        try:
            with half_done(*self._request) as connection:
                self._answer = read_answer(connection.getresponse(), self._came)
        except (OSError, http.client.HTTPException) as error:
            self._failure = error

    def _came(self, piece: bytes) -> None:
        self.first_s = min(self.first_s, time.monotonic())
        self.first.set()
        self._on_piece(piece)

    def result(self) -> Answer:
        """Wait for the end. Fails the test if no answer came at all."""
        self.join(self._timeout_s)
        assert not self.is_alive(), f"the stream did not end within {self._timeout_s} s"
        assert self._answer is not None, f"no answer: {self._failure!r}"
        return self._answer


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> float:
    """Poll until `condition` holds; seconds that it took. Fails the test after `deadline_s`."""
    began_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() - began_s < deadline_s, f"{what}: not within {deadline_s} s"
        pause.wait(0.02)
    return time.monotonic() - began_s


def counter(target: Target | str, *names: str) -> float:
    """The sum of metrics over their labels, from one Prometheus page of a target, or of a URL."""
    page = ask(Target(target) if isinstance(target, str) else target, "GET", "/metrics").body.decode()
    heads = tuple(name + end for name in names for end in "{ ")
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(heads))


def without_ids(body: bytes) -> bytes:
    """The body with what differs from run to run (ids and times of making) made equal."""
    body = re.sub(
        rb'"(id|item_id)":"(chatcmpl|cmpl|resp|msg|embd|chatcmpl-tool|call)[-_][^"]*"',
        rb'"\1":"-"',
        body,
    )
    body = re.sub(rb'"id":"[0-9a-f]{32}"', b'"id":"-"', body)
    return re.sub(rb'"(created|created_at)":\d+', rb'"\1":0', body)
