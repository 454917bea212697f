"""What the soak sends: requests of every size and kind drawn from a seed, and which ends are right for each. Pure.

Most are good. A few per cent ask their backend for a fault, a few per cent come from clients that misbehave; the
network's faults are drawn from those of the matrix. Two things are left to the matrix, since under load they may meet the
next request on the connection, and nobody could tell: bytes behind an answer, and an idle limit that other connections
to the same backend do not have.
"""

from random import Random

from tests.faults.checker import Kind
from tests.faults.ledger import STAY, Leave, Plan, Request, Touch, Window, request
from tests.faults.matrix import LARGE, cells
from tests.faults.phases import IN_FRAMING, PASSIVE, Fault
from tests.faults.script import At, Do, Wish

BAD_WISHES = 0.06
BAD_CLIENTS = 0.06
_PADS = ((0.70, 0), (0.90, 3_000), (0.99, 60_000), (1.0, 300_000))
_HEAVY_PADS = ((0.5, 3_000), (1.0, 300_000))
_STATUSES = (400, 404, 413, 422, 500, 302, 400, 404)
_BREAKS: tuple[tuple[Do, At], ...] = (
    ("rst", "headers"), ("fin", "headers"), ("rst", "body"), ("fin", "body"), ("rst", "mid"), ("fin", "mid"),
    ("rst", "terminal"), ("fin", "terminal"), ("rst", "byte"), ("fin", "byte"), ("garbage", "headers"), ("garbage", "mid"),
    ("long", ""), ("flood", ""),
)  # fmt: skip
_STREAM_BREAKS: tuple[tuple[Do, At], ...] = (
    ("end", "body"), ("end", "mid"), ("end", "event"), ("end", "terminal"), ("rst", "event"), ("fin", "event"),
    ("extra", "event"), ("garbage", "event"), ("no_done", ""), ("no_finish", ""), ("error_first", ""),
)  # fmt: skip
_HANGS: tuple[At, ...] = ("headers", "body", "mid")
_LEAVES: tuple[Leave, ...] = ("connect", "head", "upload", "sent", "sent", "first", "mid")
_ALL: frozenset[Kind] = frozenset(("complete", "error", "stream_error", "broken"))


def network_faults() -> list[Fault]:
    """Every fault of the network, at every phase that the matrix knows for it."""
    found = {(cell.fault, cell.phase): cell.network for cell in cells()}
    return [fault for fault in found.values() if fault is not None]


def draw(rng: Random, request_id: str, model: str, heavy: bool = False) -> Request:
    """One request. `heavy`: as large as they come, for a warm-up that sets the high-water marks of memory."""
    stream = rng.random() < 0.55
    wish = _bad_wish(rng, stream) if rng.random() < BAD_WISHES else _good_wish(rng, stream)
    plan = _plan(rng, stream) if rng.random() < BAD_CLIENTS else STAY
    if (plan.stall_s and not wish.at) or (heavy and rng.random() < 0.2):
        wish = Wish(text=LARGE)
    shade = rng.random()
    pad = next(size for bound, size in (_HEAVY_PADS if heavy else _PADS) if shade < bound)
    return request(request_id, model, stream, wish, plan, asks_usage=rng.random() < 0.5, pad=rng.randrange(pad + 1))


def _good_wish(rng: Random, stream: bool) -> Wish:
    shade = rng.random()
    if shade < 0.005:
        return Wish(text=LARGE)
    if shade < 0.01:
        return Wish(slice=1, text=12, events=2, framing="chunked")
    if shade < 0.02:
        return Wish(gzip=True, text=rng.randrange(400))
    if shade < 0.03 and stream:  # a plain body that ends with its connection cannot be told from a cut one
        return Wish(framing="close", text=rng.randrange(120))
    framing = "chunked" if rng.random() < 0.2 else "length"
    return Wish(events=rng.randrange(1, 8), text=rng.randrange(120 if stream else 600), framing=framing)  # type: ignore[arg-type]


def _bad_wish(rng: Random, stream: bool) -> Wish:
    shade = rng.random()
    if shade < 0.02:
        return Wish(do="hang", at=rng.choice(_HANGS), k=2)
    if shade < 0.03:
        return Wish(status=rng.choice((429, 503)), retry_after=1)
    if shade < 0.2:
        return Wish(status=rng.choice(_STATUSES))
    do, at = rng.choice(_BREAKS + _STREAM_BREAKS if stream else _BREAKS)
    k = rng.randrange(900) if at == "byte" else rng.choice((5, 100)) if do == "flood" else rng.randrange(1, 3)
    # what breaks the framing needs a framing that can be broken
    chunked = do in ("garbage", "extra") and at not in ("", "headers")
    small = at == "byte" or do == "garbage"  # in a large event it passes for the event's own bytes
    text = LARGE if rng.random() < 0.05 and not small else rng.randrange(200)
    events = rng.randrange(2, 6)
    return Wish(do=do, at=at, k=k, events=events, text=text, framing="chunked" if chunked else "length")


def _plan(rng: Random, stream: bool) -> Plan:
    shade, reset = rng.random(), rng.random() < 0.5
    if shade < 0.6:
        return Plan(leave=rng.choice(_LEAVES), after=rng.randrange(1, 4), reset=reset, fresh=rng.random() < 0.5)
    if shade < 0.65:
        return Plan(leave="stalled", stall_s=0.1, reset=reset)
    if shade < 0.7:
        return Plan(stall_s=0.05)
    if shade < 0.8:
        return Plan(drip=rng.randrange(2, 12))
    if shade < 0.9:
        return Plan(expects_continue=True)
    return Plan(fresh=True)


def wished(wish: Wish, stream: bool) -> frozenset[Kind]:
    """The right ends of a request whose client stays and whose network is good."""
    sse = stream and wish.status == 200
    if wish.status == 302:
        return frozenset(("error",))
    if wish.status in (429, 503):
        return frozenset(("complete",))  # handed on when nobody else may be asked
    if wish.at == "byte":
        return _ALL
    if wish.do in ("none", "no_done", "error_first") and not wish.at:
        return frozenset(("complete",))
    if wish.do == "flood":
        return frozenset(("complete",)) if wish.k <= 8 else frozenset(("error",))
    if wish.at in ("headers", "body"):
        return frozenset(("error",))
    if wish.do == "long" and sse:
        return frozenset(("complete",))  # a stream is framed by chunks: there is no length to be wrong
    if wish.do == "end" and wish.at == "terminal":
        return frozenset(("complete",))
    broken: frozenset[Kind] = frozenset(("broken",)) if wish.text == LARGE else frozenset()
    return broken | ({"stream_error", "error"} if sse else {"error"})


def right(one: Request, touches: list[Touch], ran: bool, near: list[Window]) -> frozenset[Kind]:
    """The right ends of a request, given what the proxies did to it, and what faults were armed anywhere in its life:
    new or idle connections that broke are not known by an id, and the request may have met one."""
    ends = wished(one.wish, one.stream)
    if one.plan.leave:
        ends |= {"gone"}
    if any(touch.kind not in PASSIVE for touch in touches):
        ends |= _ALL
    unsent = any(w.phase in ("connect", "idle") or w.kind == "refuse" for w in near)
    misled = any(w.phase == "idle" and w.kind in IN_FRAMING for w in near)  # bytes were there before the request
    if misled or (unsent and not ran):
        ends |= {"error"}
    if one.plan.pipelined:
        ends |= {"unserved"}
    return ends
