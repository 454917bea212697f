"""The faults of the network as records, and where one strikes in a response: the seven phases as byte offsets. Pure."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["connect", "headers", "head_sent", "mid_event", "between", "terminal", "idle"]
PHASES: tuple[Phase, ...] = ("connect", "headers", "head_sent", "mid_event", "between", "terminal", "idle")
Kind = Literal[
    "latency", "bandwidth", "refuse", "black_hole", "rst", "half_close", "slicer", "limit", "slow_close", "idle_close",
    "extra_bytes", "garbage", "flood_1xx",
]  # fmt: skip
PASSIVE = frozenset(("latency", "bandwidth", "slicer"))
IN_FRAMING = frozenset(("extra_bytes", "garbage", "flood_1xx"))


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do, and when. `k` is the number of the event; `delay_s` is the delay, or the wait before a close."""

    kind: Kind
    phase: Phase
    k: int = 2
    delay_s: float = 0.02
    rate_bytes_per_s: int = 1_000_000

    def shows(self, seen: bytes | bytearray) -> bool:
        """Whether a relay can notice it in this response: bytes put into a body show only in chunked framing."""
        if self.kind not in IN_FRAMING or self.phase in ("headers", "idle"):
            return True
        if b"\r\ntransfer-encoding: chunked" not in seen[: seen.find(b"\r\n\r\n") + 2]:
            return False
        # in the middle of a chunk that is larger than what a relay holds back, they pass for the chunk's own
        return self.phase != "mid_event" or len(seen) < SMALL_BYTES


MID_EVENT_BYTES = 30
SMALL_BYTES = 32768
_LAST = b"\r\n0\r\n\r\n"


def locate(seen: bytes | bytearray, phase: Phase, k: int) -> int | None:
    """The offset in a response (from its first byte) at which `phase` begins, or None as long as it is not known.

    mid_event: inside event `k` (from 1), or half-way through a body with a length; between: behind event `k`; terminal:
    before the terminal event, or before the last byte of a body; idle: behind the whole response.
    """
    if phase in ("connect", "headers"):
        return 0
    head_end = seen.find(b"\r\n\r\n") + 4
    if head_end < 4:
        return None
    if phase == "head_sent":
        return head_end
    head = bytes(seen[:head_end]).lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        length = int(head[at + 17 :].split(b"\r\n", 1)[0])
        offset = head_end + {"mid_event": length // 2, "between": length // 3, "terminal": length - 1}.get(phase, length)
        return offset if len(seen) >= offset else None
    if b"text/event-stream" not in head and phase != "idle":
        return _in_chunked_body(seen, phase, head_end)
    if phase == "idle":
        end = seen.find(_LAST, head_end - 2)
        return end + len(_LAST) if end >= 0 else None
    return _in_events(seen, phase, head_end, k)


def _in_chunked_body(seen: bytes | bytearray, phase: Phase, head_end: int) -> int | None:
    """A plain body in chunks: mid_event is inside the first chunk, terminal before the last one."""
    if phase == "terminal":
        end = seen.find(_LAST, head_end)
        return end + 2 if end >= 0 else None
    if phase == "between":
        return head_end
    offset = seen.find(b"\r\n", head_end) + 2 + MID_EVENT_BYTES
    return offset if offset >= 2 + MID_EVENT_BYTES and len(seen) >= offset else None


def _in_events(seen: bytes | bytearray, phase: Phase, head_end: int, k: int) -> int | None:
    if phase == "terminal":
        at = seen.find(b"data: [DONE]", head_end)
        line = seen.rfind(b"\r\n", head_end, at - 2) if at >= 0 else -1
        return None if at < 0 else line + 2 if line >= 0 else head_end
    at = head_end
    for _ in range(k if phase == "between" else k - 1):
        at = seen.find(b"\n\n", at) + 2
        if at < 2:
            return None
    if phase == "between":
        behind = at + 2 if bytes(seen[at : at + 2]) == b"\r\n" else at
        return behind if len(seen) >= at + 2 else None
    start = seen.find(b"data:", at)
    offset = start + MID_EVENT_BYTES
    return offset if start >= 0 and len(seen) >= offset else None
