"""Whose slowness it is, case by case."""

import pytest

from gateway.config import Timeouts
from gateway.patience import NEVER, PAUSED_LOOK_S, Patience

TIMEOUTS = Timeouts(first_byte_s=10.0, unary_s=40.0, idle_s=5.0, write_stall_s=20.0)
SENT_S, END_S = 100.0, 160.0


def patience(heard_s: float, stalled_s: float = NEVER) -> Patience:
    made = Patience()
    made.heard_s, made.stalled_s = heard_s, stalled_s
    return made


@pytest.mark.parametrize(
    ("now_s", "heard_s", "stream", "expected"),
    [
        (109.9, 0.0, True, ("", 110.0)),
        (110.0, 0.0, True, ("first byte", 110.0)),
        (110.0, 0.0, False, ("", 140.0)),
        (140.0, 0.0, False, ("first byte", 140.0)),
        (110.0, 95.0, True, ("first byte", 110.0)),  # heard on an earlier attempt
        (110.0, 104.0, True, ("", 114.0)),  # its engine was paused until then
        (114.0, 104.0, True, ("first byte", 114.0)),
    ],
)
def test_before_the_answer(now_s: float, heard_s: float, stream: bool, expected: tuple[str, float]) -> None:
    assert patience(heard_s).first_byte(TIMEOUTS, now_s, SENT_S, END_S, stream=stream, paused=False) == expected


@pytest.mark.parametrize(
    ("now_s", "heard_s", "stalled_s", "expected"),
    [
        (124.9, 120.0, NEVER, ("", 125.0)),
        (125.0, 120.0, NEVER, ("silent", 125.0)),
        (130.0, 120.0, 118.0, ("", 138.0)),  # a client that does not read excuses the backend
        (138.0, 120.0, 118.0, ("stalled", 138.0)),
        (157.0, 156.0, NEVER, ("", END_S)),
        (160.0, 159.9, NEVER, ("total", END_S)),
        (160.0, 120.0, 118.0, ("total", END_S)),
    ],
)
def test_during_the_answer(now_s: float, heard_s: float, stalled_s: float, expected: tuple[str, float]) -> None:
    assert patience(heard_s, stalled_s).answer(TIMEOUTS, now_s, END_S, paused=False) == expected


def test_a_paused_engine_is_looked_at_again_and_has_its_whole_time_afterwards() -> None:
    waiting, answering = patience(0.0), patience(90.0, stalled_s=90.0)
    assert waiting.first_byte(TIMEOUTS, 130.0, SENT_S, END_S, stream=True, paused=True) == ("", 130.0 + PAUSED_LOOK_S)
    assert waiting.first_byte(TIMEOUTS, 131.0, SENT_S, END_S, stream=True, paused=False) == ("", 140.0)
    assert answering.answer(TIMEOUTS, 130.0, END_S, paused=True) == ("", 130.0 + PAUSED_LOOK_S)
    answering.stalled_s = NEVER
    assert answering.answer(TIMEOUTS, 134.0, END_S, paused=False) == ("", 135.0)


def test_a_paused_engine_does_not_lengthen_the_request() -> None:
    made = patience(0.0)
    assert made.first_byte(TIMEOUTS, 159.5, SENT_S, END_S, stream=True, paused=True) == ("", END_S)
    assert made.first_byte(TIMEOUTS, END_S, SENT_S, END_S, stream=True, paused=True) == ("first byte", END_S)
    assert made.answer(TIMEOUTS, END_S, END_S, paused=True) == ("total", END_S)
