"""The sidecar's oracle beside an engine that publishes KV events: hits are those that the engine still has."""

from dataclasses import replace

from predictor.oracle import CLAIM_STATES, FixedPace, Oracle
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate
from predictor.sighting import Sighting
from predictor.snapshot import Resident, Snapshot
from predictor.wire import Ask

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0)
LIMITS = EngineLimits(kv_blocks=96, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1024)
ASK = Ask("a", "m", 128, LengthEstimate(10, 10, 10, "t"), (1, 2), 64)
BLOCKS = [bytes((place,)) for place in range(8)]


def state(number: int, *running: Resident) -> Sighting:
    return Sighting(number, "e", Snapshot(100.0, LIMITS, running, (), 96))


def ttft_s(of: Oracle) -> float:
    return of.reply(replace(ASK, id="b", prompt_tokens=130), 100.0).estimate.ttft_s


def test_what_the_engine_drops_is_not_counted() -> None:
    made = Oracle(FixedPace(PROFILE))
    kv = made.follow_kv()
    made.saw(state(1))
    made.reserve(ASK, 100.0)
    kv.stored("a", BLOCKS, None, 16)
    made.saw(state(2, Resident("a", 128, 128, 1, 10)))
    made.saw(state(3))  # it has ended
    cached = ttft_s(made)
    kv.removed(BLOCKS[4:5])
    half = ttft_s(made)
    kv.removed(BLOCKS[:1])
    none = ttft_s(made)
    assert kv.joined == 1
    assert cached < half < none


def test_claims_end_with_their_requests_or_when_these_never_come() -> None:
    made = Oracle(FixedPace(PROFILE))
    kv = made.follow_kv()
    made.saw(state(1))
    made.reserve(ASK, 100.0)
    assert "1 not joined" in repr(kv)
    made.saw(state(2 + CLAIM_STATES))
    assert "0 not joined" in repr(kv)
