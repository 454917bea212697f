"""No run of events breaks the table: counts, states, and who may be routed to."""

from itertools import product
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import Identity, Kind
from gateway.fleet import Fleet
from gateway.replica import MOVES, Replica
from tests.core.test_fleet import fleet, spec

NAMES = ("a", "b", "c")
event = st.tuples(
    st.sampled_from(
        (
            *(
                "dispatched",
                "dispatched",
                "released",
                "answered",
                "failed",
                "failed",
                "failed",
                "probed",
                "probed",
                "probe_failed",
            ),
            *("responded", "wedged", "revived", "drain", "undrained", "removed", "added", "respecified", "forget"),
            *("cut", "reopened", "slept", "coming", "awake"),
        )
    ),
    st.sampled_from(NAMES),
    st.integers(0, 3),
)


def apply(made: Fleet, held: list[tuple[Replica, bool]], what: str, name: str, number: int, now_s: float) -> None:
    replica = made.get(name)
    if what == "forget":
        made.forget(now_s)
    elif what == "released":
        if held:
            made.released(*held.pop(number % len(held)))
    elif replica is None:
        if what == "added":
            made.added(spec(name, "m"))
    elif what == "dispatched":
        if replica.state == "ready" and replica.open(now_s):
            made.dispatched(replica, now_s, number > 1)
            held.append((replica, number > 1))
    elif what == "failed":
        kind = ("connect", "timeout", "reset", "status")[number]
        made.failed(replica, kind, "why", int(now_s) % 3 if kind == "reset" else None, now_s)  # type: ignore[arg-type]
    elif what == "undrained":
        if replica.state == "draining":
            made.undrained(replica)
    elif what == "coming":
        if replica.state == "asleep":
            made.coming(replica, "why")
    else:
        arguments = {
            "answered": (replica, number, now_s),
            "probed": (replica, Identity("vllm", models=("m", "n")[: number or 1], kind=get_args(Kind)[number % 3]), now_s),
            "probe_failed": (replica, "why", now_s),
            "responded": (replica, 429, {b"retry-after": b"%d" % number}, None, now_s, now_s),
            "wedged": (replica,),
            "revived": (replica, now_s),
            "drain": (replica, now_s + number),
            "cut": (replica, "why"),
            "reopened": (replica,),
            "slept": (replica, "why"),
            "awake": (replica,),
            "removed": (name,),
            "respecified": (name, spec(name, "m", url=f"http://h{number // 2}", max_in_flight=1 + number)),
            "added": (),
        }[what]
        if what != "added":
            getattr(made, what)(*arguments)


@settings(max_examples=80, deadline=None)
@given(st.lists(event, max_size=60))
def test_no_run_of_events_breaks_the_table(events: list[tuple[str, str, int]]) -> None:
    made = fleet(*NAMES)
    held: list[tuple[Replica, bool]] = []
    for at, (what, name, number) in enumerate(events):
        apply(made, held, what, name, number, now_s := float(at))
        for replica in made:
            of_it = [stream for owner, stream in held if owner is replica]
            assert (replica.in_flight, replica.streams) == (len(of_it), sum(of_it))
            assert replica.state in MOVES
            assert not (replica.wedged and replica.state == "ready")
            assert not (replica.trial and replica.trying and replica.open(now_s))
            assert 0 <= replica.trying <= replica.in_flight
        for model, kind in product(("m", "n"), get_args(Kind)):
            may = tuple(r for r in made if r.state == "ready" and model in r.models and r.serves(kind))
            assert made.routable(model, kind) == may
    for move in made.transitions():
        assert move.after in MOVES[move.before]
