"""Server-sent events as the relay sees them: where events end, and what a stream has shown so far. Sans-io.

Bytes go on unchanged. `EventFramer` passes on up to the last complete event and holds an unfinished tail (to a bound,
then raw), so that an error event of ours can only ever follow a whole event. `StreamWatch` looks for the few marks
that accounting needs by byte search; it parses JSON only in events that carry a usage object.
"""

import re
from itertools import pairwise
from typing import Literal

import orjson

Face = Literal["openai", "responses", "anthropic", "other"]

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_CUT_OFF = re.compile(rb'"finish_reason"\s*:\s*"length"')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_RESPONSES_END = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed|cancelled)"')
_MESSAGES_END = re.compile(rb'"type"\s*:\s*"message_stop"')
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
_ERROR_EVENT = re.compile(rb'(?:^|[\r\n])(?:event: ?error|data: ?\{\s*"error"\s*:)')
_EVENT_END = re.compile(rb"\n\n|\n\r\n|\r\r")
_DATA_LINE = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})(?!\d)')
_OUTPUT_TOKENS = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})(?!\d)')

_FRAMING_MAX = 24  # a chunk's size line and the field's name
_LESSONS_MAX = 8


def _last_end(data: bytes | bytearray, start: int) -> int:
    """Index just behind the last blank line that ends in data[start:], or -1."""
    unix = data.rfind(b"\n\n", start)
    crlf = data.rfind(b"\n\r\n", start)
    old = data.rfind(b"\r\r", start)
    return max(unix + 2 if unix >= 0 else -1, crlf + 3 if crlf >= 0 else -1, old + 2 if old >= 0 else -1)


class EventFramer:
    """Splits a byte stream behind its last complete event; never changes or reorders a byte."""

    __slots__ = ("_held", "_hold_bytes", "broken")

    def __init__(self, hold_bytes: int) -> None:
        self._hold_bytes = hold_bytes
        self._held = bytearray()
        self.broken = False  # part of an unfinished event is already out

    @property
    def between_events(self) -> bool:
        """Nothing is held and nothing unfinished is out."""
        return not self._held and not self.broken

    def feed(self, data: bytes) -> bytes:
        """What may go on now; the rest is held."""
        if not self._held and not self.broken and data.endswith(b"\n\n"):
            return data
        held = self._held
        scan_from = max(0, len(held) - 3)
        held += data
        end = _last_end(held, scan_from)
        if end < 0:
            if len(held) <= self._hold_bytes and not self.broken:
                return b""
            end = len(held)
            self.broken = True
        else:
            self.broken = len(held) - end > self._hold_bytes
            if self.broken:
                end = len(held)
        out = bytes(held[:end])
        del held[:end]
        return out

    def rest(self) -> bytes:
        """The held tail, given up: the backend has ended."""
        out = bytes(self._held)
        self._held.clear()
        return out


def find_tokens(data: bytes) -> tuple[int, int]:
    """(prompt, output) tokens that the usage objects in `data` name, each the last figure said; -1 where none is."""
    prompt = output = -1
    if data.count(b'"usage"') < 2:
        found = _USAGE.search(data)
        if found is None:
            return -1, -1
        first, second = _PROMPT_TOKENS.search(data, found.start()), _OUTPUT_TOKENS.search(data, found.start())
        return int(first[1]) if first else -1, int(second[1]) if second else -1
    starts = [found.start() for found in _USAGE.finditer(data)]
    for start, end in pairwise((*starts, len(data))):
        if found := _PROMPT_TOKENS.search(data, start, end):
            prompt = int(found[1])
        if found := _OUTPUT_TOKENS.search(data, start, end):
            output = int(found[1])
    return prompt, output


def cut_off(data: bytes) -> bool:
    """Whether an answer's end says that a limit ended it."""
    return data.find(b'"length"') >= 0 and _CUT_OFF.search(data) is not None


