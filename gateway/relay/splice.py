"""Reading a few fields of a JSON body, and changing fewer, without re-serialising it. Pure.

Small bodies are parsed by orjson (a copy: the client's bytes go on); larger ones, and those that orjson refuses but
JSON allows (lone surrogates, huge integers), are scanned in slices so that the event loop is never held. Edits are
byte splices at the spans that the scan found: the model's name, the engine's priority, include_usage.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import orjson

Span = tuple[int, int]
Edit = tuple[int, int, bytes]  # what stands from one index to another is replaced
Piece = bytes | memoryview

WANTED = frozenset(
    ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of")
    + ("priority", "user", "session_id", "prompt_cache_key", "metadata", "previous_response_id")
    + ("vllm_xargs", "kv_transfer_params", "session_params", "rid")
)
PARTS = ("tools", "system", "instructions")  # of a prompt, beside its messages
_RARE = WANTED.union(PARTS) - {"model", "stream", "max_tokens"}
MAX_VALUE_BYTES = 65536
PARSER_DEPTH = 1024  # where orjson itself stops; a tighter bound needs the scan
_MAX_KEY_BYTES = 6 * max(map(len, WANTED))  # every character as \\uXXXX


class BodyError(ValueError):
    """The body is not one JSON object in UTF-8, or nests too deep; the message is for the client."""


ENGINE_MEMBERS = frozenset(("vllm_xargs", "kv_transfer_params", "session_id", "session_params", "rid"))
_NONE: frozenset[str] = frozenset()
NEVER = float("inf")
MANY = 1 << 31
_WORDS_ON = frozenset(("1", "on", "t", "true", "y", "yes"))


class BodyFields(NamedTuple):
    """What the gateway reads of a request body. Absent or odd values are their defaults: the engine judges them."""

    model: str = ""
    stream: bool = False
    max_tokens: int = -1
    n: int = 1
    priority: int | None = None
    session: str = ""
    asks_usage: bool = False
    has_stream_options: bool = False
    previous_response_id: str = ""
    parts: tuple[str, ...] = ()  # which of PARTS a body that was parsed has
    engine_members: frozenset[str] = _NONE  # which of ENGINE_MEMBERS the client has set itself
    agent_deadline_s: float = NEVER  # vllm_xargs.agentic_context.deadline_seconds


EMPTY = BodyFields()


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 512 else ""


def _count(value: object, default: int) -> int:
    return value if type(value) is int else default


def _on(value: object) -> bool:
    """Whether engines take that for true: pydantic, which vLLM and SGLang read bodies with, is not strict."""
    if value is True or value is False or value is None:
        return value is True
    return value == 1 or (isinstance(value, str) and value.lower() in _WORDS_ON)


def _many(value: object) -> int:
    """How many answers that asks for; 200.0 and "200" are 200 to engines, too."""
    if type(value) is int:
        return value
    if isinstance(value, float | str):
        with suppress(ValueError):
            number = float(value)
            return int(min(number, MANY)) if number >= 1 else 1
    return 1


def fields_of(parsed: dict[str, object]) -> BodyFields:
    """The fields from a parsed object (all of it, or its WANTED members)."""
    get = parsed.get
    if parsed.keys().isdisjoint(_RARE):  # most requests
        return BodyFields(_text(get("model")), _on(get("stream")), _count(get("max_tokens"), -1))
    options = get("stream_options")
    metadata = get("metadata")
    session = get("prompt_cache_key") or get("session_id") or (metadata.get("user_id") if isinstance(metadata, dict) else None)
    limit = get("max_completion_tokens") or get("max_tokens") or get("max_output_tokens")
    return BodyFields(
        model=_text(get("model")),
        stream=_on(get("stream")),
        max_tokens=_count(limit, -1),
        n=max(1, _many(get("n")), _many(get("best_of"))),
        priority=_count(get("priority"), 0) if "priority" in parsed else None,
        session=_text(session or get("user")),
        asks_usage=isinstance(options, dict) and _on(options.get("include_usage")),
        has_stream_options="stream_options" in parsed,
        previous_response_id=_text(get("previous_response_id")),
        parts=tuple([part for part in PARTS if part in parsed]),
        engine_members=ENGINE_MEMBERS.intersection(parsed),
        agent_deadline_s=_agent_deadline_s(get("vllm_xargs")),
    )


def _agent_deadline_s(xargs: object) -> float:
    """How long an agent's framework says that its step may take; infinite when it says nothing that can be meant."""
    context = xargs.get("agentic_context") if isinstance(xargs, dict) else None
    value = context.get("deadline_seconds") if isinstance(context, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 86400:
        return float(value)
    return NEVER


def parse_small(body: bytes) -> BodyFields | None:
    """Fields of a body small enough to parse at once; None where the scan must judge. Raises BodyError."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if type(parsed) is not dict:
        raise BodyError("the request body must be a JSON object")
    return fields_of(parsed)


_OPEN = {0x7B: 0x7D, 0x5B: 0x5D}
_SPACE = b" \t\r\n"
_TOP = re.compile(rb'["{}\[\],]').search
_DEEP = re.compile(rb'["{}\[\]]').search
_WINDOW = 65536
_WINDOW_COST = 1024  # one empty window takes about as long as so many tokens
_SLASHES = b"\\" * _WINDOW
_SLASHES_PER_TOKEN = 256


class Scan:
    """A resumable scan for the top-level members of a JSON object: `step` until it answers True, then read `spans`.

    It checks what routing needs (one object, balanced brackets of the right kind, terminated strings, depth), not the
    whole grammar: the engine answers 400 to the rest. White space may run to 64 KiB around the members that are read.
    Raises BodyError.
    """

    __slots__ = ("_at", "_behind_key", "_body", "_key", "_max_depth", "_members", "_stack", "_string_at", "spans")

    def __init__(self, body: bytes, max_depth: int) -> None:
        self._body = body
        self._max_depth = max_depth
        self._at = _spaces(body, 0, len(body))
        self._stack = bytearray()
        self._key = b""
        self._behind_key = -1
        self._string_at = -1
        self._members: dict[str, Span] = {}
        self.spans: dict[str, Span] = {}
        if body[self._at : self._at + 1] != b"{":
            raise BodyError("the request body must be a JSON object in UTF-8")

    def step(self, tokens: int) -> bool:
        """Look at up to `tokens` strings and brackets. True when the object is read whole."""
        body, stack = self._body, self._stack
        at = self._at
        while tokens > 0:
            tokens -= 1
            found = (_TOP if len(stack) < 2 else _DEEP)(body, at, at + _WINDOW)
            if found is None:
                at += _WINDOW
                tokens -= _WINDOW_COST
                if at >= len(body):
                    raise BodyError("the request body ends in the middle of its JSON object")
                continue
            at = found.start()
            mark = body[at]
            if mark == 0x22:
                end, tokens = _string_end(body, at, max(at, self._string_at), tokens + 1)
                if end < 0:
                    self._string_at = -end
                    break
                self._string_at = -1
                if len(stack) == 1 and self._behind_key < 0:
                    self._key = body[at + 1 : end - 1] if end - at - 2 <= _MAX_KEY_BYTES else b""
                    self._behind_key = end
                at = end
            elif mark == 0x7B or mark == 0x5B:
                stack.append(_OPEN[mark])
                if len(stack) > self._max_depth:
                    raise BodyError(f"the request body nests deeper than {self._max_depth} levels")
                at += 1
            elif mark == 0x2C:
                if len(stack) == 1:
                    self._close_member(at)
                at += 1
            else:
                if not stack or stack.pop() != mark:
                    raise BodyError("the request body has unbalanced brackets")
                at += 1
                if not stack:
                    self._close_member(at - 1)
                    self._finish(at)
                    return True
        self._at = at
        return False

    def _close_member(self, end: int) -> None:
        if self._behind_key < 0:
            return
        try:
            key = orjson.loads(b'"' + self._key + b'"')
        except orjson.JSONDecodeError:
            key = ""
        if key in WANTED:
            self._members[key] = (self._behind_key, end)
        self._behind_key = -1

    def _finish(self, at: int) -> None:
        if len(self._body) - at > _WINDOW or self._body[at:].strip(_SPACE):
            raise BodyError("the request body holds more than one JSON value")
        for key, (behind_key, end) in self._members.items():
            self.spans[key] = self._value(behind_key, end)

    def _value(self, behind_key: int, end: int) -> Span:
        body = self._body
        colon = behind_key + _spaces(body, behind_key, end)
        if body[colon : colon + 1] != b":":
            raise BodyError("a member of the request body has no value")
        start = colon + 1 + _spaces(body, colon + 1, end)
        tail = body[max(start, end - _WINDOW) : end]
        return start, end - (len(tail) - len(tail.rstrip(_SPACE)))

    def fields(self) -> BodyFields:
        """The fields, once `step` has answered True. Values over MAX_VALUE_BYTES count as odd ones."""
        parsed: dict[str, object] = dict.fromkeys(self.spans)
        for key, (start, end) in self.spans.items():
            if end - start <= MAX_VALUE_BYTES:
                with suppress(orjson.JSONDecodeError):
                    parsed[key] = orjson.loads(self._body[start:end])
        return fields_of(parsed)


def _spaces(body: bytes, start: int, end: int) -> int:
    """How many white-space bytes follow from `start`, up to `end`; at most a window of them."""
    window = body[start : min(end, start + _WINDOW)]
    return len(window) - len(window.lstrip(_SPACE))


def _string_end(body: bytes, opened: int, at: int, hops: int) -> tuple[int, int]:
    """Look for the closing quote of the string that opens at `opened`, on from `at`, over at most `hops` escaped ones.

    (index behind the quote, hops left), or (-index to go on from, 0).
    """
    while hops > 0:
        at = body.find(b'"', at + 1)
        if at < 0:
            raise BodyError("the request body ends inside a string")
        slashes = _slashes(body, opened, at) if body[at - 1] == 0x5C else 0
        hops -= 1 + slashes // _SLASHES_PER_TOKEN
        if slashes % 2 == 0:
            return at + 1, hops
    return -at, 0


def _slashes(body: bytes, opened: int, at: int) -> int:
    """How many backslashes stand directly before `at`. Takes time by their number, not by the string's."""
    count, size = 0, 64
    while True:
        window = body[max(opened + 1, at - count - size) : at - count]
        if window != _SLASHES[: len(window)]:
            return count + len(window) - len(window.rstrip(b"\\"))
        count += len(window)
        if len(window) < size:
            return count
        size = min(8 * size, _WINDOW)


def scan(body: bytes, max_depth: int) -> Scan:
    """A whole scan at once, for small bodies. Raises BodyError."""
    whole = Scan(body, max_depth)
    while not whole.step(65536):
        pass
    return whole


def edited(body: bytes, edits: Sequence[Edit]) -> tuple[Piece, ...]:
    """`body` with each edit's span replaced, as pieces to be written one after another: what is large is not copied."""
    large = len(body) > _WINDOW
    whole = memoryview(body) if large else body
    pieces: list[Piece] = []
    at = 0
    for start, end, value in sorted(edits, key=_start):
        pieces += (whole[at:start], value)
        at = end
    pieces.append(whole[at:])
    return tuple(pieces) if large else (b"".join(pieces),)


def _start(edit: Edit) -> int:
    return edit[0]


def member_edit(body: bytes, member: bytes) -> Edit:
    """`"key":value` put first into the object. The caller knows that the key is absent."""
    at = body.index(b"{") + 1
    first = at + _spaces(body, at, len(body))
    return at, at, member if body[first : first + 1] == b"}" else member + b","


def usage_edit(body: bytes, fields: BodyFields, max_depth: int, span: Span | None = None) -> Edit | None:
    """`stream_options.include_usage` becomes true; None where that member is nothing to write it into. `span` is the
    member's value, if known (a large body is not scanned twice)."""
    if not fields.has_stream_options:
        return member_edit(body, b'"stream_options":{"include_usage":true}')
    if span is None:
        span = scan(body, max_depth).spans["stream_options"]
    try:
        options = orjson.loads(body[span[0] : span[1]])
    except orjson.JSONDecodeError:
        return None
    if options is not None and not isinstance(options, dict):
        return None
    asking: dict[str, object] = {**(options or {}), "include_usage": True}
    if "continuous_usage_stats" in asking:
        asking["continuous_usage_stats"] = False  # without include_usage it did nothing; now each chunk would have a usage
    return *span, orjson.dumps(asking)


def model_edit(body: bytes, name: str, max_depth: int, span: Span | None = None) -> Edit:
    """The model's name is replaced (an alias by what the backend serves). `span` as in usage_edit."""
    if span is None:
        span = scan(body, max_depth).spans.get("model")
    member = orjson.dumps(name)
    return (*span, member) if span else member_edit(body, b'"model":' + member)


_BOUNDARY = re.compile(rb'boundary="?([^";,\s]{1,200})"?')
_FIELD_NAME = re.compile(rb'[;\s]name="?([A-Za-z0-9_]{1,64})"?')


def multipart_field(body: bytes, content_type: bytes, name: bytes) -> str:
    """The text of one small form field of a multipart body; "" where absent. Never copies the files."""
    start, end = multipart_span(body, content_type, name) or (0, 0)
    return body[start : min(end, start + 512)].decode(errors="replace")


def multipart_span(body: bytes, content_type: bytes, name: bytes) -> Span | None:
    """Where the content of one form field stands in a multipart body."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    mark = b"--" + found[1]
    at = body.find(mark)
    for _ in range(256):
        if at < 0:
            return None
        head_end = body.find(b"\r\n\r\n", at, at + 8192)
        if head_end < 0:
            return None
        following = body.find(b"\r\n" + mark, head_end)
        field = _FIELD_NAME.search(body, at, head_end)
        if field is not None and field[1] == name and following >= 0:
            return head_end + 4, following
        at = following
    return None
