"""Replies read in one go say what the general reader says of them, and what a plain choice makes of them: what was sent
since is added."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.foresight import OwnDispatches
from gateway.jobs import Job
from predictor.replies import read_reply
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply
from predictor.wire import WireError, encode_reply, parse_reply

REPLY = ProbeReply(Estimate(0.1, 0.02, 3.5, 0.05, 0.25, 90, math.nan, 1.5), 3, 2, 40, 7, 900, 0.125)
FIELDS: dict[str, Any] = json.loads(encode_reply(REPLY))
LENGTHS = LengthEstimate(5, 10, 20, "test")


def heard(body: bytes) -> tuple[str, str]:
    """What both readers say, errors included; -0.0 is 0.0."""
    said = []
    for read in (read_reply, parse_reply):
        try:
            said.append(repr(read(body)).replace("=-0.0", "=0.0"))
        except WireError as error:
            said.append(f"{error.code} {error}")
    return said[0], said[1]


def test_reply_is_read() -> None:
    assert repr(read_reply(encode_reply(REPLY))) == repr(REPLY)
    unknown = ProbeReply(Estimate.unknown, 0, 0, 0, 0, 0, 0.0)
    assert repr(read_reply(encode_reply(unknown))) == repr(unknown)


ODD = st.sampled_from(
    [None, True, 0, 1, 1.0, 2.5, -3, 2**62, 2**63, 2**64, 2**70, -(2**63), 1e308, "1", [], {}, "x" * 9],
)


@given(st.dictionaries(st.sampled_from([*FIELDS, "harm_s", "later"]), ODD | st.floats(allow_nan=False, allow_infinity=False)))
def test_both_readers_agree_whatever_the_figures_are(changed: dict[str, object]) -> None:
    one, other = heard(json.dumps({**FIELDS, **changed}).encode())
    assert one == other


@given(st.sampled_from(list(FIELDS)), st.integers(0, 400))
def test_both_readers_agree_on_what_is_missing_or_cut_off(gone: str, kept: int) -> None:
    for body in (json.dumps({name: FIELDS[name] for name in FIELDS if name != gone}), json.dumps(FIELDS)[:kept]):
        one, other = heard(body.encode())
        assert one == other


@pytest.mark.parametrize("more", [b" ", b"x", b"\0", b"{}"])
def test_both_readers_agree_on_what_follows(more: bytes) -> None:
    one, other = heard(encode_reply(REPLY) + more)
    assert one == other


@given(st.binary(max_size=100))
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        read_reply(body)


def test_what_was_sent_since_a_reply_is_added_to_it() -> None:
    own = OwnDispatches()
    for number, at_s in enumerate((1.0, 2.0, 3.0)):
        own.add(Job(str(number), "m", 33, LENGTHS, at_s), "a", 0.5, at_s)
    old = replace(REPLY, snapshot_age_s=3.0)
    known = {"a": old, "b": old}
    found = own.corrected(known, {"a": 16}, 3.5, 1.5)
    assert found["b"] is old, "nothing was sent there"
    late, was = found["a"], old.estimate
    assert repr(late.estimate) == repr(replace(was, ttft_s=was.ttft_s + 1.0, e2e_s=was.e2e_s + 1.0))
    assert (late.running, late.waiting, late.free_blocks, late.waiting_blocks) == (3, 4, 40, 13)
    assert (late.queued_tokens, late.snapshot_age_s) == (900 + 2 * 43, 3.0)
    assert own.corrected(known, {}, 3.5, 3.0)["a"] is old, "it was reserved before the question"
    assert own.corrected(known, {}, 6.0, -math.inf)["a"] is old, "its state shows what came before"
    assert own.corrected(known, {}, 5.5, -math.inf)["a"].waiting == 3
