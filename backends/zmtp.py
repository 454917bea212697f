"""ZMTP 3.0 without security (NULL), as much as a subscriber and an asker need: greeting, frames, READY. Pure.

Bytes in, messages out; the sockets are elsewhere. It is spoken with the library that vLLM's and SGLang's publishers use.
Own, because that library would add a native one with a thread of its own to a process that reads one small stream.
Messages above `MESSAGE_BYTES_MAX` are refused, so that a peer cannot grow us. Protocol: RFC 23/ZMTP.
"""

MESSAGE_BYTES_MAX = 16 << 20
FRAMES_MAX = 16
_GREETING_BYTES = 64
_MECHANISM = b"NULL".ljust(20, b"\0")
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _MECHANISM + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4


class ZmtpError(Exception):
    """The peer speaks something else, or too much of it."""


def ready(socket_type: bytes) -> bytes:
    """The command that ends the handshake."""
    fields = b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
        for name, value in ((b"Socket-Type", socket_type), (b"Identity", b""))
    )
    return _frame(b"\x05READY" + fields, _COMMAND)


def message(*frames: bytes) -> bytes:
    """One message of some frames."""
    last = len(frames) - 1
    return b"".join(_frame(frame, _MORE if index < last else 0) for index, frame in enumerate(frames))


def subscription(topic: bytes) -> bytes:
    """What a subscriber sends to get messages whose first frame begins so (empty: all)."""
    return message(b"\x01" + topic)


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) > 255:
        return bytes((flags | _LONG,)) + len(body).to_bytes(8, "big") + body
    return bytes((flags, len(body))) + body


class Incoming:
    """What the peer sends. `replies` are bytes to send back (an answer to its heartbeat); whoever sends them empties it."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.greeted = False
        self.ready = False  # the handshake is over; nothing but READY may be sent before that
        self._buffer = bytearray()
        self._frames: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[tuple[bytes, ...]]:
        """Take in bytes; the messages that they complete. Raises ZmtpError."""
        self._buffer += data
        if not self.greeted and not self._take_greeting():
            return []
        out: list[tuple[bytes, ...]] = []
        at = 0
        while (found := self._next(at)) is not None:
            flags, body, at = found
            if flags & _COMMAND:
                self._command(body)
            elif self._part(flags, body):
                out.append(tuple(self._frames))
                self._frames, self._held = [], 0
        del self._buffer[:at]
        return out

    def _take_greeting(self) -> bool:
        head = self._buffer
        if (head and head[0] != 0xFF) or (len(head) > 9 and head[9] != 0x7F):
            raise ZmtpError("the peer does not speak ZMTP")
        if len(head) > 10 and head[10] < 3:
            raise ZmtpError(f"the peer speaks ZMTP {head[10]}, not 3")
        if len(head) < _GREETING_BYTES:
            return False
        if bytes(head[12:32]) != _MECHANISM:
            raise ZmtpError("the peer wants credentials")
        del head[:_GREETING_BYTES]
        self.greeted = True
        return True

    def _next(self, at: int) -> tuple[int, bytes, int] | None:
        """(flags, body, where the next frame begins), or None while the frame is not whole."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        flags = buffer[at]
        if flags > (_MORE | _LONG | _COMMAND):
            raise ZmtpError("a frame with unknown flags")
        head = 9 if flags & _LONG else 2
        if len(buffer) < at + head:
            return None
        size = int.from_bytes(buffer[at + 1 : at + head], "big")
        if size + self._held > MESSAGE_BYTES_MAX:
            raise ZmtpError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
        end = at + head + size
        return (flags, bytes(buffer[at + head : end]), end) if len(buffer) >= end else None

    def _part(self, flags: int, body: bytes) -> bool:
        if not self.ready:
            raise ZmtpError("a message before the handshake's end")
        self._frames.append(body)
        self._held += len(body)
        if len(self._frames) > FRAMES_MAX:
            raise ZmtpError(f"a message of more than {FRAMES_MAX} frames")
        return not flags & _MORE

    def _command(self, body: bytes) -> None:
        if body.startswith(b"\x05READY"):
            self.ready = True
        elif body.startswith(b"\x05ERROR"):
            raise ZmtpError(f"the peer refuses: {body[7:].decode('ascii', 'replace')}")
        elif body.startswith(b"\x04PING"):
            self.replies.append(_frame(b"\x04PONG" + body[7:], _COMMAND))
