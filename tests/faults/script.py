"""What the fault backend writes for one request: a pure function of the wish in its body, its id and its run. Pure.

The backend plays a script; the checker computes the same script again and compares bytes. Events are numbered, texts
hold characters of one to four bytes. A wish travels in the body as member `x_fault`, which a gateway relays unchanged.
"""

import gzip
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

Do = Literal[
    "none", "rst", "fin", "end", "hang", "garbage", "extra", "long", "short", "flood", "no_done", "no_finish",
    "error_first", "idle_close",
]  # fmt: skip
At = Literal["", "headers", "body", "event", "mid", "terminal", "byte"]
Framing = Literal["length", "chunked", "close"]
Ending = Literal["keep", "fin", "rst", "hang", "idle_close"]

LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
INFORMATIONAL = b"HTTP/1.1 100 Continue\r\n\r\n"
GARBAGE = bytes((0xFF, 0x00, 0xC3, 0x28, 0x7F, 0x21)) * 32  # no line end, no hex digit, no UTF-8
EXTRA = b"!!extra!!"
PROMPT_TOKENS = 7
_ALPHABET = "abc\u00e9\u00fc \ud55c\uae00 \U0001f600 xyz. "  # one to four bytes a character
_PART_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of the fault backend: `do` it `at` a place (`k` = number of the event or byte, or a count)."""

    do: Do = "none"
    at: At = ""
    k: int = 0
    events: int = 3
    text: int = 24
    framing: Framing = "length"
    slice: int = 0
    status: int = 200
    retry_after: int = 0
    gzip: bool = False
    pace_ms: float = 0.0

    def json(self) -> dict[str, Any]:
        """The members that differ from the defaults."""
        return {f.name: getattr(self, f.name) for f in _FIELDS if getattr(self, f.name) != f.default}


_FIELDS = fields(Wish)
GOOD = Wish()
_WHOLE_CHUNKS: tuple[Do, ...] = ("long", "short", "extra", "flood")


@dataclass(frozen=True, slots=True)
class Script:
    """`pieces` are written one by one, then comes `ending`. `app` is what a reader of the HTTP framing gets of it."""

    pieces: tuple[bytes, ...]
    ending: Ending
    app: bytes
    status: int
    events: int


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@lru_cache(maxsize=4096)
def text(length: int) -> bytes:
    """`length` characters, as they stand inside a JSON string."""
    return (_ALPHABET * (length // len(_ALPHABET) + 1))[:length].encode()


def event(request_id: bytes, number: int, length: int) -> bytes:
    """Content event `number` (from 0)."""
    return (
        b'data: {"id":"%b","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"%d|%b"},'
        b'"finish_reason":null}]}\n\n' % (request_id, number, text(length))
    )


def stream_parts(wish: Wish, request_id: bytes, usage: bool) -> list[bytes]:
    """All events, each with its blank line: content, finish, usage if asked for, terminal."""
    if wish.do == "error_first":
        return [b'data: {"error":{"message":"%b","type":"server_error","code":"engine"}}\n\n' % request_id, DONE]
    parts = [event(request_id, i, wish.text) for i in range(wish.events)]
    if wish.do == "no_finish":
        return parts
    parts.append(
        b'data: {"id":"%b","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},'
        b'"finish_reason":"stop"}]}\n\n' % request_id
    )
    if usage:
        parts.append(
            b'data: {"id":"%b","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":%d,'
            b'"completion_tokens":%d}}\n\n' % (request_id, PROMPT_TOKENS, wish.events)
        )
    if wish.do != "no_done":
        parts.append(DONE)
    return parts


def plain_body(wish: Wish, request_id: bytes) -> bytes:
    """The JSON of an answer that is no stream."""
    if wish.status >= 300:
        return b'{"error":{"message":"%b","type":"fault","code":%d}}' % (request_id, wish.status)
    whole = (
        b'{"id":"%b","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"%b"},'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}'
        % (request_id, text(wish.text), PROMPT_TOKENS, wish.events)
    )
    return gzip.compress(whole, 1, mtime=0) if wish.gzip else whole


def script(wish: Wish, request_id: bytes, stream: bool, usage: bool, run: bytes = b"-") -> Script:
    """The whole plan of one answer. `usage`: the backend was asked for a usage chunk; `run` names the run in a header."""
    sse = stream and wish.status == 200
    if sse:
        parts = stream_parts(wish, request_id, usage)
    else:
        body = plain_body(wish, request_id)
        parts = [body[i : i + _PART_BYTES] for i in range(0, len(body), _PART_BYTES)]
    framing: Framing = "chunked" if sse and wish.framing == "length" else wish.framing
    size = sum(map(len, parts))
    declared = size + 64 if wish.do == "long" and not wish.at else size // 2 if wish.do == "short" and not wish.at else size
    head = _head(wish, run, sse, framing, declared)
    if wish.slice:
        parts = [part[i : i + wish.slice] for part in parts for i in range(0, len(part), wish.slice)]
    wires = [chunk(part) for part in parts] if framing == "chunked" else parts
    events = len(parts) if sse and not wish.slice else 0
    if wish.at:
        return _broken(wish, head, parts, wires, events)
    tail = [LAST_CHUNK] if framing == "chunked" else []
    pieces, app = (head, *wires, *tail), b"".join(parts)
    if wish.do == "short" and framing == "length":
        app = app[:declared]
    if wish.do == "flood":
        pieces = (INFORMATIONAL * wish.k, *pieces)
    if wish.do == "extra":
        pieces = (*pieces[:-1], pieces[-1] + EXTRA)
    ending: Ending = "fin" if framing == "close" else "keep"
    if wish.do == "long" and framing == "length":
        ending = "hang" if wish.k else "fin"
    if wish.do == "idle_close":
        ending = "idle_close"
    return Script(pieces, ending, app, wish.status, events)


_REASON = {200: b"OK", 302: b"Found", 400: b"Bad Request", 429: b"Too Many Requests", 503: b"Service Unavailable"}


def _head(wish: Wish, run: bytes, sse: bool, framing: Framing, size: int) -> bytes:
    lines = [b"HTTP/1.1 %d %b" % (wish.status, _REASON.get(wish.status, b"Status")), b"x-run: " + run]
    lines.append(b"content-type: text/event-stream" if sse else b"content-type: application/json")
    if framing == "length":
        lines.append(b"content-length: %d" % size)
    elif framing == "chunked":
        lines.append(b"transfer-encoding: chunked")
    else:
        lines.append(b"connection: close")
    if wish.gzip and not sse:
        lines.append(b"content-encoding: gzip")
    if wish.retry_after:
        lines.append(b"retry-after: %d" % wish.retry_after)
    if 300 <= wish.status < 400:
        lines.append(b"location: http://127.0.0.1:1/")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _broken(wish: Wish, head: bytes, parts: list[bytes], wires: list[bytes], events: int) -> Script:
    """The answer up to the place where it breaks, and how it breaks."""
    pieces, app, whole = _cut(wish, head, parts, wires)
    rest = wires[whole:]
    after: tuple[bytes, ...] = ()
    ending: Ending = "hang"
    if wish.do == "rst":
        ending = "rst"
    elif wish.do == "fin":
        ending = "fin"
    elif wish.do == "end":
        after, ending = (LAST_CHUNK,), "keep"
    elif wish.do == "garbage":
        after = (GARBAGE,)
    elif wish.do == "extra":
        after = (EXTRA, *rest, LAST_CHUNK)
    elif wish.do == "flood":
        after = (INFORMATIONAL * wish.k, *rest, LAST_CHUNK)
    elif wish.do in ("long", "short"):
        wrong, swallowed = _wrong_chunk(wish, rest)
        after, ending, app = (wrong,), "fin", app + swallowed
    return Script((*pieces, *after), ending, app, wish.status, min(whole, events))


def _cut(wish: Wish, head: bytes, parts: list[bytes], wires: list[bytes]) -> tuple[list[bytes], bytes, int]:
    """(wire pieces, application bytes, whole parts) up to the place that `at` and `k` name."""
    if wish.at == "headers":
        return [], b"", 0
    if wish.at == "body":
        return [head], b"", 0
    if wish.at == "byte":
        wire = b"".join((head, *wires))
        return [wire[: min(wish.k, len(wire) - 1)]], b"".join(parts), 0  # only a bound: what the reader gets is a prefix
    if wish.at == "terminal":
        count = len(parts) - 1
    elif wish.at == "mid":
        count = min(max(0, wish.k - 1), len(parts) - 1)
    else:
        count = min(wish.k, len(parts))
    pieces, app = [head, *wires[:count]], b"".join(parts[:count])
    if (wish.at == "mid" or (wish.at == "terminal" and parts[-1] is not DONE)) and wish.do not in _WHOLE_CHUNKS:
        half = len(wires[count]) // 2 if wish.at == "mid" else len(wires[count]) - 3
        if wish.do == "end":  # the cut part is a whole chunk of its own
            half = len(parts[count]) // 2
            return [*pieces, chunk(parts[count][:half])], app + parts[count][:half], count
        pieces.append(wires[count][:half])
        skip = len(wires[count]) - len(parts[count])  # chunk framing before and behind
        skip = skip - 2 if skip else 0
        app += parts[count][: max(0, half - skip)]
    return pieces, app, count


def _wrong_chunk(wish: Wish, rest: list[bytes]) -> tuple[bytes, bytes]:
    """The next chunk with a size that is 5 too large or too small, and all that follows; what a reader takes for data."""
    size, _, data = b"".join((*rest, LAST_CHUNK)).partition(b"\r\n")
    wrong = int(size, 16) + (5 if wish.do == "long" else -5)
    return b"%x\r\n%b" % (wrong, data), data[:wrong]
