"""The engine by stretches against the step-by-step engine: same tokens, blocks, instants, snapshots."""

from random import Random

import pytest

from gateway.sim.engine import JumpEngine
from gateway.sim.stalls import Clock, Stalls
from gateway.sim.truth import Engine, SteppedEngine
from predictor.instance import Instance
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Decoded, Finished, FirstToken, Request
from predictor.snapshot import Snapshot, settle

Told = dict[tuple[str, str], list[float]]
TELLING = (FirstToken, Finished)


def drawn(seed: int) -> tuple[StepProfile, EngineLimits, list[Request]]:
    """An engine, often far too small, and a burst of requests for it."""
    rng = Random(seed)
    size, seats = rng.choice([1, 4, 16]), rng.choice([1, 4, 16, 48])
    chunk, blocks = max(seats, rng.choice([16, 64, 512])), rng.choice([40, 100, 400, 1052])
    limits = EngineLimits(blocks, size, seats, chunk, blocks * size, watermark_blocks=rng.choice([0, 2, blocks // 50]))
    profile = StepProfile(0.02, 7e-5, 7e-5, 7e-7 * rng.choice([1, 100]), pair_s=rng.choice([0.0, 1e-8]))
    if rng.random() < 0.5:
        profile = StepProfile(0.0188, 1.18e-4, 2.07e-6, 7.11e-7, 1.12e-8, 24, 5.2e-4, "h")
    at_s, requests = 0.0, []
    for i in range(90):
        at_s += rng.expovariate(rng.choice([1, 3, 10]))
        prompt = rng.randint(1, max(1, min(blocks * size // 2, rng.choice([10, 300, 900]))))
        output = rng.randint(1, max(1, min(blocks * size - prompt, rng.choice([5, 50, 500]))))
        requests.append(Request(str(i), prompt, output, at_s))
    return profile, limits, requests


def driven(engine: Engine, requests: list[Request], clock: Clock, looks_s: list[float]) -> tuple[Told, list[Snapshot]]:
    """All that happens, by kind and request, and what snapshots show at the given instants."""
    told: Told = {}
    shots = []
    arrivals = sorted([(r.arrival_s, r) for r in requests], key=lambda item: item[0])
    looks = list(looks_s)
    while arrivals or engine.step_ends_at_s is not None:
        ends_s = engine.step_ends_at_s
        nexts = [s for s in (ends_s, arrivals[0][0] if arrivals else None, looks[0] if looks else None) if s is not None]
        clock.now_s = min(nexts)
        if looks and looks[0] == clock.now_s:
            shots.append(engine.snapshot(looks.pop(0), {}))
        elif arrivals and arrivals[0][0] == clock.now_s:
            engine.submit(arrivals.pop(0)[1], clock.now_s)
        else:
            for event in engine.finish_step(clock.now_s):
                if isinstance(event, TELLING):
                    told.setdefault(("order", ""), []).append(float(event.request_id))
                if not isinstance(event, Decoded):
                    told.setdefault((type(event).__name__, event.request_id), []).append(event.at_s)
    return told, shots


def both(seed: int, stall_share: float) -> tuple[JumpEngine, SteppedEngine, list[Request], list[float], Clock, Clock]:
    profile, limits, requests = drawn(seed)
    looks = sorted(Random(f"looks {seed}").uniform(0.0, requests[-1].arrival_s) for _ in range(12))
    one, other = Clock(), Clock()
    stalls = [Stalls(stall_share, 0.2, Random(seed)) if stall_share else None for _ in range(2)]
    stepped = SteppedEngine(Instance(profile, limits), stalls[1])
    return JumpEngine(profile, limits, one, stalls[0]), stepped, requests, looks, one, other


@pytest.mark.parametrize("stall_share", [0.0, 0.03])
@pytest.mark.parametrize("block", range(4))
def test_equal_to_the_step_by_step_engine(block: int, stall_share: float) -> None:
    for seed in range(block * 12, block * 12 + 12):
        jumps, stepped, requests, looks, one, other = both(seed, stall_share)
        told, shots = driven(jumps, requests, one, looks)
        wanted, wanted_shots = driven(stepped, requests, other, looks)
        assert told.keys() == wanted.keys(), seed
        for key, instants in wanted.items():
            assert told[key] == pytest.approx(instants, abs=1e-7), (seed, key)
        assert jumps.preemptions == stepped.preemptions
        for shot, want in zip(shots, wanted_shots, strict=True):
            shot, want = settle(shot), settle(want)
            assert (shot.running, shot.waiting, shot.free_blocks) == (want.running, want.waiting, want.free_blocks), seed
            assert shot.step_ends_s == pytest.approx(want.step_ends_s, abs=1e-6)


def test_some_of_these_preempt_and_all_end() -> None:
    preemptions = 0
    for seed in range(24):
        jumps, _, requests, _, clock, _ = both(seed, 0.0)
        told, _ = driven(jumps, requests, clock, [])
        preemptions += jumps.preemptions
        assert sum(kind == "Finished" for kind, _ in told) == len(requests)
        assert (jumps.running, jumps.waiting, jumps.free_blocks) == (0, 0, jumps.limits.kv_blocks)
    assert preemptions > 100


def test_progress_can_be_read_between_events() -> None:
    clock = Clock()
    engine = JumpEngine(StepProfile(0.01, 0.0, 0.0, 0.0), EngineLimits(100, 16, 4, 64, 1600), clock)
    engine.submit(Request("a", 64, 100, 0.0), 0.0)
    progress = engine.progress("a")
    assert (progress.generated, progress.computed) == (0, 0)
    clock.now_s = engine.step_ends_at_s or -1.0
    engine.finish_step(clock.now_s)
    seen = []
    for steps in (0, 1, 17, 50):
        clock.now_s = 0.01 + steps * 0.01 + 0.001
        seen.append((progress.generated, progress.computed, engine.free_blocks))
        assert engine.current_step_ends_at_s() == pytest.approx(0.01 + (steps + 1) * 0.01)
    assert seen == [(1, 64, 95), (2, 65, 95), (18, 81, 94), (51, 114, 92)]


def test_an_aborted_request_leaves_with_the_step_in_progress() -> None:
    clock = Clock()
    engine = JumpEngine(StepProfile(0.01, 0.0, 0.0, 0.0), EngineLimits(100, 16, 4, 64, 1600), clock)
    engine.submit(Request("a", 64, 1000, 0.0), 0.0)
    engine.submit(Request("b", 64, 1000, 0.0), 0.0)
    for _ in range(3):
        clock.now_s = engine.step_ends_at_s or -1.0
        engine.finish_step(clock.now_s)
    clock.now_s += 0.055
    assert engine.abort("a", clock.now_s)
    assert not engine.abort("unknown", clock.now_s)
    assert engine.step_ends_at_s == pytest.approx(clock.now_s + 0.005)
    clock.now_s = engine.step_ends_at_s or -1.0
    engine.finish_step(clock.now_s)
    assert (engine.running, engine.waiting) == (1, 0)


def test_a_request_longer_than_the_model_is_refused() -> None:
    engine = JumpEngine(StepProfile(0.01, 0.0, 0.0, 0.0), EngineLimits(100, 16, 4, 64, 1600), Clock())
    with pytest.raises(ValueError, match="max_model_len 1600"):
        engine.submit(Request("a", 1600, 1, 0.0), 0.0)
