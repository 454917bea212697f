"""How long an idle connection may be trusted: never longer than something has survived."""

import ssl
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Limits, Pool
from gateway.relay.idle import LESSON_S, MARGIN, IdleTrust
from gateway.relay.pool import BackendPool, any_address
from gateway.relay.upstream import UpstreamConnection


@pytest.mark.parametrize(
    ("story", "limit_s", "canary_s"),
    [
        ((), 0.1, 37.5),
        ((("survived", 0.05),), 0.1, 37.5),
        ((("survived", 4.0),), 3.2, 37.5),
        ((("survived", 4.0), ("survived", 1.0)), 3.2, 37.5),
        ((("survived", 1000.0),), 30.0, 37.5),
        ((("closed", 5.0),), 0.1, 5.0),
        ((("survived", 4.0), ("closed", 5.0)), 3.2, 5.0),
        ((("survived", 4.0), ("closed", 2.0)), 1.6, 2.0),
        ((("survived", 4.0), ("closed", 2.0), ("survived", 9.0)), 1.6, 2.0),
        ((("closed", 2.0), ("closed", 5.0), ("survived", 9.0)), 1.6, 2.0),
        ((("closed", 0.05),), 0.04, 0.05),
        ((("announced", 5.0),), 4.0, 5.0),
        ((("announced", 5.0), ("closed", 3.0)), 2.4, 3.0),
        ((("closed", 3.0), ("announced", 5.0)), 0.1, 3.0),
        ((("announced", 1000.0),), 30.0, 37.5),
        ((("announced", 0.0),), 0.0, 0.0),
        ((("forget", None),), 0.1, 37.5),
        ((("survived", 4.0), ("closed", 5.0), ("forget", None)), 3.2, 37.5),
        ((("survived", 9.0), ("closed", 5.0), ("forget", None)), 4.0, 37.5),
        ((("survived", 9.0), ("closed", 0.001), ("forget", None)), 0.0008, 37.5),
        ((("survived", 9.0), ("closed", 0.001), ("forget", None), ("survived", 6.0)), 4.8, 37.5),
        ((("survived", 9.0), ("closed", 5.0), ("forget", None), ("closed", 2.0)), 1.6, 2.0),
        ((("announced", 5.0), ("forget", None), ("announced", 5.0)), 4.0, 5.0),
    ],
)
def test_what_a_backend_s_past_allows(story: tuple[tuple[str, float | None], ...], limit_s: float, canary_s: float) -> None:
    trust = IdleTrust(cap_s=30.0, unproven_s=0.1)
    for event, age_s in story:
        getattr(trust, event)(*(() if age_s is None else (age_s,)))
    assert (trust.limit_s, trust.canary_s) == (pytest.approx(limit_s), pytest.approx(canary_s))


event = st.tuples(st.sampled_from(("survived", "closed")), st.floats(0, 100))


@settings(max_examples=60, deadline=None)
@given(st.lists(event, max_size=20))
def test_the_limit_keeps_a_margin_to_every_close_and_to_what_survived(story: list[tuple[str, float]]) -> None:
    trust = IdleTrust(cap_s=30.0, unproven_s=0.1)
    for kind, age_s in story:
        getattr(trust, kind)(age_s)
    limit_s = trust.limit_s
    assert 0 <= limit_s <= 30.0
    assert limit_s <= trust.canary_s or limit_s == 0
    assert all(limit_s <= age_s * MARGIN for kind, age_s in story if kind == "closed")
    assert limit_s <= max([0.1, *(age_s * MARGIN for kind, age_s in story if kind == "survived")])


class Idle:
    """A backend connection as a pool sees it."""

    used, alive, idle_since_s = 1, True, 0.0

    def readable(self) -> bool:
        return False

    def close(self) -> None:
        self.alive = False


def test_a_restart_of_the_server_is_no_idle_limit_for_ever() -> None:
    now_s = 1000.0
    pool = BackendPool("http://h:1", "", Pool(), Limits(), any_address, ssl.create_default_context, lambda: now_s)

    def idle() -> UpstreamConnection:
        made = cast("UpstreamConnection", Idle())
        pool.returned(made)
        return made

    idle()
    now_s += 20.0
    pool.sweep(now_s)
    assert pool.trust.limit_s == pytest.approx(16.0)
    pool.gone(idle(), eof=True)  # closed as soon as it idled
    assert pool.trust.limit_s == 0.0
    idle()
    now_s += LESSON_S + 0.1
    pool.sweep(now_s)
    assert pool.trust.limit_s == pytest.approx(MARGIN * (LESSON_S + 0.1))
