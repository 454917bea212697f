"""The fault matrix: 16 faults x 7 phases x stream or plain x 1 or 3 backends, and which end is right in each. Pure.

A cell stands where the combination makes sense: what HTTP/1.1 cannot show to a relay (a length-framed body with other
bytes in it, a chunked JSON body that is ended early) has no cell. With 3 backends the fault is at one of them.
"""

from dataclasses import dataclass

from tests.faults.checker import Kind
from tests.faults.ledger import STAY, Leave, Plan
from tests.faults.phases import PHASES, Fault, Phase
from tests.faults.script import Wish

LARGE = 90_000  # characters; half of it is more than the gateway holds back
SMALL = 24
_KINDS: dict[str, Kind] = {"C": "complete", "E": "error", "S": "stream_error", "B": "broken", "G": "gone"}

# Right ends per phase, in the order of PHASES. C complete, E one JSON error, S error event, G client gone, - no cell.
# SE: bad framing right behind the first events in one read may end as an error while nothing is out.
_STREAM = """
latency       C  C  C  C  C  C  -
bandwidth     C  C  C  C  C  C  -
slicer        C  C  C  C  C  C  -
refuse        E  E  E  S  S  S  C
black_hole    E  E  E  S  S  S  C
rst           CE E  E  SE SE SE C
half_close    CE E  E  S  S  S  C
limit         CE E  E  S  S  S  C
slow_close    E  E  E  S  S  S  -
idle_close    E  -  -  -  -  -  C
extra_bytes   CE E  E  SE SE SE C
wrong_length  -  -  -  SE SE SE -
garbage       CE E  E  SE SE SE C
flood_1xx     CE E  E  SE SE SE C
early_end     -  -  E  S  S  C  -
client_leaves G  G  G  G  G  G  C
"""
_PLAIN = """
latency       C  C  C  C  -  C  -
bandwidth     C  C  C  C  -  C  -
slicer        C  C  C  C  -  C  -
refuse        E  E  E  E  -  E  C
black_hole    E  E  E  E  -  E  C
rst           CE E  E  E  -  E  C
half_close    CE E  E  E  -  E  C
limit         CE E  E  E  -  E  C
slow_close    E  E  E  E  -  E  -
idle_close    E  -  -  -  -  -  C
extra_bytes   CE E  E  E  -  E  C
wrong_length  -  -  E  E  -  E  C
garbage       CE E  E  E  -  E  C
flood_1xx     CE E  E  E  -  E  C
early_end     -  -  -  -  -  -  -
client_leaves G  G  G  G  -  G  C
"""
FAULTS = tuple(line.split()[0] for line in _STREAM.split("\n") if line)
_IN_FRAMING = ("extra_bytes", "garbage", "flood_1xx", "wrong_length")
_AT = {"headers": "headers", "head_sent": "body", "mid_event": "mid", "between": "event", "terminal": "terminal"}
_LEAVES: tuple[Leave, ...] = ("connect", "head", "upload")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination. `right`: the ends of requests that the fault strikes."""

    fault: str
    phase: Phase
    stream: bool
    backends: int
    right: frozenset[Kind]

    @property
    def name(self) -> str:
        return f"{self.fault}.{self.phase}.{'stream' if self.stream else 'plain'}.{self.backends}"

    @property
    def elsewhere(self) -> bool:
        """Whether a struck request must be served by another backend, since it provably did not run."""
        return self.backends > 1 and self.phase == "connect" and self.fault in ("refuse", "black_hole")

    @property
    def network(self) -> Fault | None:
        """The fault to arm at the proxy, if it is one of the network."""
        if self.fault in ("wrong_length", "early_end", "client_leaves"):
            return None
        delay_s = {"idle_close": 0.15, "slow_close": 0.05}.get(self.fault, 0.01)
        return Fault(self.fault, self.phase, delay_s=delay_s)  # type: ignore[arg-type]

    def large(self, number: int) -> bool:
        """Whether the answer of request `number` is too large to be held back whole."""
        return not self.stream and number % 2 == 1

    def wish(self, number: int) -> Wish:
        """What request `number` asks of the backend."""
        text = LARGE if self.large(number) else SMALL
        framing = "chunked" if not self.stream and self.fault in _IN_FRAMING and self.phase != "idle" else "length"
        # in the framing faults events are apart in time, so that some are out before the bad bytes come
        pace_ms = 2.0 if self.stream and self.fault in _IN_FRAMING else 0.0
        if self.fault == "wrong_length":
            return self._wrong(number, text, pace_ms)
        if self.fault not in ("client_leaves", "early_end") or self.phase in ("connect", "idle"):
            return Wish(text=text, framing=framing, pace_ms=pace_ms)  # type: ignore[arg-type]
        do = "hang" if self.fault == "client_leaves" else "end"
        return Wish(do=do, at=_AT[self.phase], k=2, text=text)  # type: ignore[arg-type]

    def _wrong(self, number: int, text: int, pace_ms: float) -> Wish:
        if self.phase == "idle":
            return Wish(do="short", text=SMALL)
        if self.phase == "head_sent":
            return Wish(do="long", k=number // 2 % 2, text=text)
        at = {"mid_event": "mid", "between": "event"}.get(self.phase, "terminal")
        k = 1 if at == "event" else 2
        if not self.stream and text == SMALL:
            k = 1
        do = "long" if number // 2 % 2 or at == "terminal" else "short"
        return Wish(do=do, at=at, k=k, text=text, framing="chunked", pace_ms=pace_ms)  # type: ignore[arg-type]

    def plan(self, number: int) -> Plan:
        """How the client of request `number` behaves."""
        if self.fault != "client_leaves" or self.phase == "idle":
            return STAY
        reset = number // 2 % 2 == 1
        if self.phase == "connect":
            return Plan(leave=_LEAVES[number % 3], reset=reset, fresh=True)
        if self.phase in ("headers", "head_sent"):
            return Plan(leave="sent", after=number % 4 * 3, reset=reset, fresh=True)
        if not self.stream:
            return Plan(leave="first" if self.large(number) else "sent", after=5, reset=reset, fresh=True)
        return Plan(leave="mid", after={"mid_event": 1, "between": 2}.get(self.phase, 4), reset=reset, fresh=True)

    def ends(self, touched: frozenset[str], number: int) -> frozenset[Kind]:
        """The right ends of request `number`, given what the proxies did to its connection."""
        if self.elsewhere:
            return frozenset(("complete",))
        if self.network is None:
            return self._for_size(number)
        if self.phase == "connect":  # the struck connection may not know its request
            elsewhere = self.backends > 1 and "struck before" not in touched
            return self.right | {"complete"} if elsewhere else self.right
        if self.fault in touched:
            return self._for_size(number)
        if self.fault == "refuse":  # dies for all while one is struck
            return frozenset(("complete", "error", "stream_error", "broken"))
        if self.fault == "black_hole" and "struck before" in touched:
            return frozenset(("error",))
        return frozenset(("complete",))

    def _for_size(self, number: int) -> frozenset[Kind]:
        """A large plain answer may be out in part: then only the broken connection can tell. (A reset right behind it
        takes along what the kernel has not sent yet.)"""
        if self.large(number) and self.phase == "idle" and self.fault in ("rst", "refuse"):
            return self.right | {"broken"}
        if self.large(number) and "error" in self.right and self.phase in ("mid_event", "terminal", "head_sent"):
            return self.right | {"broken"}
        return self.right


def cells() -> list[Cell]:
    """The whole matrix; the phase `idle` last, since closes there teach a gateway to reuse connections less."""
    out = []
    for stream, table in ((True, _STREAM), (False, _PLAIN)):
        for line in filter(None, table.split("\n")):
            fault, *letters = line.split()
            for phase, ends in zip(PHASES, letters, strict=True):
                if ends != "-":
                    right = frozenset(_KINDS[letter] for letter in ends)
                    out += [Cell(fault, phase, stream, backends, right) for backends in (1, 3)]
    return sorted(out, key=lambda cell: (cell.phase == "idle", cell.fault in ("limit", "half_close")))
