"""The four ledgers of a fault run, one per side, joined by the id that the client puts into the prompt. Pure.

client: what it sent, what it saw, how it ended. proxy: what it did to which connection. backend: each run, its body and
its end. gateway: the access log. Times are monotonic seconds. checker.py judges the join; nothing here judges.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.faults.script import GOOD, Wish

Leave = Literal["", "connect", "head", "upload", "sent", "stalled", "first", "mid"]
Seen = Literal["none", "whole", "cut", "left"]
RunEnd = Literal["open", "finished", "broke", "aborted"]
CANARY = b"canary"  # part of the client's key: it must reach no backend
PAD = "\\u00e9 pad \u20ac "


@dataclass(frozen=True, slots=True)
class Plan:
    """How the client behaves. `leave` names the phase in which it goes (`mid`: behind `after` events; `stalled`: without
    having read for `stall_s`), by a reset or not."""

    leave: Leave = ""
    after: int = 0
    reset: bool = False
    stall_s: float = 0.0
    drip: int = 0
    expects_continue: bool = False
    fresh: bool = False
    pipelined: bool = False


STAY = Plan()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client means it. `body` is what it sends, byte for byte."""

    id: str
    model: str
    stream: bool
    wish: Wish
    plan: Plan
    asks_usage: bool
    body: bytes


def request(
    request_id: str, model: str, stream: bool, wish: Wish = GOOD, plan: Plan = STAY, asks_usage: bool = False, pad: int = 0
) -> Request:
    """Build a request; its prompt begins with the id and is at least `pad` bytes long."""
    said = wish.json()
    body = (
        f'{{"model":"{model}","messages":[{{"role":"user","content":"id={request_id}; {PAD * (pad // len(PAD))}"}}]'
        + (',"stream":true' if stream else "")
        + (',"stream_options":{"include_usage":true}' if asks_usage else "")
        + (',"x_fault":' + json.dumps(said, separators=(",", ":")) if said else "")
        + ',"seed":18446744073709551616}'
    )
    return Request(request_id, model, stream, wish, plan, asks_usage, body.encode())


@dataclass(slots=True)
class ClientRecord:
    """What the client saw of one request. `seen`: how its answer ended on the wire; `none` = its own limit passed."""

    request: Request
    sent_s: float = 0.0
    sent_whole: bool = False
    continued: bool = False
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    seen: Seen = "none"
    ended_s: float = 0.0


@dataclass(slots=True)
class RunRecord:
    """One request that a backend has read whole. `written` of `pieces`: how far its script was played."""

    id: str
    backend: str
    number: int
    head: bytes
    body_crc: int
    body_bytes: int
    wish: Wish
    status: int
    usage: bool
    started_s: float
    pieces: int
    written: int = 0
    end: RunEnd = "open"
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Touch:
    """A proxy did something to the connection that carried request `id` ("" when none was known)."""

    id: str
    proxy: str
    kind: str
    phase: str
    at_s: float
    answered_bytes: int


@dataclass(slots=True)
class Window:
    """A fault was armed at a proxy from `start_s` to `end_s`."""

    proxy: str
    kind: str
    phase: str
    start_s: float
    end_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """One line of the gateway's access log."""

    id: str
    status: int
    end: str
    reason: str
    attempts: int
    backend: str
    stream: bool
    events: int
    tokens_in: int
    tokens_out: int
    duration_ms: float

    @staticmethod
    def of(line: dict[str, object]) -> "AccessRecord":
        """From a parsed log line with event `request`."""
        return AccessRecord(**{name: line[name] for name in AccessRecord.__slots__})  # type: ignore[arg-type]


class Ledgers:
    """All four. Cleared between epochs, so that a run of any length needs bounded memory."""

    def __init__(self) -> None:
        self.clients: dict[str, ClientRecord] = {}
        self.runs: dict[str, list[RunRecord]] = {}
        self.touches: dict[str, list[Touch]] = {}
        self.windows: list[Window] = []
        self.access: dict[str, list[AccessRecord]] = {}
        self.partial: dict[str, int] = {}
        self.strays: list[str] = []
        self.stalls: list[tuple[float, float]] = []

    def run(self, record: RunRecord) -> None:
        """A backend has read a body whole."""
        self.runs.setdefault(record.id, []).append(record)

    def touch(self, touch: Touch) -> None:
        """A proxy acted."""
        self.touches.setdefault(touch.id, []).append(touch)

    def line(self, line: dict[str, object]) -> None:
        """One parsed line of the gateway's log."""
        if line.get("event") == "request":
            record = AccessRecord.of(line)
            self.access.setdefault(record.id, []).append(record)

    def stalled(self, start_s: float, end_s: float) -> bool:
        """Whether the machine left this process or the gateway without time between the two moments."""
        return any(start_s <= to_s and from_s <= end_s for from_s, to_s in self.stalls)

    def missing(self, ids: Iterable[str]) -> list[str]:
        """Those of `ids` that the access log does not know (yet)."""
        return [request_id for request_id in ids if request_id not in self.access]

    def take(self, ids: Iterable[str]) -> "Ledgers":
        """Move what is known of `ids` into ledgers of their own (windows and stalls are shared)."""
        taken = Ledgers()
        taken.windows, taken.stalls = self.windows, self.stalls
        for request_id in ids:
            for mine, theirs in (
                (self.clients, taken.clients),
                (self.runs, taken.runs),
                (self.touches, taken.touches),
                (self.access, taken.access),
            ):
                if request_id in mine:
                    theirs[request_id] = mine.pop(request_id)  # type: ignore[assignment]
        return taken

    def clear(self) -> None:
        """Forget what is judged; open windows stay."""
        for table in (self.clients, self.runs, self.touches, self.access, self.partial):
            table.clear()
        self.windows = [window for window in self.windows if window.end_s == float("inf")]
        self.stalls = self.stalls[-8:]
