"""Reading responses on the client's side: strict, by hand, so that no parser is shared with the gateway. Pure."""

from typing import Literal

State = Literal["head", "length", "size", "data", "gap", "last", "close", "done"]


class BadResponseError(Exception):
    """The bytes are no HTTP/1.1 response."""


class ResponseParser:
    """One final response; informational ones are read over (`continued`). `rest` holds what follows it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.continued = False
        self.rest = b""
        self.state: State = "head"
        self._buffer = bytearray()
        self._left = 0

    @property
    def done(self) -> bool:
        """The response is whole."""
        return self.state == "done"

    @property
    def begun(self) -> bool:
        """Some byte has arrived."""
        return self.state != "head" or bool(self._buffer) or self.continued

    def feed(self, data: bytes) -> bool:
        """Take bytes; True when the response is whole. Raises BadResponseError."""
        self._buffer += data
        while self.state != "done" and self._step():
            pass
        if self.state == "done" and self._buffer:
            self.rest = bytes(self._buffer)
            self._buffer.clear()
        return self.state == "done"

    def eof(self) -> bool:
        """The connection ended in order. True when the response is whole by that."""
        if self.state == "close":
            self.state = "done"
        return self.done

    def _step(self) -> bool:
        """One step of progress; False when more bytes are needed."""
        buffer = self._buffer
        if self.state == "head":
            return self._read_head()
        if self.state in ("length", "data"):
            taken = min(self._left, len(buffer))
            self.body += buffer[:taken]
            del buffer[:taken]
            self._left -= taken
            if self._left == 0:
                self.state = "done" if self.state == "length" else "gap"
                return True
            return False
        if self.state == "close":
            self.body += buffer
            buffer.clear()
            return False
        end = buffer.find(b"\r\n")
        if end < 0:
            if len(buffer) > 16:
                raise BadResponseError(f"no line end in chunk framing: {bytes(buffer[:40])!r}")
            return False
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        self._read_line(line)
        return True

    def _read_line(self, line: bytes) -> None:
        if self.state == "size":
            if not line or line.strip(b"0123456789abcdef"):
                raise BadResponseError(f"bad chunk size {line[:40]!r}")
            self._left = int(line, 16)
            self.state = "data" if self._left else "last"
        elif line:
            raise BadResponseError(f"bytes where a chunk should end: {line[:40]!r}")
        else:
            self.state = "size" if self.state == "gap" else "done"

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(b" ")
        if version != b"HTTP/1.1" or not rest[:3].isdigit():
            raise BadResponseError(f"bad status line {first[:60]!r}")
        status = int(rest[:3])
        if status < 200:
            self.continued = True
            return True
        self.status = status
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise BadResponseError(f"bad header line {line[:60]!r}")
            self.headers[name.lower()] = value.strip()
        self._choose_framing()
        return True

    def _choose_framing(self) -> None:
        length = self.headers.get(b"content-length")
        if b"transfer-encoding" in self.headers:
            if length is not None:
                raise BadResponseError("Content-Length and Transfer-Encoding together")
            self.state = "size"
        elif length is not None:
            self._left = int(length)
            self.state = "length"
        else:
            self.state = "done" if self.status in (204, 304) else "close"
