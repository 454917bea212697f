"""The poison rule's memory: what speaks against a body, and what only against a dying server."""

import pytest

from gateway.suspicion import BODIES_MAX, TOGETHER_S, Suspicion


@pytest.fixture
def suspicion() -> Suspicion:
    return Suspicion(ttl_s=60.0)


def test_lone_drops_on_two_backends_speak_against_the_body(suspicion: Suspicion) -> None:
    suspicion.failed(1, "a", 10.0, dropped=True)
    suspicion.failed(1, "b", 20.0, dropped=True)
    assert suspicion.droppers(1, 21.0) == {"a", "b"}
    assert suspicion.droppers(2, 21.0) == frozenset()


def test_a_dying_server_takes_all_its_requests_along(suspicion: Suspicion) -> None:
    for body in (1, 2, 1):
        suspicion.failed(body, "a", 10.0 + body * TOGETHER_S / 4, dropped=True)
    suspicion.failed(1, "b", 11.0, dropped=True)
    assert suspicion.droppers(1, 12.0) == {"b"}
    assert suspicion.droppers(2, 12.0) == frozenset()


def test_drops_apart_in_time_are_each_alone(suspicion: Suspicion) -> None:
    suspicion.failed(1, "a", 10.0, dropped=True)
    suspicion.failed(2, "a", 10.0 + 2.5 * TOGETHER_S, dropped=True)
    assert suspicion.droppers(1, 14.0) == {"a"}


def test_an_answer_elsewhere_clears_the_body_and_names_who_dropped_it(suspicion: Suspicion) -> None:
    suspicion.failed(1, "a", 10.0, dropped=True)
    assert suspicion.works(1) == {"a"}
    assert not suspicion
    assert suspicion.works(1) == frozenset()


def test_it_forgets_with_time_and_is_bounded(suspicion: Suspicion) -> None:
    suspicion.failed(1, "a", 10.0, dropped=True)
    assert suspicion.droppers(1, 70.1) == frozenset()
    suspicion.forget(70.1)
    assert not suspicion
    for body in range(BODIES_MAX + 10):
        suspicion.failed(body, "a", 100.0 + 2 * body, dropped=True)
    assert suspicion.droppers(0, 101.0) == frozenset()
    assert suspicion.droppers(BODIES_MAX + 9, 100.0 + 2 * (BODIES_MAX + 9)) == {"a"}


def test_who_answered_5xx_is_left_aside_and_never_speaks_against_the_body(suspicion: Suspicion) -> None:
    suspicion.failed(1, "a", 10.0, dropped=False)
    suspicion.failed(1, "b", 20.0, dropped=False)
    suspicion.failed(1, "c", 20.0, dropped=True)
    assert (suspicion.refusers(1, 21.0), suspicion.droppers(1, 21.0)) == ({"a", "b"}, {"c"})
    assert suspicion.refusers(1, 70.1) == {"b"}
    assert suspicion.works(1) == {"a", "b", "c"}
