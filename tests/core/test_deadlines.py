"""The sweep of deadlines: who is called when, and what a standstill of our own may not do."""

import asyncio
from collections.abc import Callable
from typing import cast

from gateway.deadlines import STALL_S, TICK_S, Deadlines


class Clock:
    """The two calls of a loop that the sweep needs, with time in the test's hands."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[[], None]) -> object:
        self.asked.append((when_s, call))
        return None

    def wake(self, late_s: float = 0.0) -> None:
        """The timer that was asked for fires, `late_s` after its time."""
        when_s, call = self.asked.pop()
        self.now_s = when_s + late_s
        call()


class Member:
    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.called_s: list[float] = []

    def on_due(self, now_s: float) -> None:
        self.called_s.append(now_s)
        self.due_s = float("inf")


def sweep(*members: Member) -> Clock:
    clock = Clock()
    deadlines = Deadlines(cast("asyncio.AbstractEventLoop", clock))
    for member in members:
        deadlines.add(member)
    return clock


def test_who_is_due_is_called_and_nobody_else() -> None:
    early, late = Member(100.0 + TICK_S / 2), Member(200.0)
    clock = sweep(early, late)
    clock.wake()
    assert (len(early.called_s), len(late.called_s)) == (1, 0)


def test_a_standstill_of_ours_is_not_held_against_peers() -> None:
    member = Member(100.1)
    clock = sweep(member)
    clock.wake(late_s=STALL_S * 4)
    assert member.called_s == []  # its answer may lie in the kernel, unread
    member.due_s = clock.now_s + 10.0  # it did: the peer had spoken in time
    clock.wake()
    assert member.called_s == []


def test_after_a_standstill_the_silent_are_called_one_sweep_later() -> None:
    member = Member(100.1)
    clock = sweep(member)
    clock.wake(late_s=STALL_S * 4)
    clock.wake()
    assert len(member.called_s) == 1


def test_a_loop_that_is_always_late_still_keeps_deadlines() -> None:
    member = Member(100.1)
    clock = sweep(member)
    for _ in range(2):
        clock.wake(late_s=STALL_S * 4)
    assert len(member.called_s) == 1