class StreamWatch:
    """What a stream has shown: events, terminal, error, token counts. `strip_usage` removes the usage-only chunk that
    the gateway asked for and the client did not."""

    __slots__ = (
        "_before",
        "_behind",
        "_face",
        "_finishes",
        "_lessons",
        "_strip_usage",
        "errored",
        "events",
        "output_tokens",
        "prompt_tokens",
        "terminal",
        "truncated",
    )

    def __init__(self, face: Face, strip_usage: bool) -> None:
        self._face = face
        self._strip_usage = strip_usage
        self._finishes = 0
        self._before = b""
        self._behind = b""
        self._lessons = _LESSONS_MAX
        self.events = 0
        self.terminal = False
        self.errored = self.truncated = False
        self.prompt_tokens = -1
        self.output_tokens = -1

    def glance(self, data: bytes) -> bool:
        """Look at whole events (their chunk framing may still be around them) that go on as they are; False, and
        nothing is counted, when they carry a usage object: those need `see`."""
        start = data.find(b"data: ", 0, _FRAMING_MAX)
        before, behind = self._before, self._behind
        if (
            before
            and data.startswith(before, start)
            and data.endswith(behind)
            and data.find(b'"', start + len(before), len(data) - len(behind)) < 0
        ):
            self.events += 1
            return True
        if data.find(b'"usage"') >= 0 and _USAGE.search(data):
            return False
        if (
            self._face == "openai"
            and data.find(b'"finish_reason":"') < 0
            and data.find(b'"finish_reason": "') < 0
            and data.find(b"[DONE]") < 0
            and data.find(b"error") < 0
        ):
            events = data.count(b"\n\n") or data.count(b"\r\n\r\n")  # nothing but tokens
            self.events += events
            if events == 1 and start >= 0 and self._lessons > 0:
                self._learn(data, start)
            return True
        self._look(data)
        return True

    def _learn(self, data: bytes, start: int) -> None:
        """An event that shows nothing but a token: one with the same bytes around another text shows as little, as long
        as there is no quote in that text (each mark that is looked for begins or ends with one, or with a new line)."""
        self._lessons -= 1
        for key in (b'"content":"', b'"text":"', b'"content": "', b'"text": "'):
            at = data.find(key, start)
            if at >= 0:
                at += len(key)
                end = data.find(b'"', at)
                if end >= 0:
                    self._before, self._behind = data[start:at], data[end:]
                return

    def see(self, data: bytes) -> bytes:
        """Look at whole events; gives them back, without the stripped one."""
        self._look(data)
        if data.find(b'"usage"') >= 0 and _USAGE.search(data):
            return self._see_usage(data)
        return data

    def _look(self, data: bytes) -> None:
        # by blank lines: a giant event comes in pieces, of which only the last has one
        self.events += data.count(b"\n\n") or data.count(b"\r\n\r\n") or data.count(b"\r\r")
        face = self._face
        if face == "openai":
            if data.find(b'"finish_reason":"') >= 0 or data.find(b'"finish_reason": "') >= 0:
                self._finishes += len(_FINISH.findall(data))
                self.truncated = self.truncated or cut_off(data)
            done = data.find(b"[DONE]")
            if done >= 0 and _DONE.search(data, max(0, done - 7)):  # the field's name stands before it, behind a line's end
                self.terminal = True
        elif face == "responses":
            if data.find(b'"response.') >= 0 and _RESPONSES_END.search(data):
                self.terminal = True
        elif face == "anthropic" and data.find(b'"message_stop"') >= 0 and _MESSAGES_END.search(data):
            self.terminal = True
        if data.find(b"error") >= 0 and _ERROR_EVENT.search(data):
            self.errored = True

    def complete(self, choices: int) -> bool:
        """Whether a clean end of the stream now is the backend's own end: its terminal was seen, or every choice has
        its finish_reason, or it said an error itself; other faces have no known terminal."""
        if self.terminal or self.errored or self._face == "other":
            return True
        return self._face == "openai" and self._finishes >= max(1, choices)

    def _see_usage(self, data: bytes) -> bytes:
        prompt, output = find_tokens(data)
        if prompt >= 0:
            self.prompt_tokens = prompt
        if output >= 0:
            self.output_tokens = output
        if not self._strip_usage or not _NO_CHOICES.search(data):
            return data
        return b"".join(event for event in split_events(data) if not _is_usage_chunk(event))


def split_events(data: bytes) -> list[bytes]:
    """Whole events with their blank lines; joined they give `data` again."""
    if data.find(b"\r") < 0:  # as engines write them
        events, start, end = [], 0, data.find(b"\n\n")
        while end >= 0:
            events.append(data[start : end + 2])
            start = end + 2
            end = data.find(b"\n\n", start)
        if start < len(data):
            events.append(data[start:])
        return events
    ends = [0, *(found.end() for found in _EVENT_END.finditer(data))]
    if ends[-1] < len(data):
        ends.append(len(data))
    return [data[start:end] for start, end in pairwise(ends)]


def _is_usage_chunk(event: bytes) -> bool:
    """A chunk with no choices and a usage object, and nothing else in its event."""
    if event.find(b'"usage"') < 0 or not _NO_CHOICES.search(event) or not _USAGE.search(event):
        return False
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0:
        line = event[6:-2]
    else:
        lines = _DATA_LINE.findall(event)
        if len(lines) != 1:
            return False
        line = lines[0]
    try:
        chunk = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def error_event(face: Face, kind: str, message: str) -> bytes:
    """The one event that tells a client of a stream's failure, in the shape its SDK raises from."""
    error = {"message": message, "type": "upstream_error", "param": None, "code": kind}
    if face == "anthropic":
        body = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"
    if face == "responses":
        # the documented event says it flat, the OpenAI SDK raises from `error`
        said = {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 0, "error": error}
        return b"event: error\ndata: " + orjson.dumps(said) + b"\n\n"
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"
